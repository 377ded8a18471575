"""What is recorded is what the commits are said to be, and the check of a state can fail."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest

from weightstore.storage.lmdb_index import _is_sealed
from weightstore.testing.index_crash_states import (
    PAGE_SIZE_BYTES,
    IndexCommit,
    IndexState,
    new_pages,
    unsynced_states,
)
from weightstore.testing.index_power_loss import PHASES, check_state, put_state, record


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> list[IndexCommit]:
    return record(tmp_path_factory.mktemp("recorded"))


def map_size_of(data: bytes) -> int:
    """The larger of what the two meta pages say."""
    return max(
        int(struct.unpack_from("@N", data, page * PAGE_SIZE_BYTES + 32)[0]) for page in (0, 1)
    )


def test_the_commits_grow_the_file_double_the_map_and_use_free_pages(
    commits: list[IndexCommit],
) -> None:
    assert [commit.name for commit in commits] == [phase.name for phase in PHASES]
    for older, newer in itertools.pairwise(commits):
        assert newer.before in {older.after, b""}
    with_file = [commit for commit in commits if commit.before]
    assert len(with_file) == len(commits) - 2
    assert any(map_size_of(one.after) > map_size_of(one.before) for one in with_file)
    assert any(len(one.after) > len(one.before) for one in with_file)
    assert sum(len(one.after) == len(one.before) for one in with_file) >= 2
    metas = [new_pages(commit)[1] for commit in with_file]
    assert metas == [0, 1, 0, 1, 0, 1, 0]


def test_an_old_seal_is_one_only_where_the_length_is_the_old_one(
    commits: list[IndexCommit], tmp_path: Path
) -> None:
    commit = next(one for one in commits if len(one.after) > len(one.before) > 0)
    data = tmp_path / "data.mdb"
    for image, size_bytes, is_sealed in (
        (commit.before, len(commit.before), True),
        (commit.after, len(commit.before), False),
        (commit.after, len(commit.after), True),
        (commit.after, None, False),
    ):
        is_usable = put_state(tmp_path, commit, IndexState("", image, size_bytes))
        assert is_usable is is_sealed is _is_sealed(data.stat())
        assert data.read_bytes() == image


def test_a_state_without_the_pages_that_its_meta_page_names_is_found_wrong(
    commits: list[IndexCommit], tmp_path: Path
) -> None:
    """Those of this commit are found, and end no process."""
    commit = commits[0]
    wrong = [check_state(tmp_path, commit, state)[1] for state in unsynced_states(commit)]
    assert any("damage below a seal" in found for found in wrong)


def test_the_states_at_both_ends_are_right(commits: list[IndexCommit], tmp_path: Path) -> None:
    for commit in commits[1:3]:
        for image in (commit.before, commit.after):
            state = IndexState("", image, len(image))
            assert check_state(tmp_path, commit, state) == (True, [])
