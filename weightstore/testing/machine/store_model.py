"""What a store should hold, kept in a dictionary beside it, and how the two are compared."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize
from numpy.typing import NDArray

from weightstore.history.log import Log
from weightstore.history.store_format import create_store
from weightstore.settings import KIB, Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.store import WeightStore
from weightstore.store.reading import Components
from weightstore.testing.history_check import (
    Acknowledged,
    History,
    Read,
    bits_sha256_of,
    check_history,
)
from weightstore.testing.machine.places import Place
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock
from weightstore.trainer.session import TrainerSession

Weights = dict[str, NDArray[Any]]
Bits = dict[str, bytes]

RUN = "grpo"
# Small pieces and packs, short chains and a small cache, so that a few steps meet every boundary.
SETTINGS = Settings(
    limits=Limits(
        piece_element_count=64 * KIB,
        index_miss_count=2,
        index_extension_count=5,
        cached_record_count=16,
    ),
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
SEEDS = st.integers(0, 1000)
PICKS = st.integers(0, 10_000)


def fresh(schema: int, seed: int) -> Weights:
    """Weights of one of the schemas."""
    rng = np.random.default_rng(seed)
    return {name: rng.choice(HARD_UNITS, shape) for name, shape in SCHEMAS[schema].items()}


def stepped(weights: Weights, seed: int) -> Weights:
    """Weights of which some tensors have some other elements."""
    rng = np.random.default_rng(seed)
    after = copied(weights)
    for array in after.values():
        if array.size and rng.random() < 0.7:  # noqa: PLR2004 -- most of them
            flat = array.reshape(-1)
            places = rng.integers(0, array.size, rng.integers(1, 1 + max(1, array.size // 200)))
            flat[places] = rng.choice(HARD_UNITS, places.size)
    return after


def copied(weights: Mapping[str, NDArray[Any]]) -> Weights:
    """The same bits in other memory."""
    return {name: np.array(array) for name, array in weights.items()}


def bits(weights: Mapping[str, NDArray[Any]]) -> Bits:
    """What is compared."""
    return {name: array.tobytes() for name, array in weights.items()}


def taken_bits(store: WeightStore, version: int) -> Bits:
    """The bits that a store gives out for a version."""
    return {name: host.units.tobytes() for name, host in store.checkout(version).host.items()}


class StoreModel(RuleBasedStateMachine):
    """A store and the dictionary of what it should hold.

    Attributes:
        place: Where the store lies.
        store: The handle that most steps go through.
        versions: Version to its weights.
        places: Version to run and step.
        gone: Versions that were retired.
        tags: Name to version.
        session: The open trainer, if there is one.
        is_orphaned: Whether a claim may be open whose owner has no handle on it any more.
    """

    place: Place

    def __init__(self) -> None:
        super().__init__()
        self.versions: dict[int, Weights] = {}
        self.places: dict[int, tuple[str, int]] = {}
        self.gone: set[int] = set()
        self.tags: dict[str, int] = {}
        self.last_step = -1
        self.session: TrainerSession | None = None
        self.is_orphaned = False
        self.is_deep = False
        self._acknowledged: list[Acknowledged] = []
        self._reads: list[Read] = []
        self._opened_count = 0
        self.store: WeightStore

    def new_place(self) -> Place:
        """An empty place for each example."""
        raise NotImplementedError

    @initialize(is_deep=st.booleans())
    def begin(self, is_deep: bool) -> None:  # noqa: FBT001 -- hypothesis gives it
        """Make the store.

        After a crash: the example is over.
        """
        self.place = self.new_place()
        self.is_deep = is_deep
        self.store = self.handle()

    @property
    def newest(self) -> int:
        """The newest version, retired or not."""
        return max(self.versions)

    @property
    def kept(self) -> list[int]:
        """Versions that can be checked out."""
        return sorted(set(self.versions) - self.gone)

    def handle(self, blobs: BlobStore | None = None) -> WeightStore:
        """A handle on the store as a new process opens it.

        After a crash: as `create_store`.
        """
        self._opened_count += 1
        below = self.place.open() if blobs is None else blobs
        clock, entropy = VirtualClock(), SeededEntropy(self._opened_count)
        store_id = create_store(
            below, Log(below, SETTINGS.limits), clock=clock, entropy=entropy, settings=SETTINGS
        )
        index = self.place.index(store_id, SETTINGS) if blobs is None else None
        parts = Components(below, clock, entropy, index)
        return WeightStore(parts, store_id, settings=SETTINGS, cast={})

    def trainer(self) -> TrainerSession:
        """The open trainer; a new one takes over what a dead one left."""
        if self.session is None:
            self.session = self.store.trainer(RUN, take_over=self.is_orphaned)
            self.is_orphaned = False
        return self.session

    def stop(self) -> None:
        """Close the claim, if there is one; a rewind that no step followed goes with it."""
        if self.session is not None:
            self.session.close()
            self.session = None
        self.forget_rewind()

    def forget_rewind(self) -> None:
        """The next claim continues after the run's newest version."""
        steps = [step for run, step in self.places.values() if run == RUN]
        self.last_step = steps[-1] if steps else -1

    def reopen(self) -> None:
        """Go on as another process does."""
        self.stop()
        self.store.close()
        self.store = self.handle()

    def put(self, weights: Weights, given: Weights, step: int, **options: Any) -> int:  # noqa: ANN401 -- of put_step
        """Put a step, and spoil the given memory once that is done.

        After a crash: as `TrainerSession.put_step`.
        """
        version = self.trainer().put_step(step, given, **options).result()
        assert version == len(self.versions) + 1
        self.note(version, weights, RUN, step)
        for array in given.values():
            array[...] = 0x5555
        return version

    def note(self, version: int, weights: Weights, run: str, step: int) -> None:
        """Write down what was acknowledged."""
        self.versions[version] = copied(weights)
        self.places[version] = (run, step)
        if run == RUN:
            self.last_step = step
        self._acknowledged.append(
            Acknowledged(
                version=version, run=run, step=step, bits_sha256=bits_sha256_of(bits(weights))
            )
        )

    def check_read(self, store: WeightStore, version: int) -> None:
        """A kept version gives its very bits."""
        assert taken_bits(store, version) == bits(self.versions[version])

    def check_newest(self, store: WeightStore, reader: str) -> None:
        """`latest` is the newest version, and gives its bits."""
        taken = store.checkout()
        found = {name: host.units.tobytes() for name, host in taken.host.items()}
        assert taken.info.version == self.newest
        assert found == bits(self.versions[self.newest])
        self._reads.append(
            Read(
                reader=reader,
                order=len(self._reads),
                version=taken.info.version,
                digest=taken.info.digest,
                bits_sha256=bits_sha256_of(found),
            )
        )

    def check_state(self, store: WeightStore) -> None:
        """Versions, what was retired, and tags are what they should be."""
        listed = list(store.versions())
        assert [info.version for info in listed] == sorted(self.versions, reverse=True)
        assert {info.version: (info.run, info.step) for info in listed} == self.places
        assert {info.version for info in listed if not info.kept} == self.gone
        assert {tag.name: tag.version for tag in store.tags()} == self.tags

    def teardown(self) -> None:
        """Hold all that was acknowledged and read against the store."""
        if not hasattr(self, "place"):
            return
        try:
            self.stop()
            self.store.close()
            self.check_state(self.handle())
            history = History(acknowledged=tuple(self._acknowledged), reads=tuple(self._reads))
            check_history(self.place.open(), history, deep=self.is_deep, limits=SETTINGS.limits)
        finally:
            self.place.close()


def put_quietly(session: TrainerSession, step: int, given: Weights, **options: Any) -> int:  # noqa: ANN401 -- of put_step
    """Put a step; what a put warns of is no failure here.

    After a crash: as `TrainerSession.put_step`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return session.put_step(step, given, **options).result()
