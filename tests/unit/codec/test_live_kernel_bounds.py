"""No loop over live memory reads or writes a unit beyond it: pages beside it end the process."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from weightstore.codec.blocked import WINDOW_UNIT_COUNT, BlockedChange
from weightstore.codec.lanes import Units
from weightstore.codec.numba_live import NumbaLiveKernels
from weightstore.codec.numpy_live import NumpyLiveKernels
from weightstore.codec.sparse import Combine, SparseChange

LINE_SIZE_BYTES = 64
SEGMENT_SIZE_BYTES = 1 << 14
"""Of the compiled loops, which read so much of a window at a time."""
SIZE_BYTES = 20 * WINDOW_UNIT_COUNT
PROT_NONE = 0
TIMEOUT_S = 100.0


def guarded() -> Units:
    """Bytes between two pages that nobody may touch; they live as long as the process."""
    whole = np.frombuffer(mmap.mmap(-1, SIZE_BYTES + 2 * mmap.PAGESIZE), np.uint8)
    change_rights = ctypes.CDLL(None, use_errno=True).mprotect
    for start in (0, mmap.PAGESIZE + SIZE_BYTES):
        page = ctypes.c_void_p(whole.ctypes.data + start)
        assert change_rights(page, ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE) == 0
    return whole[mmap.PAGESIZE : -mmap.PAGESIZE]


def memories(inside: Units, dtype: type[np.unsignedinteger]) -> Iterator[Units]:
    """Memories that begin after the one page or end before the other, to the byte."""
    width = np.dtype(dtype).itemsize
    segment = SEGMENT_SIZE_BYTES // width
    window = WINDOW_UNIT_COUNT
    for count in (1, 7, segment - 1, segment, segment + 3, window - 1, window, window + 1):
        yield inside[: count * width].view(dtype)
        yield inside[-count * width :].view(dtype)
    for count in (window + segment + 5, 2 * window + 2 * segment - 9):
        yield inside[: count * width].view(dtype)
        yield inside[-count * width :].view(dtype)


def steps(width: int) -> list[int]:
    """Units from change to change: with each of the loops, one in so many lines and in a line."""
    line = LINE_SIZE_BYTES // width
    return [8 * line, 3 * line, 3 * line // 2, line + 1, line // 2, 1]


def places_of(count: int, step: int) -> np.ndarray:
    """The last unit is among them: all of the memory is read before it is written."""
    return np.append(np.arange(0, count - 1, step), count - 1)


def check_scatter(memory: Units, step: int) -> None:
    places = places_of(memory.size, step)
    change = BlockedChange.of(places, memory[places], ~memory[places])
    expected = memory.copy()
    # One that holds something else.
    expected[places[0]] ^= memory.dtype.type(1)
    memory[places[0]] = expected[places[0]]
    for redo, strange_count in ((False, 1), (True, 0)):
        assert NumbaLiveKernels().scatter_compare(memory, change, redo=redo) == strange_count
        NumpyLiveKernels().scatter_compare(expected, change, redo=redo)
        assert np.array_equal(memory, expected)


def check_follow(memory: Units, step: int, first: int) -> None:
    positions = places_of(memory.size - first, step).astype(np.uint32)
    # From the start of the run, and from its middle.
    for rising in (positions, positions[positions.size // 2 :]):
        words = np.arange(rising.size).astype(memory.dtype)
        change = SparseChange(rising, words, Combine.ADD)
        found = NumbaLiveKernels().follow(memory, first, change)
        assert np.array_equal(found.places(), rising.astype(np.int64) + first)
        assert np.array_equal(found.old_bits, memory[found.places()])
        assert np.array_equal(found.new_bits, found.old_bits + words)


def check_all() -> None:
    """Say each case before it may be the last one."""
    inside = guarded()
    inside[:] = np.random.default_rng(7).integers(0, 256, inside.size, np.uint8)
    for dtype in (np.uint8, np.uint16, np.uint32, np.uint64):
        for index, memory in enumerate(memories(inside, dtype)):
            side = ("after", "before")[index % 2]
            for step in steps(memory.itemsize):
                case = f"{memory.size} of {memory.dtype} {side} a page, each {step}\n"
                sys.stderr.write(f"scatter {case}")
                check_scatter(memory, step)
                for first in (0, memory.size // 3, memory.size - 1):
                    sys.stderr.write(f"follow from {first}: {case}")
                    check_follow(memory, step, first)


def test_nothing_beside_the_memory_is_touched() -> None:
    # A process of its own, for a read beyond the memory ends it.
    program = [sys.executable, __file__]
    ended = subprocess.run(program, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:].decode()


if __name__ == "__main__":
    check_all()
