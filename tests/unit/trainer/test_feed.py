"""Given tensors as pieces: each unit once, in one order, and no read after the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.history.workers import Workers
from weightstore.layout.boxes import FlatRange
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.testing.trainer_lab import Weights, small_weights
from weightstore.trainer.baseline import plan_layout
from weightstore.trainer.benches import Bench, make_benches
from weightstore.trainer.binding import Binding, BoundTensor, Missing, derive_schema
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.feed import BundleFill, PieceFeed
from weightstore.trainer.inputs import InputTensor, MappedInputs, TensorsInMemory, open_tensors

LIMITS = Limits(piece_element_count=10_000)
Found = tuple[str, tuple[int, ...], bytes]


def feed_of(
    weights: Weights, given: TensorsInMemory, workers: Workers, missing: Missing = "refuse"
) -> PieceFeed[Found]:
    inputs = open_tensors(weights)
    assert isinstance(inputs, MappedInputs)
    schema = derive_schema(inputs, CastRules())
    binding = Binding(schema, open_tensors(given), CastRules(), missing=missing)
    benches = make_benches(PieceCodec(numpy_kernels()))
    layout = plan_layout(schema)
    return PieceFeed(binding, layout, workers=workers, benches=benches, limits=LIMITS)


def on_span(bound: BoundTensor, span: FlatRange, bench: Bench) -> Found:
    units = bound.read(span.first_unit, span.unit_count, bench)
    return bound.spec.name, (span.first_unit, span.unit_count), units.tobytes()


def on_bundle(fill: BundleFill, bench: Bench) -> Found:
    return fill.bundle.dtype.value, fill.bundle.members, fill.units(bench).tobytes()


def pieces(
    weights: Weights, given: TensorsInMemory, thread_count: int, missing: Missing = "refuse"
) -> list[Found]:
    with Workers(thread_count) as workers:
        return list(feed_of(weights, given, workers, missing).run(on_span, on_bundle))


def test_the_order_is_the_same_for_any_number_of_threads() -> None:
    weights = small_weights()
    found = [pieces(weights, weights, thread_count) for thread_count in (1, 2, 4)]
    assert found[0] == found[1] == found[2]
    spans = [part for name, part, _ in found[0] if name == "embed"]
    assert spans == [(at, min(10_000, 66_000 - at)) for at in range(0, 66_000, 10_000)]
    assert b"".join(bits for name, _, bits in found[0] if name == "embed") == (
        weights["embed"].tobytes()
    )


def test_a_stream_gives_the_same_pieces_in_its_own_order() -> None:
    weights = small_weights()
    streamed = pieces(weights, iter(reversed(weights.items())), 2)
    assert sorted(streamed) == sorted(pieces(weights, weights, 2))


def test_a_member_that_is_not_given_is_zero() -> None:
    weights = {"a": np.full(3, 7, np.uint16), "b": np.full(2, 9, np.uint16)}
    for given in ({"b": weights["b"]}, iter([("b", weights["b"])])):
        [(_, members, bits)] = pieces(weights, given, 2, "unchanged")
        assert members == (0, 1)
        assert np.frombuffer(bits, np.uint16).tolist() == [0, 0, 0, 9, 9]


def test_nothing_is_read_once_an_error_is_out() -> None:
    weights = {f"w{i}": np.zeros(100_000, np.uint16) for i in range(8)}
    lock = threading.Lock()
    reading = 0

    def guarded(given: InputTensor) -> InputTensor:
        def read(first: int, count: int) -> Units:
            nonlocal reading
            with lock:
                reading += 1
            units = given.read(first, count)
            if given.spec.name == "w1":
                raise OSError("the device is gone")
            with lock:
                reading -= 1
            return units

        return InputTensor(given.spec, read)

    inputs = open_tensors(weights)
    assert isinstance(inputs, MappedInputs)
    failing = {name: guarded(given) for name, given in inputs.tensors.items()}
    with Workers(4) as workers:
        feed = feed_of(weights, failing, workers)  # type: ignore[arg-type]
        with (
            pytest.raises(OSError, match="gone"),
            closing(feed.run(on_span, on_bundle)) as found,
        ):
            list(found)
        at_end = reading
    assert reading == at_end


def test_a_stream_is_not_asked_on_before_its_tensor_was_read() -> None:
    weights = {f"w{i}": np.full(70_000, i, np.uint16) for i in range(4)}

    def export() -> Iterator[tuple[str, Units]]:
        buffer = np.empty(70_000, np.uint16)
        for name, array in weights.items():
            buffer[:] = array
            yield name, buffer
            buffer[:] = 999

    assert pieces(weights, export(), 4) == pieces(weights, weights, 1)
