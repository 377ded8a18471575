"""Block hashes: one SHA-256 per 8 MiB, whatever the parts they came in."""

from __future__ import annotations

import hashlib

import pytest

from weightstore.errors import CorruptObjectError, InputRefusedError
from weightstore.format.blocks import (
    BLOCK_SIZE_BYTES,
    BlockHasher,
    FileBlocks,
    block_count,
    blocks_of_range,
    decode_blocks,
    encode_blocks,
)
from weightstore.format.manifest import AnchorFile

DATA = bytes(range(256)) * (BLOCK_SIZE_BYTES // 256) + b"the last block is shorter"
HASHES = tuple(
    hashlib.sha256(block).digest() for block in (DATA[:BLOCK_SIZE_BYTES], DATA[BLOCK_SIZE_BYTES:])
)
BLOCKS = FileBlocks("model.safetensors", len(DATA), HASHES)
FILES = (
    AnchorFile(name="config.json", size_bytes=0, role="asset"),
    AnchorFile(name="model.safetensors", size_bytes=len(DATA), role="weights"),
)


@pytest.mark.parametrize(
    "part_size", [len(DATA), BLOCK_SIZE_BYTES, BLOCK_SIZE_BYTES - 1, 3_000_001]
)
def test_hashes_do_not_depend_on_the_parts(part_size: int) -> None:
    hasher = BlockHasher()
    for start in range(0, len(DATA), part_size):
        hasher.update(memoryview(DATA)[start : start + part_size])
    assert hasher.size_bytes == len(DATA)
    assert tuple(hasher.finish()) == HASHES


def test_a_stream_of_whole_blocks_has_no_empty_last_one() -> None:
    hasher = BlockHasher()
    assert hasher.finish() == []
    hasher.update(b"")
    hasher.update(DATA[:BLOCK_SIZE_BYTES])
    assert hasher.finish() == [HASHES[0]]


def test_blocks_of_ranges() -> None:
    assert block_count(0) == 0
    assert block_count(BLOCK_SIZE_BYTES) == 1
    assert block_count(BLOCK_SIZE_BYTES + 1) == 2
    assert list(blocks_of_range(0, 0)) == []
    assert list(blocks_of_range(BLOCK_SIZE_BYTES - 1, 1)) == [0]
    assert list(blocks_of_range(BLOCK_SIZE_BYTES - 1, 2)) == [0, 1]
    assert list(blocks_of_range(BLOCK_SIZE_BYTES, BLOCK_SIZE_BYTES)) == [1]


def test_a_block_is_checked_whole() -> None:
    BLOCKS.check_block(0, DATA[:BLOCK_SIZE_BYTES])
    BLOCKS.check_block(1, DATA[BLOCK_SIZE_BYTES:])
    damaged = bytearray(DATA[BLOCK_SIZE_BYTES:])
    damaged[3] ^= 1
    for block, data in [
        (1, bytes(damaged)),
        (1, DATA[BLOCK_SIZE_BYTES:-1]),
        (0, DATA[BLOCK_SIZE_BYTES:]),
    ]:
        with pytest.raises(CorruptObjectError, match=rf"block {block} of 'model\.safetensors'"):
            BLOCKS.check_block(block, data)


def test_the_sidecar_survives_its_bytes() -> None:
    empty = FileBlocks("config.json", 0, ())
    data = encode_blocks([empty, BLOCKS])
    assert len(data) == 24 + 2 * 8 + 2 * 32
    assert decode_blocks(data, FILES) == (empty, BLOCKS)
    assert decode_blocks(encode_blocks([]), []) == ()


def test_a_sidecar_of_other_files_or_with_a_damaged_head_is_refused() -> None:
    data = encode_blocks([FileBlocks("config.json", 0, ()), BLOCKS])
    for place in range(40):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(CorruptObjectError):
            decode_blocks(bytes(damaged), FILES)
    for cut in (b"", data[:-1], data + b"\0"):
        with pytest.raises(CorruptObjectError, match="bytes"):
            decode_blocks(cut, FILES)
    with pytest.raises(CorruptObjectError):
        decode_blocks(data, FILES[::-1])
    with pytest.raises(CorruptObjectError):
        decode_blocks(data, FILES[:1])


def test_the_number_of_hashes_is_checked_when_written() -> None:
    with pytest.raises(InputRefusedError, match="block hashes"):
        FileBlocks("x", 1, ())
