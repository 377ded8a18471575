"""The facade against a dictionary: any order of puts, retirements, tags and restarts."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray

from weightstore.errors import (
    RefusedError,
    SchemaMismatchError,
    StepConflictError,
    TagNotFoundError,
    VersionGoneError,
    VersionNotFoundError,
    WeightStoreError,
)
from weightstore.settings import KIB, Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.store_lab import store_on
from weightstore.trainer.session import TrainerSession

Weights = dict[str, NDArray[Any]]

# Small pieces and packs and short chains, so that a few steps meet every boundary.
SETTINGS = Settings(
    limits=Limits(piece_element_count=64 * KIB),
    pack_size_bytes=2 * KIB,
    anchor_file_size_bytes=40 * KIB,
    full_after_chain_count=5,
    full_after_chain_ratio=1e6,
    warn_changed_ratio=1.0,
)
# NaNs of two payloads, both zeros, subnormals and plain numbers, as bf16.
HARD_UNITS = np.array([0x0000, 0x8000, 0x7FC0, 0xFFC1, 0x0001, 0x3F80, 0x7F80], np.uint16)
SCHEMAS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"embed": (700, 100), "bias": (7,), "scale": (), "unused": (0, 3)},
    {"embed": (10, 90), "experts": (3, 20, 4)},
)
TAGS = st.sampled_from(["best", "eval"])
SEEDS = st.integers(0, 1000)
PICKS = st.integers(0, 10_000)


def fresh(schema: int, seed: int) -> Weights:
    """Weights of one of the schemas."""
    rng = np.random.default_rng(seed)
    return {name: rng.choice(HARD_UNITS, shape) for name, shape in SCHEMAS[schema].items()}


def stepped(weights: Weights, seed: int) -> Weights:
    """Weights of which some tensors have some other elements."""
    rng = np.random.default_rng(seed)
    after = {name: np.array(array) for name, array in weights.items()}
    for array in after.values():
        if array.size and rng.random() < 0.7:
            flat = array.reshape(-1)
            places = rng.integers(0, array.size, rng.integers(1, 1 + max(1, array.size // 200)))
            flat[places] = rng.choice(HARD_UNITS, places.size)
    return after


def bits(weights: Weights) -> dict[str, bytes]:
    """What is compared."""
    return {name: array.tobytes() for name, array in weights.items()}


class StoreMachine(RuleBasedStateMachine):
    """Puts through the facade; each version's weights are kept in a dictionary beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[int, Weights] = {}
        self.places: dict[int, tuple[str, int]] = {}
        self.gone: set[int] = set()
        self.tags: dict[str, int] = {}
        self.last_step = -1
        self.import_step = -1
        self.opened_count = 0
        self.session: TrainerSession | None = None
        self.store: WeightStore

    def blobs(self) -> BlobStore:
        """The store below; the same one each time."""
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        self.below = self.blobs()
        self.reopen()

    @property
    def newest(self) -> int:
        return max(self.versions)

    @property
    def trainer(self) -> TrainerSession:
        if self.session is None:
            self.session = self.store.trainer("grpo")
        return self.session

    def stop(self) -> None:
        """Close the claim, if there is one; a rewind that no step followed goes with it."""
        if self.session is not None:
            self.session.close()
            self.session = None
        steps = [step for run, step in self.places.values() if run == "grpo"]
        self.last_step = steps[-1] if steps else -1

    def put(self, weights: Weights, given: Weights, step: int, **options: Any) -> None:  # noqa: ANN401 -- of put_step
        version = self.trainer.put_step(step, given, **options).result()
        assert version == len(self.versions) + 1
        self.versions[version] = {name: array.copy() for name, array in weights.items()}
        self.places[version] = ("grpo", step)
        self.last_step = step
        for array in given.values():
            array[...] = 0x5555

    @rule(seed=SEEDS, gap=st.integers(1, 3), anchor=st.booleans())
    def put_step(self, seed: int, gap: int, anchor: bool) -> None:  # noqa: FBT001 -- hypothesis gives it
        weights = stepped(self.versions[self.newest], seed) if self.versions else fresh(0, seed)
        given = {name: array.copy() for name, array in weights.items()}
        self.put(weights, given, self.last_step + gap, anchor=anchor)

    @precondition(lambda self: self.versions)
    @rule()
    def put_without_a_change(self) -> None:
        weights = self.versions[self.newest]
        self.put(
            weights, {name: array.copy() for name, array in weights.items()}, self.last_step + 1
        )
        assert self.store.version().digest == self.store.version(self.newest).digest

    @precondition(lambda self: self.versions)
    @rule(seed=SEEDS, left_out=PICKS)
    def put_some_tensors(self, seed: int, left_out: int) -> None:
        before = self.versions[self.newest]
        missing = sorted(before)[left_out % len(before)]
        weights = stepped(before, seed) | {missing: before[missing]}
        given = {name: array.copy() for name, array in weights.items() if name != missing}
        with pytest.raises(SchemaMismatchError, match=missing):
            self.trainer.put_step(self.last_step + 1, given).result()
        self.put(weights, given, self.last_step + 1, missing="unchanged")

    @precondition(lambda self: self.versions)
    @rule(seed=SEEDS)
    def put_another_schema(self, seed: int) -> None:
        now = "experts" in self.versions[self.newest]
        weights = fresh(0 if now else 1, seed)
        given = {name: array.copy() for name, array in weights.items()}
        with pytest.raises(SchemaMismatchError):
            self.trainer.put_step(self.last_step + 1, given).result()
        self.put(weights, given, self.last_step + 1, new_schema=True)

    @precondition(lambda self: self.versions)
    @rule(pick=PICKS)
    def put_a_step_again(self, pick: int) -> None:
        steps = sorted(
            {step for run, step in self.places.values() if run == "grpo" and step <= self.last_step}
        )
        if not steps:
            return
        step = steps[pick % len(steps)]
        version = max(one for one, place in self.places.items() if place == ("grpo", step))
        given = {name: array.copy() for name, array in self.versions[version].items()}
        other = {name: np.asarray(array ^ np.uint16(1)) for name, array in given.items()}
        if version in self.gone:
            with pytest.raises(WeightStoreError):
                self.trainer.put_step(step, other).result()
            return
        assert self.trainer.put_step(step, given).result() == version
        with pytest.raises(StepConflictError):
            self.trainer.put_step(step, other).result()

    @rule()
    def reopen(self) -> None:
        self.stop()
        self.opened_count += 1
        self.store = store_on(self.below, seed=self.opened_count, settings=SETTINGS)

    @precondition(lambda self: self.last_step >= 0)
    @rule(back=st.integers(0, 4))
    def rewind(self, back: int) -> None:
        self.reopen()
        self.last_step = max(self.last_step - back, 0)
        self.session = self.store.trainer("grpo", rewind_to=self.last_step)

    @precondition(lambda self: self.versions)
    @rule(name=TAGS, pick=PICKS)
    def tag(self, name: str, pick: int) -> None:
        version = 1 + pick % self.newest
        if version in self.gone:
            with pytest.raises(VersionGoneError):
                self.store.tag(name, version)
        else:
            assert self.store.tag(name, version).version == version
            self.tags[name] = version

    @rule(name=TAGS)
    def untag(self, name: str) -> None:
        if name in self.tags:
            self.store.untag(name)
            del self.tags[name]
        else:
            with pytest.raises(TagNotFoundError):
                self.store.untag(name)

    @precondition(lambda self: self.versions)
    @rule(newest_count=st.integers(0, 3), picks=st.lists(PICKS, max_size=2))
    def retire(self, newest_count: int, picks: list[int]) -> None:
        wanted = {1 + pick % self.newest for pick in picks} - self.gone
        planned = self.store.retire(
            keep_newest=newest_count, keep_versions=sorted(wanted), dry_run=True
        )
        done = self.store.retire(keep_newest=newest_count, keep_versions=sorted(wanted))
        assert done == planned
        kept = sorted(set(self.versions) - self.gone)
        must = {self.newest, *wanted, *self.tags.values(), *kept[len(kept) - newest_count :]}
        assert not must & set(done.gone)
        assert not self.gone & set(done.gone)
        self.gone |= set(done.gone)

    @precondition(lambda self: self.versions)
    @rule(pick=PICKS)
    def check_out(self, pick: int) -> None:
        version = 1 + pick % self.newest
        if version in self.gone:
            for call in (self.store.checkout, self.store.verify, self.store.describe):
                with pytest.raises(VersionGoneError):
                    call(version)
            return
        taken = self.store.checkout(version)
        found = {name: host.units.tobytes() for name, host in taken.host.items()}
        assert found == bits(self.versions[version])

    @precondition(lambda self: self.versions)
    @rule(scan=st.booleans())
    def check_everything(self, scan: bool) -> None:  # noqa: FBT001 -- hypothesis gives it
        listed = list(self.store.versions())
        assert [info.version for info in listed] == sorted(self.versions, reverse=True)
        assert {info.version: (info.run, info.step) for info in listed} == self.places
        assert {info.version for info in listed if not info.kept} == self.gone
        assert {tag.name: tag.version for tag in self.store.tags()} == self.tags
        assert self.store.version().version == self.newest
        for version in sorted(set(self.versions) - self.gone):
            self.store.verify(version, scan=scan)
        run, step = self.places[self.newest]
        assert self.store.version(f"{run}@{step}").version == self.newest

    @rule(version=st.sampled_from([0, -3, 10_000]), name=st.sampled_from(["a b", "", "é"]))
    def ask_for_nothing(self, version: int, name: str) -> None:
        with pytest.raises(VersionNotFoundError):
            self.store.checkout(version)
        with pytest.raises((RefusedError, VersionNotFoundError)):
            self.store.tag(name)

    def teardown(self) -> None:
        self.stop()
        store = store_on(self.below, seed="last", settings=SETTINGS)
        for version in sorted(set(self.versions) - self.gone):
            found = store.checkout(version).host
            assert {name: host.units.tobytes() for name, host in found.items()} == bits(
                self.versions[version]
            )


class MemoryMachine(StoreMachine):
    """On a memory store."""

    def blobs(self) -> BlobStore:
        """A new one for each example."""
        return MemoryBlobStore()


class LocalMachine(StoreMachine):
    """On a directory; imports need one."""

    def blobs(self) -> BlobStore:
        """A new one for each example."""
        self.folder = Path(tempfile.mkdtemp(prefix="weightstore-machine-"))
        return LocalBlobStore(self.folder / "store", create=True)

    @rule(schema=st.integers(0, 1), seed=SEEDS)
    def import_a_checkpoint(self, schema: int, seed: int) -> None:
        self.stop()
        weights = fresh(schema, seed)
        path = self.folder / f"import-{self.import_step + 1}.safetensors"
        safetensors.numpy.save_file(weights, path)
        for _ in range(2):
            info = self.store.import_checkpoint(path, run="base", step=self.import_step + 1)
            assert info.version == len(self.versions) + (info.version not in self.versions)
            self.versions[info.version] = weights
            self.places[info.version] = ("base", self.import_step + 1)
        self.import_step += 1

    def teardown(self) -> None:
        """Also the directory."""
        try:
            super().teardown()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


TestMemoryStore = MemoryMachine.TestCase
TestMemoryStore.settings = settings(max_examples=100, stateful_step_count=40)
TestLocalStore = LocalMachine.TestCase
TestLocalStore.settings = settings(max_examples=50, stateful_step_count=30)
