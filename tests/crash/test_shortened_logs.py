"""A log that was cut short behind everybody's back: an earlier state, or a typed error."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import CorruptLogError
from weightstore.store import WeightStore
from weightstore.store.doctor import examine

STEP_COUNT = 4


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of some versions, each with another element set, and tags between them."""
    weights = {"w": np.zeros(1000, np.float32)}
    with WeightStore.open(tmp_path / "store", create=True) as store:
        for step in range(STEP_COUNT):
            weights["w"][step] = 1
            store.put_step(step, weights)
            store.tag(f"of-{step}")
    return tmp_path / "store"


def records_of(place: Path) -> list[Path]:
    return sorted((place / "log").iterdir())


def test_without_its_last_records_it_is_the_log_of_an_earlier_time(
    place: Path, tmp_path: Path
) -> None:
    record_count = len(records_of(place))
    for left in range(record_count - 1, 0, -1):
        copy = tmp_path / f"left-{left}"
        shutil.copytree(place, copy)
        for path in records_of(copy)[left:]:
            path.unlink()
        with WeightStore.open(copy) as store:
            state = store.state()
            assert state.record_count == left
            newest = state.newest or 0
            assert [info.version for info in store.versions()] == list(range(newest, 0, -1))
            for version in range(1, newest + 1):
                expected = np.zeros(1000, np.float32)
                expected[:version] = 1
                assert store.checkout(version).host["w"].units.tobytes() == expected.tobytes()
            tags = [tag.name for tag in store.tags()]
            assert tags == [f"of-{step}" for step in range(len(tags))]
        told = {each.check for each in examine(copy).findings if each.what}
        # What the trainer's claim has put and no record names any more is told of.
        assert newest == STEP_COUNT or state.epoch == 0 or "attempt" in told


@pytest.mark.parametrize("index", [-1, 3])
def test_a_record_that_is_cut_short_is_a_typed_error(place: Path, index: int) -> None:
    path = records_of(place)[index]
    data = path.read_bytes()
    for size in (0, 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        shutil.rmtree(place / "index", ignore_errors=True)
        with WeightStore.open(place) as store, pytest.raises(CorruptLogError):
            list(store.log())
    path.write_bytes(data)
    with WeightStore.open(place) as store:
        assert store.checkout().info.version == STEP_COUNT
