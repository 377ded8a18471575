"""What heals a mixture: each tensor by the cheapest way that its bits allow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.errors import LiveWeightsError
from weightstore.history.delta_path import VersionRef
from weightstore.history.overwrite_set import OverwriteSet
from weightstore.ids import Sha256
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.overwrite_step import Mixture, OverwriteStep, make_overwrite_step
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Tally
from weightstore.testing.receiver_lab import Bits, ReceiverLab
from weightstore.testing.virtual_time import VirtualClock

SCHEMA = Schema.build(
    [
        *(TensorSpec(f"layer.{n}", DType.BF16, (70_000,)) for n in range(3)),
        TensorSpec("norm", DType.F32, (9,)),
        TensorSpec("still", DType.BF16, (70_000,)),
    ]
)
LAYER_BYTES = 140_000


@pytest.fixture
def lab() -> ReceiverLab:
    found = ReceiverLab.with_versions(SCHEMA, 1)
    for seed in (1, 2):
        weights = {name: units.copy() for name, units in found.weights[seed].items()}
        for name in ("layer.0", "layer.1", "layer.2", "norm"):
            places = np.random.default_rng(seed).integers(0, weights[name].size, 40)
            weights[name][places] += 1
        found.put(weights)
    return found


def mixed(lab: ReceiverLab) -> tuple[Bits, Placement]:
    """Between versions 1 and 3: `layer.0` has arrived, `layer.1` is cut, `layer.2` not begun."""
    arrays = {name: units.copy() for name, units in lab.weights[1].items()}
    arrays["layer.0"][:] = lab.weights[3]["layer.0"]
    differs = np.flatnonzero(lab.weights[1]["layer.1"] != lab.weights[3]["layer.1"])
    half = differs[: differs.size // 2]
    arrays["layer.1"][half] = lab.weights[3]["layer.1"][half]
    return arrays, place_arrays(SCHEMA, dict(arrays), {})


def mixture_of(lab: ReceiverLab, placement: Placement, base: int, target: int) -> Mixture:
    first, last = (lab.versions.records[number - 1] for number in (base, target))
    table = lab.versions.plan(first).last_table
    lanes = table[[each.tensor_index for each in placement.destinations]]
    before = LiveTables(table, lanes)
    return Mixture(VersionRef.of(first), VersionRef.of(last), before)


def made(
    lab: ReceiverLab, placement: Placement, mixture: Mixture, tally: Tally
) -> OverwriteStep | None:
    return make_overwrite_step(lab.source, placement, mixture, PieceCodec(), 1 << 20, tally)


def test_each_tensor_is_healed_by_the_cheapest_way(
    lab: ReceiverLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[tuple[int, ...]] = []
    original = OverwriteSet.bits

    def counted(self: OverwriteSet, group: object, /) -> object:
        stored.append(group.members)  # type: ignore[attr-defined]
        return original(self, group)  # type: ignore[arg-type]

    monkeypatch.setattr(OverwriteSet, "bits", counted)
    arrays, placement = mixed(lab)
    tally = Tally(VirtualClock())
    step = made(lab, placement, mixture_of(lab, placement, 1, 3), tally)
    assert step is not None
    after = step.write(tally, is_redo=False)
    assert lab.is_at(arrays, 3)
    assert np.array_equal(after.table, lab.versions.plan().last_table)
    # Of a full form only the tensor that is mixed is read, and what has arrived is not written.
    assert stored == [(SCHEMA.index_of("layer.1"),)]
    assert LAYER_BYTES < tally.wire_bytes < 1.5 * LAYER_BYTES
    changed = sum(
        np.count_nonzero(lab.weights[1][name] != lab.weights[3][name])
        for name in ("layer.1", "layer.2", "norm")
    )
    assert 0 < tally.applied_count < changed


def test_the_way_back_reads_what_it_needs_from_the_store(lab: ReceiverLab) -> None:
    arrays, placement = mixed(lab)
    tally = Tally(VirtualClock())
    step = made(lab, placement, mixture_of(lab, placement, 3, 1), tally)
    assert step is not None
    step.write(tally, is_redo=False)
    assert lab.is_at(arrays, 1)


def test_a_version_of_another_store_is_no_target(lab: ReceiverLab) -> None:
    _, placement = mixed(lab)
    mixture = mixture_of(lab, placement, 1, 3)
    strange = VersionRef(mixture.target.version, Sha256("0" * 64))
    for wrong in (replace(mixture, target=strange), replace(mixture, base=strange)):
        tally = Tally(VirtualClock())
        assert made(lab, placement, wrong, tally) is None
        assert tally.reason.startswith("no overwrite set from version")


def test_a_way_without_deltas_is_left_to_the_whole_version(lab: ReceiverLab) -> None:
    _, placement = mixed(lab)
    mixture = mixture_of(lab, placement, 1, 3)
    for blob in list(lab.blobs.list("manifests/")):
        if "/2-" in blob.key:
            lab.blobs.delete(blob.key)
    tally = Tally(VirtualClock())
    assert made(lab, placement, mixture, tally) is None
    assert "no overwrite set" in tally.reason


def test_weights_that_are_no_mixture_of_the_two_are_found_at_the_end(lab: ReceiverLab) -> None:
    arrays, placement = mixed(lab)
    same = np.flatnonzero(lab.weights[1]["layer.1"] == lab.weights[3]["layer.1"])
    arrays["layer.1"][same[-1]] ^= 1
    tally = Tally(VirtualClock())
    step = made(lab, placement, mixture_of(lab, placement, 1, 3), tally)
    assert step is not None
    with pytest.raises(LiveWeightsError) as caught:
        step.write(tally, is_redo=False)
    assert caught.value.facts["tensors"] == ("layer.1",)


def test_tensors_that_the_change_is_not_about_are_not_looked_at(
    lab: ReceiverLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, placement = mixed(lab)
    seen: list[int] = []

    def scanned(_: Placement, numbers: list[int], __: int) -> np.ndarray:
        seen.extend(numbers)
        raise KeyboardInterrupt

    monkeypatch.setattr("weightstore.receiver.overwrite_step.scan", scanned)
    tally = Tally(VirtualClock())
    step = made(lab, placement, mixture_of(lab, placement, 1, 3), tally)
    assert step is not None
    with pytest.raises(KeyboardInterrupt):
        partial(step.write, tally)(is_redo=False)
    still = SCHEMA.index_of("still")
    names = {placement.destinations[number].tensor_index for number in seen}
    assert still not in names
    assert len(names) == 4
