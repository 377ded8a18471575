"""Casts: round to nearest even, straight from the source, with one NaN."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from weightstore.codec.cast import CASTS, cast_units
from weightstore.codec.floats import FloatCast, FloatForm, cast_floats
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.errors import DTypeRefusedError, InputRefusedError
from weightstore.layout.dtypes import TORCH_NAMES, DType

KERNELS = [numpy_kernels(), load_kernels()]
PAIRS = sorted(CASTS, key=lambda pair: (pair[0].value, pair[1].value))
FORMS = {DType.F16: (5, 10), DType.BF16: (8, 7), DType.F32: (8, 23), DType.F64: (11, 52)}
QUIET_NANS = {DType.BF16: 0x7FC0, DType.F16: 0x7E00, DType.F32: 0x7FC00000}


def hard_bits(source: DType, target: DType) -> NDArray[Any]:
    """Every exponent of the source with mantissas at and around each rounding boundary."""
    exponent_bits, mantissa_bits = FORMS[source]
    drop = mantissa_bits - FORMS[target][1]
    half, last = 1 << (drop - 1), 1 << drop
    mantissas = {
        0,
        1,
        half - 1,
        half,
        half + 1,
        last,
        last + half - 1,
        last + half,
        last + half + 1,
    }
    mantissas |= {(1 << mantissa_bits) - 1 - step for step in (0, 1, half - 1, half, half + 1)}
    mantissas |= {1 << at for at in range(mantissa_bits)}
    mantissas |= {(1 << at) + 1 for at in range(1, mantissa_bits)}
    words = [
        sign << (exponent_bits + mantissa_bits) | exponent << mantissa_bits | mantissa
        for sign in (0, 1)
        for exponent in range(1 << exponent_bits)
        for mantissa in sorted(mantissas)
    ]
    return np.array(words, dtype=source.unit_dtype)


def random_bits(source: DType, count: int) -> NDArray[Any]:
    rng = np.random.default_rng(7)
    return rng.integers(
        0, 256**source.unit_size_bytes - 1, count, dtype=source.unit_dtype, endpoint=True
    )


def cast(bits: NDArray[Any], source: DType, target: DType, kernels: Kernels) -> NDArray[Any]:
    out = np.empty(bits.size, dtype=target.unit_dtype)
    cast_units(bits, source, target, out, kernels=kernels)
    return out


def value_of(word: int, dtype: DType) -> Fraction | None:
    """The exact value of a magnitude; None for infinities and NaNs."""
    exponent_bits, mantissa_bits = FORMS[dtype]
    exponent, mantissa = word >> mantissa_bits, word & ((1 << mantissa_bits) - 1)
    if exponent == (1 << exponent_bits) - 1:
        return None
    bias = (1 << (exponent_bits - 1)) - 1
    significand = mantissa + ((1 << mantissa_bits) if exponent else 0)
    return Fraction(significand) * Fraction(2) ** (max(exponent, 1) - bias - mantissa_bits)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_numba_and_numpy_round_alike(source: DType, target: DType) -> None:
    bits = np.concatenate([hard_bits(source, target), random_bits(source, 200_000)])
    first, second = (cast(bits, source, target, kernels) for kernels in KERNELS)
    assert np.array_equal(first, second)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_the_result_is_the_nearest_and_even_on_a_tie(source: DType, target: DType) -> None:
    # By exact fractions: no float arithmetic stands between the claim and the check.
    bits = hard_bits(source, target)[:: 7 if source is DType.F32 else 41]
    sign_bit = 1 << sum(FORMS[source])
    rounded = cast(bits, source, target, numpy_kernels())
    target_mask = (1 << sum(FORMS[target])) - 1
    for word, found in zip(bits.tolist(), rounded.tolist(), strict=True):
        exact = value_of(word & (sign_bit - 1), source)
        magnitude = found & target_mask
        if exact is None:
            continue
        assert found >> sum(FORMS[target]) == word >> sum(FORMS[source])
        near = {
            other: value_of(other, target)
            for other in (magnitude - 1, magnitude, magnitude + 1)
            if other >= 0
        }
        here = near[magnitude]
        if here is None:
            # Infinity: at least half a step above the largest finite value.
            largest, before = (value_of(magnitude - step, target) for step in (1, 2))
            assert largest is not None
            assert before is not None
            assert exact >= largest + (largest - before) / 2
            continue
        for other, value in near.items():
            if value is None or other == magnitude:
                continue
            assert abs(exact - here) <= abs(exact - value)
            if abs(exact - here) == abs(exact - value):
                assert magnitude % 2 == 0


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_torch_agrees_wherever_it_rounds_once(source: DType, target: DType) -> None:
    bits = np.concatenate([hard_bits(source, target), random_bits(source, 50_000)])
    floats = bits.view(np.float32 if source is DType.F32 else np.float64)
    converted = torch.from_numpy(floats).to(getattr(torch, TORCH_NAMES[target]))
    expected = converted.view(torch.int16 if target is not DType.F32 else torch.int32).numpy()
    found = cast(bits, source, target, load_kernels())
    # torch goes from fp64 to 16 bits through fp32, which rounds twice; where fp32 holds the
    # value exactly there is one rounding left.
    with np.errstate(over="ignore", invalid="ignore"):
        once = source is DType.F32 or target is DType.F32 or floats == floats.astype(np.float32)
    comparable = ~np.isnan(floats) & once
    assert np.count_nonzero(comparable) > 10_000
    assert np.array_equal(found[comparable], expected.view(target.unit_dtype)[comparable])


def test_fp64_is_not_rounded_twice() -> None:
    # Just above the middle of two bf16 values; fp32 would drop the last bit and round down.
    bits = np.array([1.00390625 + 2.0**-40]).view(np.uint64)
    for kernels in KERNELS:
        assert cast(bits, DType.F64, DType.BF16, kernels).tolist() == [0x3F81]
    torch_result = torch.tensor([1.00390625 + 2.0**-40], dtype=torch.float64).to(torch.bfloat16)
    assert torch_result.view(torch.int16).tolist() == [0x3F80]


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_nan_becomes_the_one_quiet_nan(
    kernels: Kernels, source: DType, target: DType
) -> None:
    bits = hard_bits(source, target)
    floats = bits.view(np.float32 if source is DType.F32 else np.float64)
    nans = bits[np.isnan(floats)]
    assert nans.size > 10
    assert set(cast(nans, source, target, kernels).tolist()) == {QUIET_NANS[target]}


def test_the_quiet_nan_of_bf16_is_that_of_torch_for_one_value() -> None:
    for word in (0x7F800001, 0x7FC01234, 0xFFFFFFFF):
        bits = np.array([word], dtype=np.uint32)
        # A tensor of no dims: torch's vectorised loop gives 0xFFFF instead.
        scalar = torch.from_numpy(bits.view(np.float32)).reshape(()).to(torch.bfloat16)
        found = cast(bits, DType.F32, DType.BF16, load_kernels())
        assert found.tolist() == [scalar.view(torch.int16).item()]


def test_every_bf16_pattern_but_nan_survives_the_way_through_fp32() -> None:
    patterns = np.arange(65536, dtype=np.uint32)
    is_nan = (patterns & 0x7FFF) > 0x7F80
    back = cast(patterns << 16, DType.F32, DType.BF16, load_kernels())
    assert np.array_equal(back[~is_nan], patterns[~is_nan].astype(np.uint16))


def test_other_pairs_are_refused() -> None:
    for source in DType:
        for target in DType:
            if (source, target) in CASTS:
                continue
            units = np.zeros(4, dtype=source.unit_dtype)
            out = np.ones(4, dtype=target.unit_dtype)
            with pytest.raises(DTypeRefusedError, match="is not cast to"):
                cast_units(units, source, target, out)
            assert out.tolist() == [1, 1, 1, 1]


def test_arrays_that_do_not_fit_are_refused() -> None:
    source, out = np.zeros(4, dtype=np.uint32), np.zeros(4, dtype=np.uint16)
    for wrong_source, wrong_out in (
        (source[:3], out),
        (source, out.view(np.uint8)),
        (source.astype(np.uint64), out),
    ):
        with pytest.raises(InputRefusedError):
            cast_units(wrong_source, DType.F32, DType.BF16, wrong_out)


def test_forms_know_their_special_values() -> None:
    half = FloatForm(exponent_bits=5, mantissa_bits=10)
    assert (half.bias, half.infinity, half.quiet_nan) == (15, 0x7C00, 0x7E00)
    out = np.empty(1, dtype=np.uint16)
    single = FloatForm(exponent_bits=8, mantissa_bits=23)
    cast_floats(np.array([0x3F800000], dtype=np.uint32), FloatCast(single, half), out)
    assert out.tolist() == [0x3C00]
