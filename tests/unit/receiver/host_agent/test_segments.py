"""Segments: made once, sealed, and checked by whoever maps them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptObjectError
from weightstore.format.manifest import PackRef
from weightstore.format.pack import PackReader
from weightstore.history.workers import Lender, Workers
from weightstore.layout.schema import Schema
from weightstore.receiver.host_agent.segments import (
    ALIGNMENT_BYTES,
    SegmentLayout,
    SharedPieces,
    make_segment,
    open_segment,
)
from weightstore.settings import Limits
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.piece_feed_contract import packs_of
from weightstore.testing.real_versions import mixed_schema


@dataclass
class Scene:
    schema: Schema
    pack: PackRef
    data: bytes

    @property
    def reader(self) -> PackReader:
        return PackReader(self.data, self.schema, Limits())

    @property
    def layout(self) -> SegmentLayout:
        return SegmentLayout.of(self.pack.size_bytes, self.reader)

    def make(self, thread_count: int = 1) -> int:
        lender: Lender[PieceWorker] = Lender(PieceCodec().worker)
        with Workers(thread_count) as workers:
            return make_segment(self.data, self.reader, self.layout, lender, workers)

    def open(self, file: int) -> tuple[PackReader, SharedPieces]:
        return open_segment(file, self.schema, self.pack, Limits())

    def forged(self, data: bytes, *, seals: int | None = None) -> int:
        """A segment that somebody else might give."""
        file = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(file, data)
        every = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, every if seals is None else seals)
        return file

    def content(self) -> bytes:
        file = self.make()
        with os.fdopen(file, "rb") as taken:
            return taken.read()


@pytest.fixture(params=[None, ValueCoding.DENSE_BITS, ValueCoding.DENSE_ULP])
def scene(request: pytest.FixtureRequest) -> Scene:
    lab = AgentLab.with_versions(mixed_schema(), 2, share=0.05, coding=request.param)
    _, pack = max(packs_of(lab), key=lambda each: each[1].size_bytes)
    data = lab.blobs.get(pack.key, max_size_bytes=pack.size_bytes)
    return Scene(lab.schema, pack, data)


def test_arrays_lie_side_by_side_and_aligned(scene: Scene) -> None:
    layout, reader = scene.layout, scene.reader
    reach = scene.pack.size_bytes
    for number in range(reader.piece_count):
        piece = reader.piece(number)
        start, words = int(layout.position_starts[number]), int(layout.word_starts[number])
        assert 0 <= start - reach < ALIGNMENT_BYTES
        is_dense = piece.value_coding is ValueCoding.DENSE_BITS
        position_size = 0 if is_dense else piece.changed_count * 4
        assert 0 <= words - start - position_size < ALIGNMENT_BYTES
        assert start % ALIGNMENT_BYTES == words % ALIGNMENT_BYTES == 0
        reach = words + piece.changed_count * piece.width_bytes
    assert 0 <= layout.size_bytes - reach < ALIGNMENT_BYTES


@pytest.mark.parametrize("thread_count", [1, 4])
def test_what_was_made_is_what_is_opened(scene: Scene, thread_count: int) -> None:
    reader, pieces = scene.open(scene.make(thread_count))
    worker = PieceCodec().worker()
    assert reader.piece_count == scene.pack.piece_count
    for number in range(reader.piece_count):
        expected, found = worker.sparse(reader.piece(number)), pieces.sparse(number)
        assert np.array_equal(found.positions, expected.positions)
        assert np.array_equal(found.words, expected.words)
        assert found.combine is expected.combine


def test_nobody_can_change_or_shorten_a_segment(scene: Scene) -> None:
    file = scene.make()
    with pytest.raises(PermissionError):
        os.pwrite(file, b"x", 0)
    for size in (0, scene.layout.size_bytes + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(file, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, 0)
    os.close(file)


def test_a_damaged_piece_makes_no_segment_and_leaves_no_file(scene: Scene) -> None:
    data = bytearray(scene.data)
    data[-1] ^= 1
    scene.data = bytes(data)
    with all_files_closed(), pytest.raises(CorruptObjectError):
        scene.make()


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SEAL])
def test_one_that_is_not_sealed_is_not_even_read(scene: Scene, missing: int) -> None:
    every = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    file = scene.forged(scene.content(), seals=every & ~missing)
    with pytest.raises(CorruptObjectError, match="not sealed"):
        scene.open(file)


@pytest.mark.parametrize("change", [-1, 1, 8])
def test_another_size_is_refused(scene: Scene, change: int) -> None:
    content = scene.content()
    file = scene.forged(content[:change] if change < 0 else content + bytes(change))
    with pytest.raises(CorruptObjectError, match="gave"):
        scene.open(file)


def test_fewer_bytes_than_the_pack_has_are_refused(scene: Scene) -> None:
    with pytest.raises(CorruptObjectError, match="for a pack of"):
        scene.open(scene.forged(scene.data[:100]))


def test_another_pack_is_refused(scene: Scene) -> None:
    content = bytearray(scene.content())
    content[scene.pack.size_bytes // 2] ^= 1
    with pytest.raises(CorruptObjectError, match="SHA-256"):
        scene.open(scene.forged(bytes(content)))


def test_what_is_no_memory_is_refused(scene: Scene) -> None:
    with pytest.raises(CorruptObjectError, match="no segment"):
        scene.open(os.open("/dev/null", os.O_RDONLY))


@pytest.mark.parametrize("wrong", ["equal", "falling", "beyond"])
def test_positions_that_cannot_be_are_refused(scene: Scene, wrong: str) -> None:
    reader, layout = scene.reader, scene.layout
    number = next(
        (each for each in range(reader.piece_count) if reader.piece(each).changed_count > 2), 0
    )
    piece = reader.piece(number)
    if piece.value_coding is ValueCoding.DENSE_BITS:
        assert int(layout.position_starts[number]) == int(layout.word_starts[number])
        return
    content = bytearray(scene.content())
    positions = np.frombuffer(
        content, np.uint32, piece.changed_count, int(layout.position_starts[number])
    )
    match wrong:
        case "equal":
            positions[1] = positions[0]
        case "falling":
            positions[[0, 1]] = positions[[1, 0]]
        case _:
            positions[-1] = piece.unit_count
    _, pieces = scene.open(scene.forged(bytes(content)))
    with pytest.raises(CorruptObjectError, match="cannot have"):
        pieces.sparse(number)


def test_a_python_without_the_names_of_seals_can_use_weightstore() -> None:
    """One that was built against an old C library: only an agent needs what it lacks."""
    script = """
import fcntl, os
for module, prefix in ((fcntl, "F_SEAL"), (fcntl, "F_ADD_SEALS"), (fcntl, "F_GET_SEALS"),
                       (os, "memfd"), (os, "MFD_")):
    for name in [name for name in dir(module) if name.startswith(prefix)]:
        delattr(module, name)
import weightstore.receiver.receiver
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_pack_of_another_hash_is_not_this_pack(scene: Scene) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    pack = scene.pack.model_copy(update={"sha256": other})
    with pytest.raises(CorruptObjectError, match=other):
        open_segment(scene.make(), scene.schema, pack, Limits())
