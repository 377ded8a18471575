"""Packs go out as they fill; a store that fails is found out before the pass is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.errors import StorageFailedError
from weightstore.format.pack import PackReader, TensorPlace
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, every
from weightstore.trainer.packing import PackSink

COUNT = 70_000
SCHEMA = Schema.build(TensorSpec(f"t{i}", DType.U16, (COUNT,)) for i in range(6))
OLD = np.zeros(COUNT, np.uint16)
NEW = OLD.copy()
NEW[::100] = 1
PIECE = PieceCodec(numpy_kernels()).worker().encode(OLD, NEW).piece
assert PIECE is not None


@pytest.fixture
def uploader() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def sink_of(blobs: BlobStore, uploader: Executor, pack_size_bytes: int) -> PackSink:
    keys = iter(f"packs/run-1/2-1-3-{i:032x}.safetensors" for i in count())
    return PackSink(
        blobs,
        SCHEMA,
        lambda: next(keys),
        uploader=uploader,
        rank=3,
        settings=Settings(pack_size_bytes=pack_size_bytes),
    )


def test_packs_are_closed_at_their_size_and_hold_the_pieces_in_order(uploader: Executor) -> None:
    assert PIECE is not None
    blobs = MemoryBlobStore()
    sink = sink_of(blobs, uploader, 2 * (PIECE.size_bytes + 88))
    for index in range(6):
        sink.add(TensorPlace(index, 0, COUNT), PIECE, None)
    packs = sink.finish()
    sink.close()
    assert [pack.ref.piece_count for pack in packs] == [2, 2, 2]
    assert [pack.ref.rank for pack in packs] == [3, 3, 3]
    places = []
    for pack in packs:
        stored = blobs.get(pack.ref.key, max_size_bytes=pack.ref.size_bytes)
        assert stored == pack.data
        places += list(PackReader(stored, SCHEMA, Limits()).places)
    assert places == [TensorPlace(index, 0, COUNT) for index in range(6)]


def test_without_pieces_there_is_no_pack(uploader: Executor) -> None:
    blobs = MemoryBlobStore()
    sink = sink_of(blobs, uploader, 1)
    assert sink.finish() == ()
    assert not list(blobs.list(""))


def test_an_upload_that_failed_comes_out_early(uploader: Executor) -> None:
    assert PIECE is not None
    sink = sink_of(LossyBlobs(MemoryBlobStore(), every(Fault.UNAVAILABLE, 1)), uploader, 1)

    def add_many() -> None:
        for turn in range(10_000):
            sink.add(TensorPlace(turn % 6, 0, COUNT), PIECE, None)

    with pytest.raises(StorageFailedError):
        add_many()
    with pytest.raises(StorageFailedError):
        sink.finish()
    sink.close()


def test_a_closed_sink_uploads_no_more(uploader: Executor) -> None:
    assert PIECE is not None
    started, release = threading.Event(), threading.Event()

    def hold(_: Call) -> None:
        started.set()
        release.wait()

    blobs = LossyBlobs(MemoryBlobStore(), hold)
    sink = sink_of(blobs, uploader, 1)
    for index in range(6):
        sink.add(TensorPlace(index, 0, COUNT), PIECE, None)
    started.wait()
    closing = threading.Thread(target=sink.close)
    closing.start()
    while not sink._uploads[-1].cancelled():
        pass
    release.set()
    closing.join()
    assert len(blobs.calls) == 1
