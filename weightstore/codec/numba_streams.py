"""Gaps, codes and byte planes as compiled loops.

Indices are unsigned: with a signed one numba tests for negative values, which keeps loops
from being vectorised. Where a symbol is a coin flip it is computed, not branched on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.kernels import (
    CODE_DOWN,
    CODE_ESCAPE,
    CODE_UP,
    CODES_PER_BYTE,
    ESCAPE_WIDE,
    ZIGZAG_DOWN,
    ZIGZAG_UP,
    UlpFault,
)
from weightstore.codec.lanes import Units
from weightstore.codec.numba_bits import lowest_bit
from weightstore.codec.numba_compile import compiled

Bytes = NDArray[np.uint8]
Positions = NDArray[np.uint32]
Count = np.uint64

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_THREE = np.uint64(3)
_FOUR = np.uint64(4)
_SIX = np.uint64(6)
_BYTE = np.uint64(8)
_WORD_SIZE = np.uint64(8)
_ALL_LOW_BITS = np.uint64(0x5555555555555555)
_WIDE = np.uint64(ESCAPE_WIDE)
_UP = np.uint64(ZIGZAG_UP)
_DOWN = np.uint64(ZIGZAG_DOWN)
_PER_BYTE = np.uint64(CODES_PER_BYTE)
_CODE_BITS = np.uint64(3)
_LAST_BIT = np.uint64(63)
_LOW_BITS = np.uint64(0x55)
_PAIR_BITS = np.uint64(0x11)
_NIBBLE = np.uint64(0x0F)
_FAULT_RESERVED = int(UlpFault.RESERVED_CODE)
_FAULT_ESCAPES = int(UlpFault.ESCAPE_COUNT)
_FAULT_WIDE = int(UlpFault.WIDE_COUNT)
_FAULT_SMALL_ESCAPE = int(UlpFault.SMALL_ESCAPE)
_FAULT_SMALL_WIDE = int(UlpFault.SMALL_WIDE)
_FAULT_PADDING = int(UlpFault.PADDING)
assert (CODE_UP, CODE_DOWN, CODE_ESCAPE) == (0, 1, 2), "codes are computed, not looked up"


@compiled
def pack_gaps(positions: Positions, gaps: Units, skip: Count) -> Count:
    """See `Kernels.pack_gap_bytes` and `Kernels.pack_gap_words`."""
    size = _ZERO
    following = _ZERO
    for index in range(np.uint64(positions.size)):
        position = np.uint64(positions[index])
        gap = position - following
        following = position + _ONE
        while gap >= skip:
            gaps[size] = skip
            size += _ONE
            gap -= skip
        gaps[size] = gap
        size += _ONE
    return size


@compiled
def unpack_gaps(gaps: Units, positions: Positions, skip: Count) -> tuple[Count, Count]:
    """See `Kernels.unpack_gap_bytes` and `Kernels.unpack_gap_words`."""
    count = _ZERO
    end = _ZERO
    for index in range(np.uint64(gaps.size)):
        gap = np.uint64(gaps[index])
        is_element = np.uint64(gap != skip)
        positions[count] = end + gap
        end += gap + is_element
        count += is_element
    return count, end


@compiled
def pack_ulp(
    old_bits: Units, new_bits: Units, codes: Bytes, escapes: Bytes, wide: Units
) -> tuple[Count, Count]:
    """See `Kernels.pack_ulp`.

    The first loop leaves the clipped zigzags of all units in `escapes`; the last one moves
    those that are escapes to its front.
    """
    count = np.uint64(new_bits.size)
    sign_shift = np.uint64(new_bits.itemsize * 8 - 1)
    width_mask = ~_ZERO >> (_LAST_BIT - sign_shift)
    for index in range(count):
        difference = (np.uint64(new_bits[index]) - np.uint64(old_bits[index])) & width_mask
        zigzag = ((difference << _ONE) ^ (_ZERO - (difference >> sign_shift))) & width_mask
        escapes[index] = min(zigzag, _WIDE)
    for padding in range(_PER_BYTE):
        escapes[count + padding] = _UP
    for place in range(np.uint64(codes.size)):
        packed = _ZERO
        for lane in range(_PER_BYTE):
            clipped = escapes[place * _PER_BYTE + lane]
            code = _TWO - _TWO * np.uint64(clipped == _UP) - np.uint64(clipped == _DOWN)
            packed |= code << (lane * _TWO)
        codes[place] = packed
    escape_count = _ZERO
    wide_count = _ZERO
    for index in range(count):
        clipped = escapes[index]
        escapes[escape_count] = clipped
        escape_count += np.uint64(clipped > _UP)
        wide[wide_count] = new_bits[index] - old_bits[index]
        wide_count += np.uint64(clipped == _WIDE)
    return escape_count, wide_count


@compiled
def unpack_ulp(codes: Bytes, escapes: Bytes, wide: Units, differences: Units) -> int:
    """See `Kernels.unpack_ulp`; gives the value of an `UlpFault`."""
    fault = _codes_fault(codes, np.uint64(differences.size), np.uint64(escapes.size))
    if fault == 0:
        fault = _escapes_fault(escapes, wide)
    if fault != 0:
        return fault
    _steps_of_codes(codes, differences)
    if escapes.size:
        _put_escapes(codes, escapes, wide, differences)
    return 0


@compiled
def _steps_of_codes(codes: Bytes, differences: Units) -> None:
    """Turn code 0 into +1 and code 1 into -1, whatever becomes of the others."""
    count = np.uint64(differences.size)
    for place in range(count >> _TWO):
        packed = np.uint64(codes[place])
        first = place << _TWO
        differences[first] = _ONE - ((packed & _CODE_BITS) << _ONE)
        differences[first + _ONE] = _ONE - (((packed >> _TWO) & _CODE_BITS) << _ONE)
        differences[first + _TWO] = _ONE - (((packed >> _FOUR) & _CODE_BITS) << _ONE)
        differences[first + _THREE] = _ONE - ((packed >> _SIX) << _ONE)
    for index in range(count & ~_THREE, count):
        code = (np.uint64(codes[index >> _TWO]) >> ((index & _THREE) << _ONE)) & _CODE_BITS
        differences[index] = _ONE - (code << _ONE)


@compiled
def _put_escapes(codes: Bytes, escapes: Bytes, wide: Units, differences: Units) -> None:
    """Overwrite the differences that are escapes; their number was checked before."""
    size = np.uint64(codes.size)
    escape_count = _ZERO
    wide_count = _ZERO
    start = _ZERO
    while start < size:
        # 32 codes in a word: escapes are the set bits, and rare.
        word = _ZERO
        for place in range(min(_WORD_SIZE, size - start)):
            word |= np.uint64(codes[start + place]) << (place << _THREE)
        word = (word >> _ONE) & _ALL_LOW_BITS
        while word != _ZERO:
            index = (start << _TWO) + (lowest_bit(word) >> _ONE)
            word &= word - _ONE
            zigzag = np.uint64(escapes[escape_count])
            escape_count += _ONE
            if zigzag == _WIDE:
                differences[index] = wide[wide_count]
                wide_count += _ONE
            else:
                differences[index] = (zigzag >> _ONE) ^ (_ZERO - (zigzag & _ONE))
        start += _WORD_SIZE


@compiled
def _codes_fault(codes: Bytes, count: Count, escape_count: Count) -> int:
    """Check two-bit codes: padding, reserved ones, and how many are escapes."""
    used = count & _CODE_BITS
    if used and np.uint64(codes[codes.size - 1]) >> (used * _TWO):
        return _FAULT_PADDING
    reserved = _ZERO
    found = _ZERO
    for place in range(np.uint64(codes.size)):
        low = np.uint64(codes[place]) & _LOW_BITS
        high = (np.uint64(codes[place]) >> _ONE) & _LOW_BITS
        reserved |= low & high
        only_high = high & ~low
        pairs = (only_high & _PAIR_BITS) + ((only_high >> _TWO) & _PAIR_BITS)
        found += (pairs & _NIBBLE) + (pairs >> np.uint64(4))
    if reserved:
        return _FAULT_RESERVED
    return 0 if found == escape_count else _FAULT_ESCAPES


@compiled
def _escapes_fault(escapes: Bytes, wide: Units) -> int:
    """Check escapes and wide words: how many, and that none should have been shorter."""
    wide_count = _ZERO
    small_count = _ZERO
    for index in range(np.uint64(escapes.size)):
        wide_count += np.uint64(escapes[index] == _WIDE)
        small_count += np.uint64(escapes[index] <= _UP)
    if wide_count != np.uint64(wide.size):
        return _FAULT_WIDE
    if small_count:
        return _FAULT_SMALL_ESCAPE
    sign_shift = np.uint64(wide.itemsize * 8 - 1)
    width_mask = ~_ZERO >> (_LAST_BIT - sign_shift)
    for index in range(np.uint64(wide.size)):
        difference = np.uint64(wide[index])
        zigzag = ((difference << _ONE) ^ (_ZERO - (difference >> sign_shift))) & width_mask
        if zigzag < _WIDE:
            return _FAULT_SMALL_WIDE
    return 0


@compiled
def split_planes(words: Units, planes: Bytes) -> None:
    """See `Kernels.split_planes`."""
    count = np.uint64(words.size)
    for plane in range(np.uint64(words.itemsize)):
        begin = plane * count
        shift = plane * _BYTE
        for index in range(count):
            planes[begin + index] = np.uint8(np.uint64(words[index]) >> shift)


@compiled
def join_planes(planes: Bytes, words: Units) -> None:
    """See `Kernels.join_planes`."""
    count = np.uint64(words.size)
    for index in range(count):
        words[index] = planes[index]
    for plane in range(_ONE, np.uint64(words.itemsize)):
        begin = plane * count
        shift = plane * _BYTE
        for index in range(count):
            words[index] |= np.uint64(planes[begin + index]) << shift


@compiled
def pack_zigzag(old: Units, new: Units, words: Units) -> None:
    """See `Kernels.pack_zigzag`."""
    sign_shift = np.uint64(words.itemsize * 8 - 1)
    width_mask = ~_ZERO >> (_LAST_BIT - sign_shift)
    for index in range(np.uint64(words.size)):
        difference = (np.uint64(new[index]) - np.uint64(old[index])) & width_mask
        words[index] = (difference << _ONE) ^ (_ZERO - (difference >> sign_shift))


@compiled
def unpack_zigzag(words: Units) -> None:
    """See `Kernels.unpack_zigzag`."""
    for index in range(np.uint64(words.size)):
        word = np.uint64(words[index])
        words[index] = (word >> _ONE) ^ (_ZERO - (word & _ONE))


@compiled
def gather(target: Units, positions: Positions, bits: Units) -> None:
    """See `Kernels.gather`."""
    for index in range(np.uint64(positions.size)):
        bits[index] = target[positions[index]]


@compiled
def scatter(target: Units, positions: Positions, bits: Units) -> None:
    """See `Kernels.scatter`."""
    for index in range(np.uint64(positions.size)):
        target[positions[index]] = bits[index]
