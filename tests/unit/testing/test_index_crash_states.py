"""The states that a commit may leave: each once, between the two ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.settings import MIB
from weightstore.storage.lmdb_environment import Environment
from weightstore.testing.index_crash_states import (
    META_COUNT,
    PAGE_SIZE_BYTES,
    Beside,
    IndexCommit,
    new_pages,
    states,
    unsynced_states,
)
from weightstore.testing.index_power_loss import FIRST_MAP_SIZE_BYTES, record


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> list[IndexCommit]:
    return record(tmp_path_factory.mktemp("recorded"))


def test_each_state_is_there_once_and_both_ends_are_among_them(commits: list[IndexCommit]) -> None:
    for commit in commits:
        found = list(states(commit, 4))
        marks = {(state.data, state.sealed_size_bytes, state.beside) for state in found}
        assert len(marks) == len(found) == len({state.number for state in found})
        assert (commit.after, len(commit.after), Beside.KEPT) in marks
        assert (commit.after, None, Beside.KEPT) in marks
        if commit.before:
            assert (commit.before, len(commit.before), Beside.KEPT) in marks
        assert len(list(states(commit, 30))) > len(found) or len(new_pages(commit)[0]) < 3


def test_every_subset_of_a_few_pages_is_tried_and_pages_are_old_or_new_or_torn(
    commits: list[IndexCommit],
) -> None:
    commit = next(one for one in commits if len(one.after) == len(one.before))
    data_pages, meta = new_pages(commit)
    found = set()
    torn_count = 0
    for state in states(commit, 5):
        new = set()
        for page in [*data_pages, meta]:
            part = slice(page * PAGE_SIZE_BYTES, (page + 1) * PAGE_SIZE_BYTES)
            if state.data[part] == commit.after[part]:
                new.add(page)
            elif state.data[part] != commit.before[part]:
                torn_count += 1
        found.add(frozenset(new))
        assert meta not in new or set(data_pages) <= new, "never without its data"
    assert len([new for new in found if meta not in new]) == 2 ** len(data_pages)
    assert torn_count >= 3


def test_without_the_sync_the_meta_page_is_there_and_pages_are_not(
    commits: list[IndexCommit],
) -> None:
    for commit in commits:
        data_pages, meta = new_pages(commit)
        assert meta < META_COUNT
        for state in unsynced_states(commit):
            begin = meta * PAGE_SIZE_BYTES
            end = begin + PAGE_SIZE_BYTES
            assert state.data[begin:end] == commit.after[begin:end]
            assert state.sealed_size_bytes == len(commit.after) == len(state.data)
            assert state.data != commit.after
        assert len(list(unsynced_states(commit))) == len(data_pages) + 1


def test_a_new_file_begins_as_lmdb_makes_it(commits: list[IndexCommit], tmp_path: Path) -> None:
    """The first commit finds two meta pages, which nobody has synced."""
    environment = Environment(
        tmp_path, size_bytes_max=MIB, first_map_size_bytes=FIRST_MAP_SIZE_BYTES
    )
    made = (tmp_path / "data.mdb").read_bytes()
    environment.close()
    images = {state.data[: len(made)] for state in states(commits[0], 0)}
    assert made in images
