"""The facade's way to a rank: its arguments, and ranks that talk over the store itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weightstore import Box, EngineRank, WeightStore, examine
from weightstore.errors import InputRefusedError, NameRefusedError, StoreClosedError
from weightstore.receiver.ranks.channel import MemoryChannel
from weightstore.store.engines import EngineReader
from weightstore.store.findings import Severity

SIZE = 1000
HALVES = [Box((0,), (400,)), Box((400,), (600,))]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    with WeightStore.open(tmp_path / "store", create=True) as opened:
        opened.put_step(0, {"w": np.zeros(SIZE, np.float32)})
        yield opened


def ranks_over(store: WeightStore, name: str) -> list[EngineRank]:
    return [
        store.engine(
            {"w": np.zeros(box.unit_count, np.uint32)},
            boxes={"w": box},
            rank=rank,
            rank_count=2,
            channel=store,
            name=name,
        )
        for rank, box in enumerate(HALVES)
    ]


def refit(ranks: list[EngineRank]) -> int:
    stop = threading.Event()
    thread = threading.Thread(target=ranks[1].serve_rounds, args=(stop,))
    thread.start()
    try:
        return ranks[0].leader.refit().target
    finally:
        stop.set()
        thread.join(60)


def test_ranks_talk_over_the_store_and_nothing_of_it_is_in_the_way(store: WeightStore) -> None:
    first, second = ranks_over(store, "one"), ranks_over(store, "two")
    for step in range(1, 4):
        weights = np.zeros(SIZE, np.float32)
        weights[:step] = 1
        version = store.put_step(step, {"w": weights})
        assert refit(first) == refit(second) == version
        store.retire()
    assert first[0].leader.engine_id != second[0].leader.engine_id
    store.verify("latest", scan=True)
    bad = [each for each in examine(store.location).findings if each.severity is Severity.ERROR]
    assert not bad
    assert not [each for each in examine(store.location).findings if each.check == "names"]


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 2},
        {"rank": -1},
        {"rank_count": 0},
        {"rank": "0"},
        {"channel": 3},
        {"channel": ""},
        {"settings": 3},
        {"boxes": 3},
        {"name": 3},
    ],
)
def test_what_cannot_be_is_refused(store: WeightStore, given: dict[str, Any]) -> None:
    arrays = {"w": np.zeros(SIZE, np.uint32)}
    used: dict[str, Any] = {"rank": 0, "rank_count": 2, "channel": MemoryChannel(), **given}
    with pytest.raises(InputRefusedError):
        store.engine(arrays, **used)


@pytest.mark.parametrize("name", ["No Name", "engine-0", "../x", "..", "", "x" * 65, "x\n"])
def test_a_name_that_is_no_part_of_a_key_is_refused(store: WeightStore, name: str) -> None:
    arrays = {"w": np.zeros(SIZE, np.uint32)}
    with pytest.raises(NameRefusedError, match="engine name"):
        store.engine(arrays, rank=0, rank_count=2, channel=MemoryChannel(), name=name)


def test_a_closed_store_gives_no_rank(store: WeightStore) -> None:
    assert isinstance(store, EngineReader)
    store.close()
    with pytest.raises(StoreClosedError):
        ranks_over(store, "one")
