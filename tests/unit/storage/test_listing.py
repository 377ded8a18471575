"""Listings of a directory that changes while it is listed."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from weightstore.storage.blob_keys import NAME_COUNT_MAX, TEMPORARY_MARK
from weightstore.storage.durable import SYSCALLS
from weightstore.storage.folders import Folders, open_root
from weightstore.storage.listing import listed, sweep, unlisted_name
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.open_files import all_files_closed


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    blobs = LocalBlobStore(tmp_path)
    for key in ("log/1", "packs/a-1/1", "packs/b-1/1", "packs/c-1/1"):
        blobs.put_if_absent(key, b"x", durable=False)
    return open_root(tmp_path, SYSCALLS, create=False)


def test_a_listing_that_is_stopped_holds_nothing_open(folders: Folders) -> None:
    with all_files_closed():
        listings = [listed(folders, (), "") for _ in range(5)]
        assert {next(listing).key for listing in listings} == {"log/1"}


def test_what_is_gone_by_the_time_it_is_reached_is_left_out(folders: Folders) -> None:
    listing = listed(folders, ("packs",), "")
    assert next(listing).key == "packs/a-1/1"
    shutil.rmtree(folders.root / "packs" / "b-1")
    (folders.root / "packs" / "c-1" / "1").unlink()
    assert not list(listing)


def test_a_start_counts_for_the_first_folder_alone(folders: Folders) -> None:
    assert [info.key for info in listed(folders, ("packs",), "b")] == ["packs/b-1/1"]
    assert not list(listed(folders, ("missing",), ""))


def test_an_ordinary_store_has_nothing_unlisted_and_nothing_to_sweep(folders: Folders) -> None:
    assert unlisted_name(folders) is None
    assert sweep(folders, SYSCALLS) == 0


def test_a_sweep_enters_no_folder_that_is_deeper_than_a_key(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = folders.root / "packs"
    for _ in range(200):
        at /= "d"
    at.mkdir(parents=True)
    deepest = folders.root.joinpath("packs", *["d"] * (NAME_COUNT_MAX - 2))
    reached, foreign = deepest / f"{TEMPORARY_MARK}1", deepest / "d" / f"{TEMPORARY_MARK}2"
    reached.write_bytes(b"")
    foreign.write_bytes(b"")
    walked: list[tuple[str, ...]] = []
    found = Folders.found

    def counted(
        self: Folders, names: tuple[str, ...], *, readable: bool = False
    ) -> AbstractContextManager[int | None]:
        walked.append(names)
        return found(self, names, readable=readable)

    monkeypatch.setattr(Folders, "found", counted)
    assert sweep(folders, SYSCALLS) == 1
    assert (reached.exists(), foreign.exists()) == (False, True)
    assert max(map(len, walked)) == NAME_COUNT_MAX - 1
