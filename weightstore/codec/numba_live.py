"""The loops over live memory compiled by numba. Import this module late: it imports numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import WINDOW_UNIT_COUNT, BlockedChange
from weightstore.codec.lanes import Units
from weightstore.codec.numba_compile import compiled
from weightstore.codec.sparse import Combine, SparseChange

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
# Numbers of this file, not of the modules that they agree with: machine code is kept until this
# file changes.
_OFFSET_BITS = np.uint64(16)
_ADD, _XOR, _SET = np.uint64(0), np.uint64(1), np.uint64(2)
_COMBINE = {Combine.ADD: _ADD, Combine.XOR: _XOR, Combine.SET: _SET}
_WINDOW = np.uint64(1 << 16)
assert 1 << int(_OFFSET_BITS) == int(_WINDOW) == WINDOW_UNIT_COUNT
_LINE_SIZE_BYTES = np.uint64(64)
_SEGMENT_SIZE_BYTES = np.uint64(1 << 14)
"""Half of a first-level cache."""
_SPARSE = np.uint64(4)
_SPARSE_FOR_READS = np.uint64(2)
"""With fewer changes than one in so many lines, reading all lines costs more than it saves."""


class NumbaLiveKernels:
    """`LiveKernels` in numba. Arrays that are only read go in as read-only views."""

    name = "numba"

    def gather(self, units: Units, places: NDArray[np.int64], bits: Units) -> None:
        """See `LiveKernels`."""
        gather(_read(units), _read(places), bits)

    def follow(self, units: Units, first: int, change: SparseChange) -> BlockedChange:
        """See `LiveKernels`."""
        positions, count = change.positions, change.positions.size
        first_window, last_window = (
            (first + int(positions[end])) // WINDOW_UNIT_COUNT for end in (0, -1)
        )
        block_count_max = min(count, last_window - first_window + 1)
        found = BlockedChange(
            np.empty(block_count_max, np.int64),
            np.empty(block_count_max + 1, np.int64),
            np.empty(count, np.uint16),
            np.empty(count, units.dtype),
            np.empty(count, units.dtype),
        )
        positions = _read(positions)
        start = np.uint64(first)
        follow(
            _read(units),
            start,
            (positions, _read(change.words), _COMBINE[change.combine]),
            (found.offsets, found.old_bits, found.new_bits),
        )
        block_count = int(windows(positions, start, found.block_starts, found.block_firsts))
        if block_count == block_count_max:
            return found
        return BlockedChange(
            found.block_starts[:block_count].copy(),
            found.block_firsts[: block_count + 1].copy(),
            found.offsets,
            found.old_bits,
            found.new_bits,
        )

    def scatter_compare(self, units: Units, change: BlockedChange, *, redo: bool) -> int:
        """See `LiveKernels`."""
        strange_count, _ = scatter_compare(
            units,
            (_read(change.block_starts), _read(change.block_firsts)),
            _read(change.offsets),
            _read(change.old_bits),
            _read(change.new_bits),
            np.uint64(redo),
        )
        return int(strange_count)


@compiled
def gather(units: Units, places: NDArray[np.int64], bits: Units) -> None:
    """See `LiveKernels.gather`."""
    for index in range(np.uint64(places.size)):
        bits[index] = units[np.uint64(places[index])]


@compiled
def follow(
    units: Units,
    first: np.uint64,
    change: tuple[NDArray[np.uint32], Units, np.uint64],
    found: tuple[NDArray[np.uint16], Units, Units],
) -> np.uint64:
    """Read the bits at a change's places, and say what they become.

    A loop of its own for each output: only the first waits for memory, the others are
    vectorised.

    Returns:
        As `gather_run`.
    """
    positions, words, combine = change
    offsets, old_bits, new_bits = found
    count = np.uint64(positions.size)
    seen = gather_run(units, first, positions, old_bits)
    for index in range(count):
        # The low 16 bits: a store into a narrower integer keeps exactly those.
        offsets[index] = first + np.uint64(positions[index])
    if combine == _ADD:
        for index in range(count):
            new_bits[index] = old_bits[index] + words[index]
    elif combine == _XOR:
        for index in range(count):
            new_bits[index] = old_bits[index] ^ words[index]
    else:
        for index in range(count):
            new_bits[index] = words[index]
    return seen


@compiled
def gather_run(
    units: Units, first: np.uint64, positions: NDArray[np.uint32], bits: Units
) -> np.uint64:
    """Read the bits at positions that rise.

    Where at least every second cache line has one, all lines between them are read in order
    first; see `scatter_compare`. Reading here and there waits less than writing.

    Returns:
        Bits of what was read, so that no compiler leaves out the reads.
    """
    count = np.uint64(positions.size)
    line = _LINE_SIZE_BYTES // np.uint64(units.itemsize)
    segment = _SEGMENT_SIZE_BYTES // np.uint64(units.itemsize)
    done, seen = _ZERO, _ZERO
    start = np.uint64(positions[done])
    last = np.uint64(positions[count - _ONE]) + _ONE
    length = last - start
    if count * line * _SPARSE_FOR_READS < length or count * line > length:
        for index in range(count):
            bits[index] = units[first + np.uint64(positions[index])]
        return seen
    end = start
    while done < count:
        seen |= bring_near(units, first + end, first + min(end + segment, last))
        end += segment
        while done < count and np.uint64(positions[done]) < end:
            bits[done] = units[first + np.uint64(positions[done])]
            done += _ONE
    return seen


@compiled
def windows(
    positions: NDArray[np.uint32],
    first: np.uint64,
    block_starts: NDArray[np.int64],
    block_firsts: NDArray[np.int64],
) -> np.uint64:
    """Find where the changes of each window begin; gives how many windows have some."""
    count = np.uint64(positions.size)
    block_count = _ZERO
    index = _ZERO
    while index < count:
        start = ((first + np.uint64(positions[index])) >> _OFFSET_BITS) << _OFFSET_BITS
        block_starts[block_count] = start
        block_firsts[block_count] = index
        block_count += _ONE
        # The first change after the window lies in (index, low].
        end = start + (_ONE << _OFFSET_BITS)
        low = index + _ONE
        high = min(count, index + (_ONE << _OFFSET_BITS))
        while low < high:
            middle = (low + high) >> _ONE
            is_before = first + np.uint64(positions[middle]) < end
            low, high = (middle + _ONE, high) if is_before else (low, middle)
        index = low
    block_firsts[block_count] = count
    return block_count


@compiled
def scatter_compare(
    units: Units,
    windows: tuple[NDArray[np.int64], NDArray[np.int64]],
    offsets: NDArray[np.uint16],
    old_bits: Units,
    new_bits: Units,
    redo: np.uint64,
) -> tuple[np.uint64, np.uint64]:
    """See `LiveKernels.scatter_compare`.

    Where from every fourth to every cache line of a window has a change, all of it is read in
    order first, a segment at a time: the processor fetches ahead of reads in order, and waits at
    each line otherwise.

    Returns:
        That number; and bits of what was read, so that no compiler leaves out the reads.
    """
    block_starts, block_firsts = windows
    unit_count = np.uint64(units.size)
    line = _LINE_SIZE_BYTES // np.uint64(units.itemsize)
    segment = _SEGMENT_SIZE_BYTES // np.uint64(units.itemsize)
    strange_count = seen = _ZERO
    for block in range(np.uint64(block_starts.size)):
        start = np.uint64(block_starts[block])
        first = np.uint64(block_firsts[block])
        last = np.uint64(block_firsts[block + _ONE])
        length = min(_WINDOW, unit_count - start)
        if (last - first) * line * _SPARSE < length or (last - first) * line > length:
            for index in range(first, last):
                place = start + np.uint64(offsets[index])
                strange_count += put(units, place, old_bits[index], new_bits[index], redo)
            continue
        done = first
        end = _ZERO
        while done < last:
            seen |= bring_near(units, start + end, start + min(end + segment, length))
            end += segment
            while done < last and np.uint64(offsets[done]) < end:
                place = start + np.uint64(offsets[done])
                strange_count += put(units, place, old_bits[done], new_bits[done], redo)
                done += _ONE
    return strange_count, seen


@compiled
def put(
    units: Units, place: np.uint64, old_bits: np.uint64, new_bits: np.uint64, redo: np.uint64
) -> np.uint64:
    """Write one unit; 1 if it held something unexpected, else 0."""
    held = units[place]
    is_old = np.uint64(held == old_bits)
    is_new = np.uint64(held == new_bits) & redo
    units[place] = new_bits
    return _ONE - (is_old | is_new)


@compiled
def bring_near(units: Units, first: np.uint64, end: np.uint64) -> np.uint64:
    """Bring a run of units near; gives bits that depend on every one of them."""
    seen = units[first]
    for place in range(first, end):
        seen |= units[place]
    return np.uint64(seen)


def _read(array: NDArray[Any]) -> NDArray[Any]:
    """Give a read-only view."""
    view = array.view()
    view.setflags(write=False)
    return view
