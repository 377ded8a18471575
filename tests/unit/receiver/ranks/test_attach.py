"""Ranks by the facade: over a directory, a store, or a channel of the caller's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weightstore import Box, EngineRank, EngineSettings, WeightStore
from weightstore.errors import SchemaMismatchError
from weightstore.receiver.ranks.attach import ChannelPlace
from weightstore.receiver.ranks.channel import BlobChannel, MemoryChannel
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.store_lab import store_on

ROWS, COLUMNS = 40, 25
BOXES = [Box((0, 0), (15, COLUMNS)), Box((15, 0), (ROWS - 15, COLUMNS))]


def weights() -> dict[str, Any]:
    return {"w": np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    with WeightStore.open(tmp_path / "store", create=True) as opened:
        opened.put_step(0, weights())
        yield opened


def play(store: WeightStore, channel: ChannelPlace | WeightStore) -> None:
    """Two ranks in two threads, two versions."""
    arrays = [np.zeros(box.unit_count, np.uint32) for box in BOXES]
    ranks = [
        store.engine(
            {"w": arrays[rank]}, boxes={"w": BOXES[rank]}, rank=rank, rank_count=2, channel=channel
        )
        for rank in range(2)
    ]
    stop = threading.Event()
    thread = threading.Thread(target=ranks[1].serve_rounds, args=(stop,))
    thread.start()
    try:
        put = weights()
        for step in (1, 2):
            put["w"][3 + step, 1] += 1
            put["w"][30 + step, 2] += 1
            version = store.put_step(store.version().step + 1, put)
            assert ranks[0].leader.refit().target == version
            for rank in ranks:
                with rank.serving(exact=version) as served:
                    assert served == version
            whole = np.concatenate(arrays).view(np.float32)
            assert np.array_equal(whole, put["w"].reshape(-1))
    finally:
        stop.set()
        thread.join(60)


def test_over_a_directory(store: WeightStore, tmp_path: Path) -> None:
    play(store, tmp_path / "channel")
    play(store, str(tmp_path / "channel"))


def test_a_schema_that_changes_is_placed_anew_on_every_rank(tmp_path: Path) -> None:
    names = ("a", "b")
    tied = np.arange(600, dtype=np.float32)
    untied = {"a": tied, "b": tied[::-1].copy()}
    with WeightStore.open(tmp_path / "store", create=True) as store:
        store.put_step(0, {"a": tied, "b": tied})
        boxes = [Box((0,), (200,)), Box((200,), (400,))]
        live = [{name: np.zeros(box.unit_count, np.uint32) for name in names} for box in boxes]
        channel = MemoryChannel()
        ranks = [
            store.engine(
                live[rank],
                boxes=dict.fromkeys(names, boxes[rank]),
                rank=rank,
                rank_count=2,
                channel=channel,
            )
            for rank in range(2)
        ]
        stop = threading.Event()
        thread = threading.Thread(target=ranks[1].serve_rounds, args=(stop,))
        thread.start()
        try:
            assert ranks[0].leader.refit().target == 1
            store.put_step(1, untied, new_schema=True)
            report = ranks[0].leader.refit()
            assert [each.way for each in report.ranks] == ["full", "full"]
            untied["b"][[3, 500]] += 1
            store.put_step(2, untied)
            report = ranks[0].leader.refit()
            assert [each.applied_count for each in report.ranks] == [1, 1]
        finally:
            stop.set()
            thread.join(60)
        for name in names:
            whole = np.concatenate([each[name] for each in live]).view(np.float32)
            assert np.array_equal(whole, untied[name])


def test_over_a_channel_of_the_callers(store: WeightStore) -> None:
    play(store, MemoryChannel())
    play(store, BlobChannel(MemoryBlobStore(), "here/"))


def test_torch_tensors_keep_their_places(store: WeightStore) -> None:
    torch = pytest.importorskip("torch")
    live = [torch.zeros(box.sizes, dtype=torch.float32) for box in BOXES]
    pointers = [each.data_ptr() for each in live]
    channel = MemoryChannel()
    ranks: list[EngineRank] = [
        store.engine(
            {"w": live[rank]}, boxes={"w": BOXES[rank]}, rank=rank, rank_count=2, channel=channel
        )
        for rank in range(2)
    ]
    stop = threading.Event()
    thread = threading.Thread(target=ranks[1].serve_rounds, args=(stop,))
    thread.start()
    ranks[0].leader.refit(1)
    stop.set()
    thread.join(60)
    assert torch.equal(torch.cat(live), torch.from_numpy(weights()["w"]))
    assert [each.data_ptr() for each in live] == pointers


def test_targets_that_do_not_fit_are_listed() -> None:
    store = store_on(MemoryBlobStore())
    store.put_step(0, weights())
    with pytest.raises(SchemaMismatchError, match="'v'"):
        store.engine(
            {"v": np.zeros(3, np.uint32)},
            rank=0,
            rank_count=1,
            channel=MemoryChannel(),
            settings=EngineSettings(),
        )
