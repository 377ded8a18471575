"""The chooser: the coding that it picks is near the smallest, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.chooser import SAMPLE_COUNT, choose_coding
from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import Units
from weightstore.codec.piece import ValueCoding

KERNELS: list[Kernels] = [numpy_kernels(), load_kernels()]
UNIT_COUNT = 150_000
WITH_BASE = [coding for coding in ValueCoding if coding is not ValueCoding.DENSE_BITS]


def bf16_weights(seed: int = 1) -> NDArray[np.uint16]:
    values = np.random.default_rng(seed).standard_normal(UNIT_COUNT, dtype=np.float32) * 0.02
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def at_share(old: Units, new: Units, share: float) -> Units:
    chosen = np.random.default_rng(2).random(old.size) < share
    return np.where(chosen, new, old)


def patterns(width: int) -> dict[str, tuple[Units, Units]]:
    """Kinds of change, everywhere; a test then keeps a share of them."""
    rng = np.random.default_rng(width)
    top = 256**width - 1
    dtype = np.dtype(f"u{width}")
    old = (
        bf16_weights()
        if width == 2
        else rng.integers(0, top, UNIT_COUNT, dtype=dtype, endpoint=True)
    )
    bits = (1 << rng.integers(0, 8 * width, UNIT_COUNT).astype(object)).astype(dtype)
    return {
        "steps": (old, old + rng.choice(np.array([1, top], dtype=dtype), UNIT_COUNT)),
        "signs": (old, old ^ dtype.type(top // 2 + 1)),
        "single bits": (old, old ^ bits),
        "small noise": (old, old + rng.integers(0, 20, UNIT_COUNT).astype(dtype)),
        "noise": (old, rng.integers(0, top, UNIT_COUNT, dtype=dtype, endpoint=True)),
        "zeroed": (old, np.zeros_like(old)),
        "other weights": (old, np.roll(old, 1)),
    }


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_choice_is_near_the_smallest(width: int, share: float) -> None:
    worker = PieceCodec(load_kernels()).worker()
    for kind, (old, whole) in patterns(width).items():
        new = at_share(old, whole, share)
        sizes = {}
        for coding in (None, *WITH_BASE):
            piece = worker.encode(old, new, coding=coding).piece
            assert piece is not None
            sizes[coding] = piece.size_bytes
        assert sizes[None] <= 1.06 * min(sizes.values()) + 200, (kind, sizes)


@pytest.mark.parametrize(
    ("kind", "share", "expected"),
    [
        ("steps", 0.01, ValueCoding.ULP),
        ("steps", 0.3, ValueCoding.ULP),
        ("signs", 0.01, ValueCoding.XOR),
        ("single bits", 0.01, ValueCoding.XOR),
        ("zeroed", 0.01, ValueCoding.OVERWRITE),
        ("other weights", 1.0, ValueCoding.OVERWRITE),
        ("small noise", 1.0, ValueCoding.DENSE_ULP),
    ],
)
def test_each_coding_is_chosen_where_it_belongs(
    kind: str, share: float, expected: ValueCoding
) -> None:
    old, whole = patterns(2)[kind]
    piece = PieceCodec().worker().encode(old, at_share(old, whole, share)).piece
    assert piece is not None
    assert piece.value_coding is expected


@pytest.mark.parametrize(
    "count", [1, 2, 3, SAMPLE_COUNT - 1, SAMPLE_COUNT, SAMPLE_COUNT + 1, 100_000]
)
def test_numba_and_numpy_choose_alike_for_any_number_of_changes(count: int) -> None:
    for width in (1, 2, 4, 8):
        for old, new in patterns(width).values():
            for unit_count in (count, 2 * count - 1, 2 * count, 1 << 23):
                chosen = {
                    choose_coding(kernels, old[:count], new[:count], unit_count, count)
                    for kernels in KERNELS
                }
                assert len(chosen) == 1


def test_one_flipped_sign_takes_xor_and_one_step_takes_ulp() -> None:
    old = np.full(1000, 0x3F80, dtype=np.uint16)
    for flip, expected in ((0x8000, ValueCoding.XOR), (0x0001, ValueCoding.ULP)):
        new = old.copy()
        new[500] ^= flip
        piece = PieceCodec().worker().encode(old, new).piece
        assert piece is not None
        assert piece.value_coding is expected


def test_bits_without_a_base_are_never_chosen_over_a_base() -> None:
    # Their lanes are those of the new bits, so a reader could not add them to a table.
    for width in (1, 2, 4, 8):
        for old, new in patterns(width).values():
            piece = PieceCodec().worker().encode(old, new).piece
            assert piece is not None
            assert piece.value_coding is not ValueCoding.DENSE_BITS
