"""A version exists, was retired, or was never made: three different answers."""

from __future__ import annotations

import pytest

from weightstore.errors import VersionGoneError, VersionNotFoundError
from weightstore.format.kept import of_versions
from weightstore.format.records import EMPTY_NOW, Now
from weightstore.history.existence import check_committed, check_kept
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import write_versions


def state(kept: list[int]) -> Now:
    now = write_versions(MemoryBlobStore(), 5).now
    return now.model_copy(update={"kept": of_versions(kept)})


def test_in_an_empty_store_nothing_exists() -> None:
    with pytest.raises(VersionNotFoundError, match="no version yet"):
        check_kept(EMPTY_NOW, 1)


@pytest.mark.parametrize("version", [-1, 0, 6, 2**60])
def test_a_version_that_was_never_made_is_not_found(version: int) -> None:
    with pytest.raises(VersionNotFoundError):
        check_kept(state([1, 2, 3, 4, 5]), version)
    with pytest.raises(VersionNotFoundError):
        check_committed(state([1, 2, 3, 4, 5]), version)


def test_a_retired_version_is_gone_and_the_newest_kept_is_named() -> None:
    now = state([2, 5])
    assert check_committed(now, 3) == 3
    with pytest.raises(VersionGoneError) as caught:
        check_kept(now, 3)
    assert caught.value.facts == {"version": 3, "newest_kept": 5}
    assert check_kept(now, 2) == 2
