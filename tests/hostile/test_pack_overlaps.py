"""Committed deltas whose packs contradict each other or the manifest, while all hashes fit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptObjectError
from weightstore.format.manifest import DeltaForm, PackRef
from weightstore.format.pack import PackBuilder, TensorPlace
from weightstore.history.chain import CheckoutPlan
from weightstore.history.checkout import checkout, checkout_into, verify_plan
from weightstore.history.diff import diff_versions
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import RealVersions, _Names, next_weights, random_weights

SCHEMA = Schema.build(
    [TensorSpec("large", DType.BF16, (350, 200)), TensorSpec("small", DType.BF16, (7,))]
)
WEIGHTS = random_weights(SCHEMA, 0)


def changed(names: Sequence[str], weights: dict[str, Units], seed: int) -> dict[str, Units]:
    """A step that changes these tensors alone."""
    after = next_weights(weights, seed)
    return {name: after[name] if name in names else units for name, units in weights.items()}


class TwoSteps(RealVersions):
    """Writes the way from old to new bits as two changes in turn, each with packs of its own.

    Applied one after the other they lead to the right bits, and their lane differences to
    the right table: only where they change the same unit is anything wrong.
    """

    middle: dict[str, Units] | None = None

    def _delta(
        self, names: _Names, arrays: Sequence[Units], coding: ValueCoding | None
    ) -> DeltaForm:
        if self.middle is None:
            return super()._delta(names, arrays, coding)
        middle = [self.middle[spec.name] for spec in self.schema.tensors]
        first = super()._delta(names, middle, coding)
        kept, self._before = self._before, middle
        second = super()._delta(names, arrays, coding)
        self._before = kept
        return DeltaForm(
            packs=first.packs + second.packs,
            changed_count=first.changed_count + second.changed_count,
            piece_count=first.piece_count + second.piece_count,
            size_bytes=first.size_bytes + second.size_bytes,
        )


def two_steps(
    names: tuple[Sequence[str], Sequence[str]], *, full: bool = False
) -> tuple[TwoSteps, dict[str, Units]]:
    """Version 2 as two changes, of the tensors of one list after the other."""
    versions = TwoSteps(MemoryBlobStore(), SCHEMA)
    versions.put(WEIGHTS)
    versions.middle = changed(names[0], WEIGHTS, 1)
    after = changed(names[1], versions.middle, 2)
    versions.put(after, full=full)
    return versions, after


def packs_of(plan: CheckoutPlan) -> tuple[PackRef, ...]:
    assert plan.manifest.delta is not None
    return plan.manifest.delta.packs


def diffs_of(versions: RealVersions) -> tuple[Callable[[], object], ...]:
    """Both ways to say what version 2 changes: from its packs, and from its bits."""
    plans = [versions.plan(record) for record in versions.records]
    return tuple(
        lambda counts=counts: diff_versions(
            versions.blobs, plans[0], plans[1], Settings(), counts=counts
        )
        for counts in (True, False)
    )


def refused_as_overlap(versions: RealVersions, name: str, settings: Settings) -> None:
    """Every way to read names the tensor and both packs, and targets keep their bits."""
    plan = versions.plan()
    keys = tuple(pack.key for pack in packs_of(plan))
    assert len(keys) == 2
    targets = {one: units.copy() for one, units in WEIGHTS.items()}
    for read in (
        lambda: verify_plan(versions.blobs, plan, settings),
        lambda: checkout(versions.blobs, plan, settings),
        lambda: checkout_into(versions.blobs, plan, targets, settings),
        *diffs_of(versions),
    ):
        with pytest.raises(CorruptObjectError, match="change the same units") as caught:
            read()
        assert caught.value.facts == {"version": 2, "tensor": name, "keys": keys}
    for one, units in WEIGHTS.items():
        assert np.array_equal(targets[one], units), "nothing was written"


@pytest.mark.parametrize("thread_count", [1, 2])
def test_two_packs_that_change_a_unit_in_turn_are_refused(thread_count: int) -> None:
    versions, _ = two_steps((["large"], ["large"]))
    refused_as_overlap(versions, "large", Settings(thread_count=thread_count))


class Repeating(RealVersions):
    """Names the one pack of a delta twice, under two keys."""

    def _delta(
        self, names: _Names, arrays: Sequence[Units], coding: ValueCoding | None
    ) -> DeltaForm:
        once = super()._delta(names, arrays, coding)
        (pack,) = once.packs
        key = pack.key.replace("-0-", "-1-")
        self.blobs.put_if_absent(key, self.blobs.get(pack.key, max_size_bytes=pack.size_bytes))
        return DeltaForm(
            packs=(pack, pack.model_copy(update={"key": key, "rank": 1})),
            changed_count=2 * once.changed_count,
            piece_count=2 * once.piece_count,
            size_bytes=2 * once.size_bytes,
        )


@pytest.mark.parametrize(
    ("name", "coding"), [("large", None), ("small", None), ("large", ValueCoding.DENSE_BITS)]
)
def test_a_pack_that_is_there_twice_is_refused(name: str, coding: ValueCoding | None) -> None:
    versions = Repeating(MemoryBlobStore(), SCHEMA)
    versions.put(WEIGHTS)
    versions.put(changed([name], WEIGHTS, 1), coding=coding)
    refused_as_overlap(versions, name, Settings())


def test_packs_that_change_different_tensors_are_one_version() -> None:
    versions, after = two_steps((["large"], ["small"]))
    plan = versions.plan()
    assert len(packs_of(plan)) == 2
    verify_plan(versions.blobs, plan, Settings(), scan=True)
    found = checkout(versions.blobs, plan, Settings())
    for name, units in after.items():
        assert np.array_equal(found[name].units, units)


@pytest.mark.parametrize("name", ["large", "small"])
def test_the_delta_of_a_version_with_both_forms_is_held_to_the_same(name: str) -> None:
    versions, after = two_steps(([name], [name]), full=True)
    plan = versions.plan()
    assert plan.deltas == ()
    keys = tuple(pack.key for pack in packs_of(plan))
    with pytest.raises(CorruptObjectError, match="change the same units") as caught:
        verify_plan(versions.blobs, plan, Settings())
    assert caught.value.facts == {"version": 2, "tensor": name, "keys": keys}
    # The full form needs no delta, and its reader none of the delta's checks.
    assert np.array_equal(checkout(versions.blobs, plan, Settings())[name].units, after[name])


class Columns(RealVersions):
    """Writes each of two packs as the change of one box of columns of the large tensor."""

    columns = (0, 0)

    def _delta(self, names: _Names, arrays: Sequence[Units], _: ValueCoding | None) -> DeltaForm:
        packs = []
        for first in self.columns:
            box = Box((0, first), (350, 10))
            old, new = (side[0].reshape(350, 200) for side in (self._before, arrays))
            part = np.s_[:, first : first + 10]
            piece = self._worker.encode(old[part].ravel(), new[part].ravel()).piece
            assert piece is not None
            builder = PackBuilder(self.schema)
            builder.add(TensorPlace(0, 0, piece.unit_count, box), piece)
            packs.append((self._put_pack(names, builder), piece.changed_count))
        return DeltaForm(
            packs=tuple(pack for pack, _ in packs),
            changed_count=sum(count for _, count in packs),
            piece_count=len(packs),
            size_bytes=sum(pack.size_bytes for pack, _ in packs),
        )


@pytest.mark.parametrize("columns", [(0, 0), (20, 29), (190, 185)])
def test_two_packs_of_crossing_columns_are_refused(columns: tuple[int, int]) -> None:
    versions = Columns(MemoryBlobStore(), SCHEMA)
    versions.put(WEIGHTS)
    versions.columns = columns
    versions.put(next_weights(WEIGHTS, 1))
    plan = versions.plan()
    keys = tuple(pack.key for pack in packs_of(plan))
    for read in (lambda: verify_plan(versions.blobs, plan, Settings()), *diffs_of(versions)):
        with pytest.raises(CorruptObjectError, match="change the same units") as caught:
            read()
        assert caught.value.facts == {"version": 2, "tensor": "large", "keys": keys}


class Miscounting(RealVersions):
    """Commits manifests that count pieces or changes of packs in another way."""

    piece_moves = (0, 0)
    more_changes = 0

    def _delta(
        self, names: _Names, arrays: Sequence[Units], coding: ValueCoding | None
    ) -> DeltaForm:
        true = super()._delta(names, arrays, coding)
        packs = tuple(
            pack.model_copy(update={"piece_count": pack.piece_count + move})
            for pack, move in zip(true.packs, self.piece_moves, strict=True)
        )
        return true.model_copy(
            update={"packs": packs, "changed_count": true.changed_count + self.more_changes}
        )


def miscounting(piece_moves: tuple[int, int], more_changes: int, *, full: bool) -> RealVersions:
    """Version 2 of two packs, with counts that its manifest makes up."""
    versions = Miscounting(MemoryBlobStore(), SCHEMA, pieces_per_pack=2, piece_unit_count=30_000)
    versions.put(WEIGHTS)
    versions.piece_moves, versions.more_changes = piece_moves, more_changes
    versions.put(next_weights(WEIGHTS, 1), full=full)
    return versions


@pytest.mark.parametrize("full", [False, True], ids=["delta", "both forms"])
@pytest.mark.parametrize("piece_moves", [(1, -1), (-1, 1)], ids=["more", "fewer"])
def test_a_pack_of_other_pieces_than_the_manifest_says_is_refused(
    piece_moves: tuple[int, int], *, full: bool
) -> None:
    versions = miscounting(piece_moves, 0, full=full)
    plan = versions.plan()
    for read in (lambda: verify_plan(versions.blobs, plan, Settings()), *diffs_of(versions)):
        with pytest.raises(CorruptObjectError, match="pieces, the manifest says") as caught:
            read()
        assert caught.value.facts == {"version": 2, "key": packs_of(plan)[0].key}


@pytest.mark.parametrize("full", [False, True], ids=["delta", "both forms"])
def test_packs_of_other_changes_than_the_manifest_says_are_refused(*, full: bool) -> None:
    versions = miscounting((0, 0), 1, full=full)
    plan = versions.plan()
    for read in (lambda: verify_plan(versions.blobs, plan, Settings()), *diffs_of(versions)):
        with pytest.raises(CorruptObjectError, match="the manifest says 4 and"):
            read()


class Watched(MemoryBlobStore):
    """Notes which thread reads each pack."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[str, str] = {}

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        if key.startswith("packs/"):
            self.readers[key] = threading.current_thread().name
        return super().get(key, max_size_bytes=max_size_bytes)


def test_the_delta_of_a_version_with_both_forms_is_read_by_the_workers() -> None:
    blobs = Watched()
    versions = RealVersions(blobs, SCHEMA, pieces_per_pack=1, piece_unit_count=30_000)
    versions.put(WEIGHTS)
    versions.put(next_weights(WEIGHTS, 1), full=True)
    plan = versions.plan()
    verify_plan(blobs, plan, Settings(thread_count=2))
    assert set(blobs.readers) == {pack.key for pack in packs_of(plan)}
    assert all(name.startswith("weightstore") for name in blobs.readers.values())
