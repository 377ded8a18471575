"""The state digest: what changes it, what does not, and its published vectors."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from weightstore.codec.digest import (
    DIGEST_MAGIC,
    NO_LANES,
    StateHasher,
    add_lanes,
    lanes_of,
    member_lanes,
    state_digest,
    subtract_lanes,
)
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.lanes import LANE_FACTORS, LANE_OFFSETS, MASK_64, Lanes, Units
from weightstore.errors import InputRefusedError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec

KERNELS = [numpy_kernels(), load_kernels()]
# The vectors of docs/format.md. A change here is a change of the format.
LANE_VECTORS: list[tuple[Units, int, Lanes]] = [
    (np.array([], dtype=np.uint16), 0, (0x0000000000000000, 0x0000000000000000)),
    (np.array([0], dtype=np.uint16), 0, (0xA8871E3718CA0053, 0x23DF8F919B81008F)),
    (np.array([0x3F80], dtype=np.uint16), 0, (0x6013227AFE16F6B2, 0x87ABD8A1E251D653)),
    (
        np.array([0x3F80, 0xBF80, 0x7FC0], dtype=np.uint16),
        0,
        (0x1C2B3E9E94878A5C, 0x0905522E17352945),
    ),
    (
        np.array([0x3F80, 0xBF80, 0x7FC0], dtype=np.uint16),
        1 << 40,
        (0x7539E24221DBC71D, 0x06019F7C537E8A6C),
    ),
    (np.array([255], dtype=np.uint8), 7, (0xF0AC1369A9F6898A, 0x896E7955AA4F2D60)),
    (np.array([0x3F800000], dtype=np.uint32), 0, (0xB23AA942813018CD, 0x4B3F0853F0FCC050)),
    (np.array([MASK_64], dtype=np.uint64), 0, (0x47972F75CFDF2C55, 0xD9B9D54FC813B1B0)),
]
EMPTY_DIGEST = "37eec3e3610996c7b4b108d352a6ac2e32479fb4977f157b33304576b6f91c4d"


def plain_mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK_64
    return word ^ (word >> 31)


def plain_lanes(bits: list[int], first_index: int) -> tuple[int, int]:
    sums = [0, 0]
    for place, word in enumerate(bits):
        for lane in range(2):
            at = ((first_index + place) * LANE_FACTORS[lane] + LANE_OFFSETS[lane]) & MASK_64
            sums[lane] = (sums[lane] + plain_mix(word ^ plain_mix(at))) & MASK_64
    return sums[0], sums[1]


def small_schema() -> Schema:
    return Schema.build(
        [
            TensorSpec("b.weight", DType.BF16, (1, 3)),
            TensorSpec("a.bias", DType.F32, ()),
            TensorSpec("é", DType.U8, (0,)),
        ]
    )


def small_table() -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    return np.array([[1, 2], [3, MASK_64], [0, 0]], dtype=np.uint64)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
def test_lane_vectors_of_the_format_page(kernels: Kernels) -> None:
    for units, first_index, expected in LANE_VECTORS:
        found = lanes_of(units, first_index=first_index, kernels=kernels)
        assert found == expected == plain_lanes(units.tolist(), first_index)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
def test_lanes_are_the_sum_over_any_partition(kernels: Kernels) -> None:
    units = np.random.default_rng(1).integers(0, 65536, 100_000, dtype=np.uint16)
    whole = lanes_of(units, first_index=17, kernels=kernels)
    total = NO_LANES
    for start, end in ((70_000, 100_000), (0, 1), (1, 65_537), (65_537, 70_000)):
        share = lanes_of(units[start:end], first_index=17 + start, kernels=kernels)
        total = add_lanes(total, share)
    assert total == whole


def test_any_single_change_moves_both_lanes() -> None:
    units = np.zeros(64, dtype=np.uint16)
    before = lanes_of(units)
    for place in range(64):
        for bit in range(16):
            changed = units.copy()
            changed[place] ^= 1 << bit
            first, second = subtract_lanes(lanes_of(changed), before)
            assert first != 0
            assert second != 0


def test_swapped_elements_are_another_state() -> None:
    assert lanes_of(np.array([1, 2], dtype=np.uint8)) != lanes_of(np.array([2, 1], dtype=np.uint8))


def test_bits_count_and_width_does_not() -> None:
    narrow, wide = np.array([200], dtype=np.uint8), np.array([200], dtype=np.uint64)
    assert lanes_of(narrow) == lanes_of(wide)


@pytest.mark.parametrize("kernels", KERNELS, ids=lambda kernels: kernels.name)
def test_each_member_of_a_bundle_counts_from_zero(kernels: Kernels) -> None:
    units = np.random.default_rng(2).integers(0, 65536, 1000, dtype=np.uint16)
    starts = np.array([0, 1, 500, 1000])
    found = member_lanes(units, starts, kernels=kernels)
    expected = [lanes_of(units[0:1]), lanes_of(units[1:500]), lanes_of(units[500:1000])]
    assert [tuple(row) for row in found.tolist()] == expected


def test_the_digest_is_sha256_over_the_documented_bytes() -> None:
    # Written out here a second time, from the format page.
    head = DIGEST_MAGIC + (3).to_bytes(8, "little")
    for name, dtype, shape in (
        ("a.bias", "F32", ()),
        ("b.weight", "BF16", (1, 3)),
        ("é", "U8", (0,)),
    ):
        raw = name.encode()
        head += len(raw).to_bytes(2, "little") + raw + bytes([len(dtype)]) + dtype.encode()
        head += bytes([len(shape)]) + b"".join(dim.to_bytes(8, "little") for dim in shape)
    lanes = b"".join(int(lane).to_bytes(8, "little") for lane in small_table().reshape(-1))
    expected = hashlib.sha256(head + lanes).hexdigest()
    assert state_digest(small_schema(), small_table()) == expected
    assert expected == "2d532f6a9dedcfe928faf29d504c26eae876d70c083de7bd4d6fa3ab56d904e3"


def test_the_digest_of_no_tensors_has_a_value() -> None:
    empty = np.zeros((0, 2), dtype=np.uint64)
    assert state_digest(Schema.build([]), empty) == EMPTY_DIGEST


@pytest.mark.parametrize(
    "other",
    [
        TensorSpec("b.weighs", DType.BF16, (1, 3)),
        TensorSpec("b.weight", DType.F16, (1, 3)),
        TensorSpec("b.weight", DType.BF16, (3, 1)),
        TensorSpec("b.weight", DType.BF16, (3,)),
    ],
    ids=lambda spec: f"{spec.name}-{spec.dtype.value}-{spec.shape}",
)
def test_name_dtype_and_shape_are_part_of_the_digest(other: TensorSpec) -> None:
    table = np.array([[1, 2]], dtype=np.uint64)
    schema = Schema.build([TensorSpec("b.weight", DType.BF16, (1, 3))])
    assert state_digest(schema, table) != state_digest(Schema.build([other]), table)


def test_every_lane_is_part_of_the_digest() -> None:
    hasher = StateHasher(small_schema())
    digests = {hasher.digest(small_table())}
    for place in range(6):
        table = small_table()
        table.reshape(-1)[place] ^= np.uint64(1 << 63)
        digests.add(hasher.digest(table))
    assert len(digests) == 7


def test_a_hasher_can_be_used_again_and_reads_any_layout() -> None:
    hasher = StateHasher(small_schema())
    expected = state_digest(small_schema(), small_table())
    assert hasher.digest(small_table()) == expected
    assert hasher.digest(np.asfortranarray(small_table())) == expected


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((2, 2), dtype=np.uint64),
        np.zeros((3, 3), dtype=np.uint64),
        np.zeros(6, dtype=np.uint64),
        np.zeros((3, 2), dtype=np.int64),
    ],
    ids=lambda table: f"{table.dtype}-{table.shape}",
)
def test_a_table_of_another_shape_is_refused(
    table: np.ndarray[tuple[int, ...], np.dtype[np.uint64]],
) -> None:
    with pytest.raises(InputRefusedError, match="digest table"):
        state_digest(small_schema(), table)
