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
assert 1 << int(_OFFSET_BITS) == WINDOW_UNIT_COUNT


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
        strange_count = scatter_compare(
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
) -> None:
    """Read the bits at a change's places, and say what they become.

    A loop of its own for each output: only the first waits for memory, the others are
    vectorised.
    """
    positions, words, combine = change
    offsets, old_bits, new_bits = found
    count = np.uint64(positions.size)
    for index in range(count):
        old_bits[index] = units[first + np.uint64(positions[index])]
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
) -> np.uint64:
    """See `LiveKernels.scatter_compare`."""
    block_starts, block_firsts = windows
    strange_count = _ZERO
    for block in range(np.uint64(block_starts.size)):
        start = np.uint64(block_starts[block])
        first = np.uint64(block_firsts[block])
        for index in range(first, np.uint64(block_firsts[block + _ONE])):
            place = start + np.uint64(offsets[index])
            held = units[place]
            is_old = np.uint64(held == old_bits[index])
            is_new = np.uint64(held == new_bits[index]) & redo
            strange_count += _ONE - (is_old | is_new)
            units[place] = new_bits[index]
    return strange_count


def _read(array: NDArray[Any]) -> NDArray[Any]:
    """Give a read-only view."""
    view = array.view()
    view.setflags(write=False)
    return view
