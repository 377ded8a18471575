"""Delta formats that others have published, written here to compare sizes and speed.

- "u16 gaps + XOR + zstd 1": two-byte distances between changed elements and their XOR words,
  each under zstd level 1. A distance that does not fit is said by 65535, which skips so many
  elements and changes none.
- "byte XOR + zstd 1": the XOR of all bytes, changed or not, under zstd level 1.

Neither counts any header or hash, which ours do: their figures are lower bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import zstandard

from weightstore.layout.tensors import Units

U16_XOR = "u16 gaps + XOR + zstd 1, our writing"
BYTE_XOR = "byte XOR + zstd 1, our writing"
SKIP = 65535


@dataclass(frozen=True, slots=True)
class U16Xor:
    """A change in the first format."""

    gaps: bytes
    words: bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of both frames."""
        return len(self.gaps) + len(self.words)


def encode_u16_xor(old: Units, new: Units) -> U16Xor:
    """Find the changes of 16-bit units and code them."""
    compressor = zstandard.ZstdCompressor(level=1)
    changed = np.bitwise_xor(old, new)
    positions = np.flatnonzero(changed)
    gaps = np.diff(positions, prepend=-1) - 1
    skips = gaps // SKIP
    coded = (gaps - skips * SKIP).astype(np.uint16)
    if skips.any():
        coded = np.insert(coded, np.repeat(np.arange(gaps.size), skips), SKIP)
    return U16Xor(
        compressor.compress(coded.tobytes()), compressor.compress(changed[positions].tobytes())
    )


def apply_u16_xor(delta: U16Xor, target: Units) -> None:
    """Change the target to the new bits. There is nothing to verify in this format."""
    decompressor = zstandard.ZstdDecompressor()
    coded = np.frombuffer(decompressor.decompress(delta.gaps), np.uint16)
    words = np.frombuffer(decompressor.decompress(delta.words), np.uint16)
    is_change = coded != SKIP
    ends = np.cumsum(coded.astype(np.int64) + is_change)
    target[ends[is_change] - 1] ^= words


def encode_byte_xor(old: Units, new: Units) -> bytes:
    """XOR all bytes and compress them."""
    return zstandard.ZstdCompressor(level=1).compress(np.bitwise_xor(old, new).tobytes())


def apply_byte_xor(delta: bytes, target: Units) -> None:
    """Change the target to the new bits."""
    changed = zstandard.ZstdDecompressor().decompress(delta, max_output_size=target.nbytes)
    np.bitwise_xor(target, np.frombuffer(changed, target.dtype), out=target)
