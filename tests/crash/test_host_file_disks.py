"""A followed directory on a disk that fails or is full: told, never a mixture, healed later."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.errors import BlobOutcomeUnknownError, StorageFailedError, StorageFullError
from weightstore.history.log import Log
from weightstore.history.store_format import open_store
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.live_state import Way
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.linked_folder import LinkedFolder
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.disk import DiskCall, FaultyDisk
from weightstore.testing.faults import PowerCut, When
from weightstore.testing.kill_operations import SETTINGS, weights_of
from weightstore.testing.small_disks import SmallDisk
from weightstore.testing.store_lab import tree

CALL_COUNT_MAX = 300
PAGE_COUNT_MAX = 400
FULL_STRIDE = 16


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three versions, the first in full, and their files in folders `1`, `2` and `3`."""
    base = tmp_path_factory.mktemp("store")
    with WeightStore.open(base / "store", create=True, settings=SETTINGS) as store:
        for step in (1, 2, 3):
            store.put_step(step, weights_of(step))
            store.export(step, base / str(step))
    return base


@contextmanager
def following(store_path: Path, link: Path, disk: FaultyDisk | None = None) -> Iterator[HostFiles]:
    """The directory, with system calls of a disk that fails."""
    blobs = LocalBlobStore(store_path / "store")
    log = Log(blobs, SETTINGS.limits)
    held = LinkedFolder.acquire(link, **({"syscalls": disk.syscalls} if disk else {}))
    try:
        yield HostFiles(
            VersionSource(blobs, log, SETTINGS),
            open_store(blobs, log),
            held,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )
    finally:
        held.close()


def version_at(store_path: Path, link: Path) -> int | None:
    """The version that the link leads to, whole; None where it is not there."""
    if not link.is_symlink():
        return None
    found = tree(link.resolve())
    held = [version for version in (1, 2, 3) if tree(store_path / str(version)) == found]
    assert held, "a mixture"
    return held[0]


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOSPC, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wanted", [2, 3])
def test_whatever_call_fails_is_told_and_the_same_process_heals(
    store_path: Path, tmp_path: Path, code: int, wanted: int
) -> None:
    """From version 1 to 2 in place, and from version 3 back to 2 with a whole version."""
    start = 1 if wanted == 2 else 3
    redo_count = 0
    for index in count():
        assert index < CALL_COUNT_MAX
        link = tmp_path / f"live-{index}"
        with following(store_path, link) as files:
            files.refit(start)
        is_armed = [False]
        seen = count()

        def fault(
            call: DiskCall,
            index: int = index,
            seen: Iterator[int] = seen,
            is_armed: list[bool] = is_armed,
        ) -> OSError | None:
            del call
            return OSError(code, "no") if is_armed[0] and next(seen) == index else None

        with following(store_path, link, FaultyDisk(before=fault)) as files:
            is_armed[0] = True
            try:
                files.refit(2)
            except (StorageFailedError, StorageFullError, BlobOutcomeUnknownError):
                assert version_at(store_path, link) in {start, 2, None}
            reached = next(seen) > index
            is_armed[0] = False
            redo_count += files.refit(2).is_redo
            assert version_at(store_path, link) == files.verify().version == 2
        if not reached:
            break
    assert index >= 10
    assert redo_count > 0 or wanted == 3


@pytest.mark.parametrize("when", When)
def test_a_load_while_a_change_is_written_finds_no_directory(
    store_path: Path, tmp_path: Path, when: When
) -> None:
    """At each write into the files the link is away; the next process brings it back."""
    write_count = 0
    for index in count():
        assert index < CALL_COUNT_MAX
        link = tmp_path / f"live-{index}"
        with following(store_path, link) as files:
            files.refit(1)
        disk = FaultyDisk(cut=(index, when))
        try:
            with following(store_path, link, disk) as files:
                files.refit(2)
        except PowerCut:
            pass
        else:
            break
        if disk.calls[-1].path.endswith(".safetensors"):
            write_count += 1
            assert not link.is_symlink()
        assert version_at(store_path, link) in {1, 2, None}
        with following(store_path, link) as files:
            assert files.version in {1, 2}
            files.refit(2)
            assert version_at(store_path, link) == 2
    assert write_count > 1


@pytest.mark.parametrize(("start", "end"), [(1, 3), (3, 1), (None, 1)])
def test_a_full_disk_is_told_and_freed_space_heals(
    store_path: Path, disk: SmallDisk, start: int | None, end: int
) -> None:
    full_count = 0
    for page_count in range(0, PAGE_COUNT_MAX, FULL_STRIDE):
        link = disk.folder / f"live-{page_count}"
        with following(store_path, link) as files:
            if start is not None:
                files.refit(start)
            disk.fill(free_page_count=page_count)
            try:
                report = files.refit(end)
            except StorageFullError:
                full_count += 1
                # A journal that finds no room leaves the old version where it is.
                assert version_at(store_path, link) in {start, None}
            else:
                assert report.way in {Way.FULL, Way.CHANGE}
            disk.free()
            files.refit(end)
            assert version_at(store_path, link) == end
        with following(store_path, link) as again:
            assert again.version == end
            again.refit(end)
    assert full_count > 0
