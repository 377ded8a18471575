"""An attempt's packs over its baseline: moved into it, or read through it, the same bits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.errors import WrongBaseError
from weightstore.history.workers import Workers
from weightstore.ids import Sha256
from weightstore.layout.boxes import cut_flat
from weightstore.settings import Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import Weights, changed, lab_settings, small_weights
from weightstore.trainer.baseline import Baseline, plan_layout
from weightstore.trainer.baseline_places import MemoryPlace
from weightstore.trainer.benches import Benches, make_benches
from weightstore.trainer.binding import Binding, derive_schema
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.detect import DetectionPass
from weightstore.trainer.inputs import MappedInputs, open_tensors
from weightstore.trainer.own_change import NewBits, OwnChange
from weightstore.trainer.packing import OwnPack, PackSink
from weightstore.trainer.scan import Scan

LIMITS = lab_settings().limits
BEFORE = small_weights()
AFTER = {**changed(BEFORE, 1), "layer.1.mask": BEFORE["layer.1.mask"]}


class Bed:
    """A baseline of `BEFORE` and the packs that lead to `AFTER`."""

    def __init__(self) -> None:
        inputs = open_tensors(BEFORE)
        assert isinstance(inputs, MappedInputs)
        self.schema = derive_schema(inputs, CastRules())
        self.benches: Benches = make_benches(PieceCodec(numpy_kernels()))
        self.baseline = MemoryPlace().create(plan_layout(self.schema))
        with Workers(2) as workers, ThreadPoolExecutor(1) as uploader:
            binding = Binding(self.schema, inputs, CastRules())
            table = Scan(workers, self.benches, LIMITS).run(binding, into=self.baseline).table
            keys = iter(f"packs/run-1/2-1-0-{i:032x}.safetensors" for i in range(100))
            sink = PackSink(
                MemoryBlobStore(),
                self.schema,
                lambda: next(keys),
                uploader=uploader,
                rank=0,
                settings=Settings(pack_size_bytes=512),
            )
            DetectionPass(
                Binding(self.schema, open_tensors(AFTER), CastRules()),
                self.baseline,
                table,
                workers=workers,
                benches=self.benches,
                sink=sink,
                limits=LIMITS,
            ).run()
            self.packs: tuple[OwnPack, ...] = sink.finish()
            sink.close()

    def change(self) -> OwnChange:
        return OwnChange(self.schema, self.packs, LIMITS)

    def holds(self, weights: Weights) -> bool:
        units = [self.baseline.units(i).tobytes() for i in range(len(self.schema.tensors))]
        return units == [weights[spec.name].tobytes() for spec in self.schema.tensors]


@pytest.mark.parametrize("thread_count", [1, 3])
def test_applied_packs_move_the_baseline(thread_count: int) -> None:
    bed = Bed()
    assert bed.holds(BEFORE)
    with Workers(thread_count) as workers:
        bed.change().apply(bed.baseline, workers=workers, benches=bed.benches)
    assert bed.holds(AFTER)


def test_packs_are_refused_by_a_baseline_that_is_not_their_base() -> None:
    bed = Bed()
    with Workers(1) as workers:
        bed.change().apply(bed.baseline, workers=workers, benches=bed.benches)
        with pytest.raises(WrongBaseError):
            bed.change().apply(bed.baseline, workers=workers, benches=bed.benches)


def test_new_bits_are_read_in_any_order_and_leave_the_baseline_alone() -> None:
    bed = Bed()
    ranges = [
        (index, span)
        for index, spec in enumerate(bed.schema.tensors)
        for span in cut_flat(spec.unit_count, LIMITS.piece_element_count)
    ]
    orders = [
        ranges,
        ranges[::-1],
        [ranges[i] for i in np.random.default_rng(3).permutation(len(ranges))],
    ]
    with bed.benches.lend() as bench:
        bits = NewBits(bed.baseline, bed.change(), bench)
        for order in orders:
            for index, span in order:
                name = bed.schema.tensors[index].name
                raw = AFTER[name].reshape(-1)[span.first_unit : span.end_unit]
                assert (
                    bits.units(index, span.first_unit, span.unit_count).tobytes() == raw.tobytes()
                )
    assert bed.holds(BEFORE)


def test_a_baseline_without_packs_is_read_as_it_is() -> None:
    bed = Bed()
    with bed.benches.lend() as bench:
        bits = NewBits(bed.baseline, OwnChange(bed.schema, (), LIMITS), bench)
        units = bits.units(0, 0, LIMITS.piece_element_count)
        assert np.shares_memory(units, bed.baseline.units(0))


def test_small_packs_are_several_and_described() -> None:
    bed = Bed()
    assert len(bed.packs) > 1
    for pack in bed.packs:
        assert pack.ref.size_bytes == len(pack.data)
        assert isinstance(Sha256(pack.ref.sha256), str)
        assert pack.ref.piece_count > 0
    assert isinstance(bed.baseline, Baseline)
