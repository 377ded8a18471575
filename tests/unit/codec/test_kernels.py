"""Each kernel against what it should give, NumPy and numba alike, at the hard places."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.kernels import (
    NUMPY_UNIT_COUNT_MAX,
    STORE_SLACK_COUNT,
    Kernels,
    SampleRow,
    UlpFault,
    kernels_for,
    load_kernels,
    numpy_kernels,
)
from weightstore.codec.numba_kernels import NumbaKernels
from weightstore.codec.numpy_kernels import NumpyKernels

KERNELS: list[Kernels] = [NumpyKernels(), NumbaKernels()]
WIDTHS = [1, 2, 4, 8]
GAP_EDGES = [0, 1, 253, 254, 255, 256, 509, 510, 511, 65534, 65535, 65536, 131070, 131071]


@pytest.fixture(params=KERNELS, ids=lambda kernels: kernels.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    chosen: Kernels = request.param
    return chosen


def positions_of(gaps: list[int]) -> NDArray[np.uint32]:
    return (np.cumsum(np.array(gaps) + 1) - 1).astype(np.uint32)


def plain_gaps(gaps: list[int], skip: int) -> list[int]:
    said = []
    for gap in gaps:
        said += [skip] * (gap // skip) + [gap % skip]
    return said


def top(width: int) -> int:
    return int(256**width - 1)


def plain_ulp(differences: list[int], width: int) -> tuple[list[int], list[int], list[int]]:
    codes, escapes, wide = [], [], []
    for difference in differences:
        signed = difference if difference <= top(width) // 2 else difference - top(width) - 1
        if signed in {1, -1}:
            codes.append(0 if signed == 1 else 1)
            continue
        codes.append(2)
        zigzag = 2 * signed if signed >= 0 else -2 * signed - 1
        escapes.append(min(zigzag, 255))
        if zigzag >= 255:
            wide.append(difference)
    codes += [0] * (-len(codes) % 4)
    packed = [
        sum(code << 2 * at for at, code in enumerate(codes[i : i + 4]))
        for i in range(0, len(codes), 4)
    ]
    return packed, escapes, wide


def ulp_differences(width: int) -> list[int]:
    """Every difference of one byte, and the edges of wider ones; never 0."""
    near = [1, 2, 3, 63, 64, 126, 127, 128, 129, 130, 255, 256, 257, 32767, 32768, 32769]
    both = [value for step in near for value in (step, -step)]
    return [value % (top(width) + 1) for value in both if value % (top(width) + 1)] + [
        top(width) // 2 + 1
    ]


def pack_ulp(kernels: Kernels, differences: list[int], width: int) -> tuple[Any, Any, Any]:
    dtype = np.dtype(f"u{width}")
    old = np.random.default_rng(1).integers(
        0, top(width), len(differences), dtype=dtype, endpoint=True
    )
    new = old + np.array(differences, dtype=dtype)
    codes = np.full(-(-new.size // 4), 255, dtype=np.uint8)
    escapes = np.empty(new.size + STORE_SLACK_COUNT, dtype=np.uint8)
    wide = np.empty(new.size + STORE_SLACK_COUNT, dtype=dtype)
    escape_count, wide_count = kernels.pack_ulp(old, new, codes, escapes, wide)
    return codes, escapes[:escape_count], wide[:wide_count]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 70_000])
def test_find_changes_finds_each_kind_of_pattern(kernels: Kernels, width: int, count: int) -> None:
    dtype = np.dtype(f"u{width}")
    rng = np.random.default_rng(count)
    old = rng.integers(0, top(width), count, dtype=dtype, endpoint=True)
    masks = {
        "nothing": np.zeros(count, dtype=bool),
        "everything": np.ones(count, dtype=bool),
        "first": np.arange(count) == 0,
        "last": np.arange(count) == count - 1,
        "some": rng.random(count) < 0.02,
        "most": rng.random(count) < 0.9,
    }
    for mask in masks.values():
        new = old ^ mask.astype(dtype) * dtype.type(1 << 8 * width - 1)
        positions = np.empty(count + STORE_SLACK_COUNT, dtype=np.uint32)
        before, after = np.empty((2, count + STORE_SLACK_COUNT), dtype=dtype)
        found = kernels.find_changes(old, new, positions, before, after)
        expected = np.flatnonzero(mask)
        assert np.array_equal(positions[:found], expected)
        assert np.array_equal(before[:found], old[expected])
        assert np.array_equal(after[:found], new[expected])


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_find_changes_reads_arrays_that_begin_anywhere(kernels: Kernels, offset: int) -> None:
    raw = np.arange(4096 + offset, dtype=np.uint8).tobytes()
    old = np.frombuffer(raw, dtype=np.uint16, offset=offset, count=2048)
    new = old.copy()
    new[[5, 2047]] += 1
    positions = np.empty(2048 + STORE_SLACK_COUNT, dtype=np.uint32)
    before, after = np.empty((2, 2048 + STORE_SLACK_COUNT), dtype=np.uint16)
    assert kernels.find_changes(old, new, positions, before, after) == 2
    assert positions[:2].tolist() == [5, 2047]


@pytest.mark.parametrize("skip", [255, 65535])
def test_gaps_say_what_the_format_says_and_come_back(kernels: Kernels, skip: int) -> None:
    positions = positions_of(GAP_EDGES)
    gaps: NDArray[Any]
    if skip == 255:
        gaps = np.empty(positions.size + int(positions[-1]) // 255 + STORE_SLACK_COUNT, np.uint8)
        size = kernels.pack_gap_bytes(positions, gaps)
    else:
        gaps = np.empty(positions.size + int(positions[-1]) // 65535 + STORE_SLACK_COUNT, np.uint16)
        size = kernels.pack_gap_words(positions, gaps)
    assert gaps[:size].tolist() == plain_gaps(GAP_EDGES, skip)
    back = np.empty(size + 1, dtype=np.uint32)
    unpack = kernels.unpack_gap_bytes if skip == 255 else kernels.unpack_gap_words
    count, end = unpack(gaps[:size], back)
    assert np.array_equal(back[:count], positions)
    assert end == int(positions[-1]) + 1


def test_gaps_that_run_past_32_bits_give_their_true_end(kernels: Kernels) -> None:
    gaps = np.full(70_000, 65535, dtype=np.uint16)
    gaps[-1] = 0
    count, end = kernels.unpack_gap_words(gaps, np.empty(gaps.size + 1, dtype=np.uint32))
    assert (count, end) == (1, 69_999 * 65535 + 1)


@pytest.mark.parametrize("width", WIDTHS)
def test_ulp_codes_say_what_the_format_says_and_come_back(kernels: Kernels, width: int) -> None:
    differences = ulp_differences(width)
    for count in range(1, len(differences) + 1):
        codes, escapes, wide = pack_ulp(kernels, differences[:count], width)
        assert (codes.tolist(), escapes.tolist(), wide.tolist()) == plain_ulp(
            differences[:count], width
        )
        back = np.empty(count, dtype=f"u{width}")
        assert kernels.unpack_ulp(codes, escapes, wide, back) is UlpFault.NONE
        assert back.tolist() == differences[:count]


@pytest.mark.parametrize("width", WIDTHS)
def test_ulp_without_escapes_comes_back(kernels: Kernels, width: int) -> None:
    differences = [1, top(width), top(width), 1, 1, top(width), 1]
    for count in range(1, 8):
        codes, escapes, wide = pack_ulp(kernels, differences[:count], width)
        assert escapes.size == wide.size == 0
        back = np.empty(count, dtype=f"u{width}")
        assert kernels.unpack_ulp(codes, escapes, wide, back) is UlpFault.NONE
        assert back.tolist() == differences[:count]


@pytest.mark.parametrize(
    ("codes", "escapes", "wide", "fault"),
    [
        ([0b11], [], [], UlpFault.RESERVED_CODE),
        ([0b1100], [], [], UlpFault.RESERVED_CODE),
        ([0b010000], [], [], UlpFault.PADDING),
        ([0b100000], [], [], UlpFault.PADDING),
        ([0b10], [], [], UlpFault.ESCAPE_COUNT),
        ([0b00], [3], [], UlpFault.ESCAPE_COUNT),
        ([0b10], [3, 3], [], UlpFault.ESCAPE_COUNT),
        ([0b10], [255], [], UlpFault.WIDE_COUNT),
        ([0b10], [254], [400], UlpFault.WIDE_COUNT),
        ([0b10], [0], [], UlpFault.SMALL_ESCAPE),
        ([0b10], [1], [], UlpFault.SMALL_ESCAPE),
        ([0b10], [2], [], UlpFault.SMALL_ESCAPE),
        ([0b10], [255], [127], UlpFault.SMALL_WIDE),
        ([0b10], [255], [65536 - 127], UlpFault.SMALL_WIDE),
        ([0b10], [255], [0], UlpFault.SMALL_WIDE),
        ([0b10], [255], [65536 - 128], UlpFault.NONE),
        ([0b10], [255], [128], UlpFault.NONE),
    ],
)
def test_ulp_streams_that_contradict_each_other_are_named(
    kernels: Kernels, codes: list[int], escapes: list[int], wide: list[int], fault: UlpFault
) -> None:
    back = np.empty(2, dtype=np.uint16)
    found = kernels.unpack_ulp(
        np.array(codes, dtype=np.uint8),
        np.array(escapes, dtype=np.uint8),
        np.array(wide, dtype=np.uint16),
        back,
    )
    assert found is fault


@pytest.mark.parametrize("width", WIDTHS)
def test_planes_hold_the_lowest_bytes_first_and_come_back(kernels: Kernels, width: int) -> None:
    words = np.random.default_rng(3).integers(0, top(width), 1001, dtype=f"u{width}", endpoint=True)
    planes = np.empty(words.nbytes, dtype=np.uint8)
    kernels.split_planes(words, planes)
    for plane in range(width):
        expected = [(int(word) >> 8 * plane) & 255 for word in words]
        assert planes[plane * words.size : (plane + 1) * words.size].tolist() == expected
    back = np.empty_like(words)
    kernels.join_planes(planes, back)
    assert np.array_equal(back, words)


@pytest.mark.parametrize("width", WIDTHS)
def test_zigzag_numbers_differences_by_size_and_comes_back(kernels: Kernels, width: int) -> None:
    steps = [0, -1, 1, -2, 2, -127, 127, -128, top(width) // 2]
    old = np.full(len(steps), 5, dtype=f"u{width}")
    new = np.array([(5 + step) % (top(width) + 1) for step in steps], dtype=f"u{width}")
    words = np.empty_like(new)
    kernels.pack_zigzag(old, new, words)
    assert words.tolist() == [2 * step if step >= 0 else -2 * step - 1 for step in steps]
    kernels.unpack_zigzag(words)
    assert np.array_equal(old + words, new)


@pytest.mark.parametrize("width", WIDTHS)
def test_scatter_undoes_gather_and_touches_nothing_else(kernels: Kernels, width: int) -> None:
    target = np.arange(1000, dtype=f"u{width}")
    positions = np.array([0, 7, 998, 999], dtype=np.uint32)
    bits = np.empty(4, dtype=target.dtype)
    kernels.gather(target, positions, bits)
    assert bits.tolist() == target[positions].tolist()
    changed = target.copy()
    kernels.scatter(changed, positions, ~bits)
    assert np.flatnonzero(changed != target).tolist() == positions.tolist()
    kernels.scatter(changed, positions, bits)
    assert np.array_equal(changed, target)


@pytest.mark.parametrize("width", WIDTHS)
def test_lane_deltas_are_the_sums_after_minus_before(kernels: Kernels, width: int) -> None:
    rng = np.random.default_rng(4)
    old = rng.integers(0, top(width), 1000, dtype=f"u{width}", endpoint=True)
    new = old.copy()
    positions = np.array([0, 99, 100, 500, 999], dtype=np.uint32)
    new[positions] += np.array([1, 2, 3, 4, 5], dtype=new.dtype)
    starts = np.array([0, 100, 101, 400, 1000])
    offsets = (-starts[:-1]).view(np.uint64)
    before, after = np.empty((2, 4, 2), dtype=np.uint64)
    kernels.lane_sums(old, starts, offsets, before)
    kernels.lane_sums(new, starts, offsets, after)
    deltas = np.empty((4, 2), dtype=np.uint64)
    bounds = np.array([0, 2, 3, 3, 5])
    kernels.lane_deltas((positions, old[positions], new[positions]), bounds, offsets, deltas)
    assert np.array_equal(deltas, after - before)
    assert deltas[2].tolist() == [0, 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_samples_and_entropies_agree_between_kernels(width: int) -> None:
    rng = np.random.default_rng(5)
    old = rng.integers(0, top(width), 3000, dtype=f"u{width}", endpoint=True)
    new = old + rng.choice(np.array(ulp_differences(width), dtype=old.dtype), old.size)
    found = []
    for kernels in KERNELS:
        histograms = np.zeros((SampleRow.PLANES + 3 * width, 256), dtype=np.int64)
        kernels.sample_changes(old, new, 7, histograms)
        assert histograms[SampleRow.CODES].sum() == len(range(0, 3000, 7))
        table = np.arange(30_000, dtype=np.int64) ** 2
        entropies = np.empty((len(histograms), 3), dtype=np.int64)
        kernels.row_entropies(histograms, table, entropies)
        found.append((histograms, entropies))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


def test_many_units_take_numba() -> None:
    assert numpy_kernels().name == "numpy"
    assert kernels_for(NUMPY_UNIT_COUNT_MAX + 1).name == load_kernels().name == "numba"


@pytest.mark.parametrize(
    "before", ["sys.modules['numba'] = None", "import numba; numba.config.DISABLE_JIT = 1"]
)
def test_without_numba_the_numpy_kernels_take_over(before: str) -> None:
    program = (
        f"import sys; {before}\n"
        "from weightstore.codec.kernels import load_kernels\n"
        "sys.exit(load_kernels().name != 'numpy')"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_numba_is_not_imported_for_small_pieces() -> None:
    program = (
        "import sys, numpy as np\n"
        "from weightstore.codec.codec import PieceCodec\n"
        "old = np.zeros(1000, dtype=np.uint16)\n"
        "PieceCodec().worker().encode(old, old + np.uint16(1))\n"
        "sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
