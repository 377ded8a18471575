"""Channels between ranks: memory, a directory, and a store under a prefix."""

from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import Buffer

from weightstore.errors import BlobOutcomeUnknownError, CorruptObjectError
from weightstore.receiver.ranks.channel import (
    BlobChannel,
    MemoryChannel,
    RankChannel,
    answer_key,
    generation_of,
    lost_key,
    order_key,
)
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.rank_channel_contract import RankChannelContract


class TestMemoryChannel(RankChannelContract):
    @pytest.fixture
    def channel(self) -> RankChannel:
        return MemoryChannel()


class TestDirectoryChannel(RankChannelContract):
    @pytest.fixture
    def channel(self, tmp_path: Path) -> RankChannel:
        return BlobChannel(LocalBlobStore(tmp_path / "channel", create=True))


class TestStoreChannel(RankChannelContract):
    @pytest.fixture
    def channel(self) -> RankChannel:
        return BlobChannel(MemoryBlobStore(), "ranks/engine/")


class LosingBlobs(MemoryBlobStore):
    """Puts land, or do not, and nobody is told."""

    lands = True

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        if self.lands:
            super().put_if_absent(key, data, durable=durable)
        raise BlobOutcomeUnknownError("no answer")


def test_a_put_whose_answer_is_lost_is_settled_by_a_read() -> None:
    blobs = LosingBlobs()
    channel = BlobChannel(blobs)
    channel.put("engines/1", b"x")
    blobs.lands = False
    with pytest.raises(BlobOutcomeUnknownError):
        channel.put("engines/2", b"x")


def test_a_directory_holds_no_empty_folders_for_its_rounds(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path, create=True)
    channel = BlobChannel(blobs)
    for turn in range(20):
        channel.put(order_key(1, turn), b"x")
        channel.delete([order_key(1, turn)])
    assert [path.name for path in tmp_path.iterdir()] == ["rounds"]
    assert not list((tmp_path / "rounds").iterdir())


def test_the_engine_of_a_key_is_found() -> None:
    assert [generation_of(key) for key in (order_key(7, 1), answer_key(12, 3, 4))] == [7, 12]
    assert generation_of(lost_key(3, 1)) == 3
    for key in ("rounds/x-1-order", "rounds/", "rounds/-1"):
        with pytest.raises(CorruptObjectError):
            generation_of(key)
