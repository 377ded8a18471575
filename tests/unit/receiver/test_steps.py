"""Which way a version takes into place, and what is looked at before and afterwards."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from weightstore.errors import LiveWeightsError, SchemaMismatchError
from weightstore.history.delta_path import VersionRef
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_state import Way
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Tally
from weightstore.receiver.steps import ChangeStep, FullStep, StepMaker, StreamStep
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.real_versions import mixed_schema, next_weights, random_weights
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.store_lab import store_on
from weightstore.testing.virtual_time import VirtualClock


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 3)


def maker_of(lab: ReceiverLab, settings: ReceiverSettings) -> StepMaker:
    place = partial(place_arrays, targets=lab.arrays(), boxes={})
    return StepMaker(lab.source, place, settings, Pool.of_size, None)


def made(lab: ReceiverLab, settings: ReceiverSettings) -> tuple[StepMaker, object, Tally]:
    """A step from version 1, which is written first, to version 3."""
    maker, tally = maker_of(lab, settings), Tally(VirtualClock())
    first, last = lab.versions.records[0], lab.versions.records[2]
    full = maker.make(first, None, None, tally)
    assert isinstance(full, FullStep)
    tables = full.write(tally, is_redo=False)
    way = maker.way(last, VersionRef.of(first), tally)
    return maker, maker.make(last, way, tables, tally), tally


def test_a_change_that_fits_waits_in_the_pool(lab: ReceiverLab) -> None:
    _, step, _ = made(lab, ReceiverSettings())
    assert isinstance(step, ChangeStep)
    assert step.way is Way.CHANGE
    assert step.reversed().reversed().change.count == step.change.count


def test_a_change_that_does_not_fit_is_streamed(lab: ReceiverLab) -> None:
    _, step, tally = made(lab, ReceiverSettings(pool_size_bytes=100))
    assert isinstance(step, StreamStep)
    assert "100 bytes" in tally.reason
    after = step.write(tally, is_redo=False)
    assert np.array_equal(after.table, lab.versions.plan().last_table)


@pytest.mark.parametrize("has_full_form", [True, False])
def test_a_full_form_is_a_shortcut_where_the_deltas_are_more(*, has_full_form: bool) -> None:
    schema = Schema.build([TensorSpec("a", DType.BF16, (4096,))])
    lab = ReceiverLab.with_versions(schema, 2)
    receiver, arrays = lab.host_receiver(at=1, tied=False)
    for seed in range(2, 12):
        # Bits drawn anew: a delta of about the size of the tensor.
        lab.put(random_weights(schema, seed), full=has_full_form and seed == 11)
    newest = lab.put(next_weights(lab.weights[12], 99))
    report = receiver.refit("latest")
    assert (report.way is Way.FULL) is has_full_form
    assert ("11 deltas" not in report.reason) or has_full_form
    assert lab.is_at(arrays, newest)


def test_a_full_form_that_is_gone_is_no_shortcut() -> None:
    schema = Schema.build([TensorSpec("a", DType.BF16, (4096,))])
    lab = ReceiverLab.with_versions(schema, 2)
    receiver, arrays = lab.host_receiver(at=1, tied=False)
    for seed in range(2, 12):
        lab.put(random_weights(schema, seed), full=seed == 11)
    for blob in list(lab.blobs.list("anchors/")):
        lab.blobs.delete(blob.key)
    report = receiver.refit("latest")
    assert report.way is Way.CHANGE
    assert lab.is_at(arrays, 12)


def test_a_stream_ends_dirty_unless_the_digests_agree(lab: ReceiverLab) -> None:
    """A bit that nobody looks at while it streams is found by the scan at its end."""
    maker, step, tally = made(lab, ReceiverSettings(pool_size_bytes=100))
    assert isinstance(step, StreamStep)
    head = lab.schema.index_of("head")
    destination = maker.placement.by_tensor[head][0][1]
    storage = maker.placement.storage_of(destination)
    units = storage.read(destination.extent)
    same = lab.expected(1, "head") == lab.expected(2, "head")
    same &= lab.expected(2, "head") == lab.expected(3, "head")
    units[np.flatnonzero(same)[0]] ^= 1
    storage.write(destination.extent, units)
    with pytest.raises(LiveWeightsError) as caught:
        step.write(tally, is_redo=False)
    assert caught.value.facts["tensors"] == ("head",)


@pytest.mark.parametrize(("ratio", "least"), [(0.0, 1 << 20), (1.0, (1 << 20) + 1_000_000)])
def test_the_pool_has_room_for_a_share_of_the_elements(
    lab: ReceiverLab, ratio: float, least: int
) -> None:
    sizes: list[int] = []

    def make_pool(size_bytes: int) -> Pool:
        sizes.append(size_bytes)
        return Pool.of_size(size_bytes)

    place = partial(place_arrays, targets=lab.arrays(), boxes={})
    StepMaker(lab.source, place, ReceiverSettings(pool_ratio=ratio), make_pool, None)
    assert sizes[0] >= least
    assert (sizes[0] == 1 << 20) is (ratio == 0)


def test_another_schema_is_placed_anew_and_refused_where_it_does_not_fit() -> None:
    store = store_on(MemoryBlobStore())
    w, u = np.arange(8, dtype=np.float32), np.arange(6, dtype=np.float32)
    with store:
        store.put_step(0, {"w": w})
        array = np.zeros(8, np.uint32)
        receiver = store.receiver({"w": array})
        receiver.refit()
        store.put_step(1, {"w": w + 1, "u": u}, new_schema=True)
        with pytest.raises(SchemaMismatchError, match="'u'"):
            receiver.refit()
        assert receiver.version == 1
        assert np.array_equal(array.view(np.float32), w)
        store.put_step(2, {"w": w + 2}, new_schema=True)
        assert receiver.refit().target == 3
        assert np.array_equal(array.view(np.float32), w + 2)


def test_a_version_whose_tied_names_differ_moves_into_a_new_placement() -> None:
    specs = [TensorSpec("a", DType.BF16, (70_000,)), TensorSpec("b", DType.BF16, (70_000,))]
    apart = ReceiverLab.with_versions(Schema.build(specs), 1)
    tied = ReceiverLab.with_versions(Schema.build(specs[:1], aliases=[Alias("b", "a")]), 1)
    arrays = apart.arrays()
    placed: list[Placement] = []

    def place(schema: Schema) -> Placement:
        placed.append(place_arrays(schema, arrays, {}))
        return placed[-1]

    maker = StepMaker(apart.source, place, ReceiverSettings(), Pool.of_size, None)
    maker._source = tied.source
    tally = Tally(VirtualClock())
    step = maker.make(tied.versions.records[0], None, None, tally)
    assert isinstance(step, FullStep)
    assert step.placement is placed[1]
    assert maker.placement is placed[0]
    step.write(tally, is_redo=False)
    maker.seat_once(step.placement)
    assert maker.placement is placed[1]
    assert tied.is_at(arrays, 1)
