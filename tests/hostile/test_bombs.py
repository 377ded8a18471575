"""Streams that would unpack to far more than they say, on every way from a store to weights."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard

import weightstore
from weightstore.codec.codec import PieceWorker
from weightstore.codec.piece import EncodeResult, Piece, Streams, ValueCoding, hash_streams
from weightstore.errors import CorruptError, InputRefusedError
from weightstore.format import pack
from weightstore.history.checkout import checkout_into
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import GIB, KIB, MIB, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.real_versions import RealVersions, next_weights, random_weights
from weightstore.testing.store_lab import store_on

SCHEMA = Schema.build([TensorSpec("w", DType.BF16, (70_000,))])
BOMB_SIZE_BYTES = 96 * MIB
BLOCK_SIZE_BYTES = 128 * KIB
"""The longest run of one byte that a zstd block can say; in four bytes."""
PEAK_BYTES_MAX = 32 * MIB
"""Of a checkout of these small weights: block buffers, mostly."""


def header(size_bytes: int) -> bytes:
    """The start of a frame that declares so much."""
    return b"\x28\xb5\x2f\xfd\xe0" + size_bytes.to_bytes(8, "little")


def bombs() -> dict[str, bytes]:
    """Frames that are small and would be large."""
    zeros = bytes(BOMB_SIZE_BYTES)
    block = (BLOCK_SIZE_BYTES << 3 | 2).to_bytes(3, "little") + b"\0"
    last = (BLOCK_SIZE_BYTES << 3 | 3).to_bytes(3, "little") + b"\0"
    repeated = block * (BOMB_SIZE_BYTES // BLOCK_SIZE_BYTES - 1) + last
    return {
        "says so": zstandard.ZstdCompressor().compress(zeros),
        "does not say so": zstandard.ZstdCompressor(write_content_size=False).compress(zeros),
        "says 1 GiB": header(GIB) + repeated,
        "says 2^63": header(1 << 63) + repeated,
        "says 1 byte": header(1) + repeated,
        "comes second": zstandard.ZstdCompressor().compress(b"x")
        + zstandard.ZstdCompressor().compress(zeros),
    }


BOMBS = bombs()


class BombWorker:
    """The codec's worker, with a bomb in a stream of what it encodes.

    Args:
        worker: The real one.
        index: Of the stream.
        frame: The bomb.
        raw_size_bytes: What the piece says of the stream; None keeps the truth.
    """

    def __init__(
        self, worker: PieceWorker, index: int, frame: bytes, raw_size_bytes: int | None
    ) -> None:
        self._worker = worker
        self._index = index
        self._frame = frame
        self._raw_size_bytes = raw_size_bytes

    def encode(
        self,
        old: Units | None,
        new: Units,
        *,
        first_index: int = 0,
        member_starts: object = None,
        coding: ValueCoding | None = None,
    ) -> EncodeResult:
        assert member_starts is None
        found = self._worker.encode(old, new, first_index=first_index, coding=coding)
        return replace(found, piece=found.piece and self._with_bomb(found.piece))

    def _with_bomb(self, piece: Piece) -> Piece:
        parts = [bytes(stream) for stream in piece.streams]
        sizes = list(piece.raw_sizes)
        parts[self._index] = self._frame
        sizes[self._index] = self._raw_size_bytes or sizes[self._index] or 1
        streams: Streams = (parts[0], parts[1], parts[2], parts[3])
        return replace(
            piece,
            streams=streams,
            raw_sizes=(sizes[0], sizes[1], sizes[2], sizes[3]),
            hash16=hash_streams(streams),
        )


def bombed_store(
    frame: bytes, *, index: int = 1, raw_size_bytes: int | None = None, full: bool = False
) -> tuple[WeightStore, RealVersions]:
    """Version 1 is good; the delta of version 2 holds the bomb, and all its hashes are right."""
    versions = RealVersions(MemoryBlobStore(), SCHEMA)
    weights = random_weights(SCHEMA, 0)
    versions.put(weights)
    bomber = BombWorker(versions._worker, index, frame, raw_size_bytes)
    versions._worker = bomber  # type: ignore[assignment]
    versions.put(next_weights(weights, 1), full=full, coding=ValueCoding.XOR)
    return store_on(versions.blobs, seed="reader"), versions


def into(store: WeightStore, versions: RealVersions, folder: Path) -> None:
    del store, folder
    target = {"w": np.zeros(70_000, np.uint16)}
    try:
        checkout_into(versions.blobs, versions.plan(), target, Settings())
    finally:
        assert not target["w"].any()


def attach(store: WeightStore, versions: RealVersions, folder: Path) -> None:
    """A trainer's attach does not fail: it goes on with a full version, and says why."""
    del versions, folder
    with store.trainer("grpo", take_over=True) as trainer:
        pending = trainer.put_step(9, {"w": np.ones(70_000, np.uint16)}, new_schema=True)
        with pytest.warns(UserWarning, match="cannot be read, so the next one will be full"):
            assert pending.result() == 3
    raise CorruptError("said by the warning")


def refit(store: WeightStore, versions: RealVersions, folder: Path) -> None:
    """A receiver that serves version 1 still does so, and holds it."""
    del versions, folder
    live = {"w": np.zeros(70_000, np.uint16)}
    receiver = store.receiver(live)
    receiver.refit(1)
    before = live["w"].copy()
    try:
        receiver.refit(2)
    finally:
        with receiver.serving(exact=1):
            assert np.array_equal(live["w"], before)


WAYS: Mapping[str, Callable[[WeightStore, RealVersions, Path], object]] = {
    "checkout": lambda store, _, __: store.checkout(2),
    "checkout in place": into,
    "checkout to a file": lambda store, _, folder: store.checkout_to_file(2, folder / "x"),
    "export": lambda store, _, folder: store.export(2, folder / "x"),
    "verify": lambda store, _, __: store.verify(2),
    "verify by scan": lambda store, _, __: store.verify(2, scan=True),
    "diff": lambda store, _, __: store.diff(1, 2),
    "attach": attach,
    "refit": refit,
}


def refused_in_little_memory(call: Callable[[], object]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            call()
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("way", WAYS)
def test_a_bomb_is_refused_before_it_is_unpacked(way: str, bomb: str, tmp_path: Path) -> None:
    store, versions = bombed_store(BOMBS[bomb])
    refused_in_little_memory(lambda: WAYS[way](store, versions, tmp_path))
    assert not (tmp_path / "x").exists()
    assert store.checkout(1).info.version == 1


@pytest.mark.parametrize("index", range(4))
def test_a_bomb_in_any_stream_is_refused(index: int) -> None:
    for frame in BOMBS.values():
        store, _ = bombed_store(frame, index=index)
        refused_in_little_memory(lambda opened=store: opened.checkout(2))  # type: ignore[misc]


@pytest.mark.parametrize("raw_size_bytes", [BOMB_SIZE_BYTES, 70_000 * 2, 2**32 - 1])
def test_a_piece_that_vouches_for_its_bomb_is_refused(
    raw_size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pack's own builder reads what it has built, and refuses sizes that no reader takes.
    # An enemy's builder does not.
    with monkeypatch.context() as enemy:
        enemy.setattr(pack, "PieceIndex", lambda *_: None)
        store, _ = bombed_store(BOMBS["says so"], raw_size_bytes=raw_size_bytes)
    refused_in_little_memory(lambda: store.checkout(2))
    assert store.checkout(1).info.version == 1


def test_our_own_builder_makes_no_pack_that_vouches_for_a_bomb() -> None:
    with pytest.raises(InputRefusedError, match="these pieces make no pack"):
        bombed_store(BOMBS["says so"], raw_size_bytes=BOMB_SIZE_BYTES)


def test_a_bomb_in_a_delta_beside_a_full_form_is_found() -> None:
    store, _ = bombed_store(BOMBS["says so"], full=True)
    refused_in_little_memory(lambda: store.verify(2))
    assert store.checkout(2).info.version == 2, "nobody needs the delta for this"


def test_only_one_module_unpacks_anything() -> None:
    unpacking = re.compile(
        r"^\s*(import|from) (zstandard|gzip|bz2|lzma|zipfile|tarfile)\b|\bzlib\.decompress",
        re.MULTILINE,
    )
    package = Path(weightstore.__file__).parent
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if unpacking.search(path.read_text(encoding="utf-8"))
    }
    assert {name for name in found if not name.startswith("testing/")} == {"codec/frames.py"}
