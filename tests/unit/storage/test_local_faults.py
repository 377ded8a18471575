"""A disk that fails: every system call of a put, with every kind of answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from weightstore.errors import (
    BackendUnsuitableError,
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    StorageFailedError,
    StorageFullError,
    StoreClosedError,
    StoreReadOnlyError,
    WeightStoreError,
)
from weightstore.storage.durable import SYSCALLS
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.disk import (
    UNNAMED,
    DiskCall,
    FaultyDisk,
    failing,
    failing_at,
    no_fault,
    without_unnamed_files,
)
from weightstore.testing.faults import When

KEY = "log/1"
DATA = b"whole"
CODES = (errno.EIO, errno.ENOSPC, errno.EROFS)

Put = Callable[[LocalBlobStore], object]


def _put(blobs: LocalBlobStore) -> None:
    blobs.put_if_absent(KEY, DATA)


def _put_stream(blobs: LocalBlobStore) -> None:
    blobs.put_stream_if_absent(KEY, [DATA[:2], DATA[2:]])


def _put_file(blobs: LocalBlobStore) -> None:
    source = blobs.root.with_name("source")
    source.write_bytes(DATA)
    blobs.put_file_if_absent(KEY, source)


def _state(root: Path) -> bytes | None:
    """What a process that opens the store afresh reads."""
    try:
        return LocalBlobStore(root, create=True).get(KEY, max_size_bytes=99)
    except BlobNotFoundError:
        return None


@pytest.mark.parametrize("is_named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize(
    ("put", "code", "when"),
    [
        *((_put, code, When.BEFORE) for code in CODES),
        *((put, errno.EIO, When.BEFORE) for put in (_put_stream, _put_file)),
        (_put_file, errno.EIO, When.AFTER),
    ],
)
def test_whatever_call_fails_a_put_tells_the_truth(
    tmp_path: Path, put: Put, code: int, when: When, *, is_named: bool
) -> None:
    """Success means whole, unknown means either, any other error means absent.

    The fault walks from call to call until the put has as many as it makes.
    """
    for index in range(100):
        root = tmp_path / str(index) / "store"
        root.parent.mkdir()
        disk = _failing_disk(index, code, when, is_named=is_named)
        blobs = LocalBlobStore(root, create=True, syscalls=disk.syscalls)
        try:
            put(blobs)
        except BlobOutcomeUnknownError:
            assert _state(root) in {None, DATA}
        except (StorageFullError, StorageFailedError, StoreReadOnlyError):
            assert _state(root) is None
        else:
            assert _state(root) == DATA
            if len(disk.calls) <= index:
                break
        assert [info.key for info in LocalBlobStore(root).list("")] in ([], [KEY])
    else:
        pytest.fail("the put never outlived its faults")
    assert index > 6


def _failing_disk(index: int, code: int, when: When, *, is_named: bool) -> FaultyDisk:
    fault = failing_at(index, code)
    missing = without_unnamed_files if is_named else no_fault
    if when is When.AFTER:
        return FaultyDisk(before=missing, after=fault)
    return FaultyDisk(before=lambda call: missing(call) or fault(call))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("name", ["open", "make_folder", "write", "link_open_file"])
def test_a_full_disk_is_told_and_the_handle_works_again_after(
    tmp_path: Path, name: str, code: int
) -> None:
    is_full = True
    full = failing(name, code)
    disk = FaultyDisk(before=lambda call: full(call) if is_full else None)
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    for _ in range(3):
        with pytest.raises(StorageFullError, match=r"No space|quota"):
            blobs.put_if_absent(KEY, DATA)
        assert _state(tmp_path) is None
    is_full = False
    blobs.put_if_absent(KEY, DATA)
    assert _state(tmp_path) == DATA


def test_a_disk_that_is_found_full_by_the_sync_of_the_bytes_leaves_the_handle_alive(
    tmp_path: Path,
) -> None:
    is_full = True
    full = failing("fsync", errno.ENOSPC, path_end=UNNAMED)
    disk = FaultyDisk(before=lambda call: full(call) if is_full else None)
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(StorageFullError):
        blobs.put_if_absent(KEY, DATA)
    assert _state(tmp_path) is None
    is_full = False
    blobs.put_if_absent(KEY, DATA)
    assert _state(tmp_path) == DATA


def _every_call(blobs: LocalBlobStore) -> list[Callable[[], object]]:
    return [
        lambda: blobs.get(KEY, max_size_bytes=99),
        lambda: blobs.read_into(KEY, 0, bytearray(1)),
        lambda: blobs.size(KEY),
        lambda: blobs.local_path(KEY),
        lambda: blobs.list(""),
        lambda: blobs.put_if_absent("log/2", b""),
        lambda: blobs.put_if_absent("log/2", b"", durable=False),
        lambda: blobs.put_stream_if_absent("log/2", []),
        lambda: blobs.put_file_if_absent("log/2", blobs.root / KEY),
        lambda: blobs.overwrite("head", b""),
        lambda: blobs.delete(KEY),
        lambda: blobs.confirm_durable("log/"),
        blobs.sweep_temporary,
    ]


def _assert_dead(blobs: LocalBlobStore, disk: FaultyDisk) -> None:
    count = len(disk.calls)
    for call in _every_call(blobs):
        with pytest.raises(StoreClosedError, match=r"fsync of .* failed"):
            call()
    assert len(disk.calls) == count, "a dead handle has touched the disk"


def test_after_a_failed_sync_of_the_bytes_there_is_no_blob_and_the_handle_is_dead(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(before=failing("fsync", errno.EIO, path_end=UNNAMED))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(StorageFailedError):
        blobs.put_if_absent(KEY, DATA)
    assert _state(tmp_path) is None
    _assert_dead(blobs, disk)


def test_after_a_failed_sync_of_the_name_the_outcome_is_unknown_and_the_handle_dead(
    tmp_path: Path,
) -> None:
    LocalBlobStore(tmp_path).put_if_absent("log/0", b"")
    linked = False

    def fault(call: DiskCall) -> OSError | None:
        nonlocal linked
        linked = linked or (call.name == "link_open_file" and call.path.endswith(KEY))
        return OSError(errno.EIO, "broken") if linked and call.name == "fsync" else None

    disk = FaultyDisk(before=fault)
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(BlobOutcomeUnknownError):
        blobs.put_if_absent(KEY, DATA)
    _assert_dead(blobs, disk)
    # Opened again, the store tells: it was linked, and counts once it is confirmed.
    again = LocalBlobStore(tmp_path)
    again.confirm_durable("log/")
    assert again.get(KEY, max_size_bytes=99) == DATA


def test_a_failed_sync_is_never_repeated(tmp_path: Path) -> None:
    """The kernel would answer the second one with success, whatever was lost."""
    disk = FaultyDisk(before=failing("fsync", errno.EIO))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    for _ in range(5):
        with pytest.raises(WeightStoreError):
            blobs.put_if_absent(KEY, DATA)
        with pytest.raises(WeightStoreError):
            blobs.confirm_durable("log/")
    assert [call.name for call in disk.calls].count("fsync") == 1


def test_a_sync_that_another_threads_failure_overtook_proves_nothing(tmp_path: Path) -> None:
    """The kernel tells an error once for each open file: this one may have come too late."""
    LocalBlobStore(tmp_path).put_if_absent("packs/0", b"")
    is_linked = False

    def fault(call: DiskCall) -> OSError | None:
        nonlocal is_linked
        is_linked = is_linked or (call.name == "link_open_file" and call.path.endswith(KEY))
        if is_linked and call.name == "fsync" and call.path.endswith("log"):
            with pytest.raises(BlobOutcomeUnknownError):
                blobs.confirm_durable("packs/")
        return failing("fsync", errno.EIO, path_end="packs")(call)

    disk = FaultyDisk(before=fault)
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(BlobOutcomeUnknownError, match=r"another|failed"):
        blobs.put_if_absent(KEY, DATA)
    assert is_linked
    _assert_dead(blobs, disk)


def test_a_failed_confirmation_is_unknown_and_the_handle_dead(tmp_path: Path) -> None:
    LocalBlobStore(tmp_path).put_if_absent(KEY, DATA)
    disk = FaultyDisk(before=failing("fsync", errno.EIO, path_end="log"))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(BlobOutcomeUnknownError):
        blobs.confirm_durable("log/")
    _assert_dead(blobs, disk)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize("name", ["open", "make_folder"])
def test_a_store_that_may_not_be_written_is_told(tmp_path: Path, name: str, code: int) -> None:
    disk = FaultyDisk(before=failing(name, code))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(StoreReadOnlyError):
        blobs.put_if_absent(KEY, DATA)
    with pytest.raises(StoreReadOnlyError):
        blobs.overwrite("receivers/1", DATA)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_that_cannot_link_is_refused(tmp_path: Path, code: int) -> None:
    def fault(call: DiskCall) -> OSError | None:
        is_link = call.name in {"link", "link_open_file"}
        return OSError(code, os.strerror(code)) if is_link else None

    blobs = LocalBlobStore(tmp_path, syscalls=FaultyDisk(before=fault).syscalls)
    with pytest.raises(BackendUnsuitableError, match="cannot link"):
        blobs.put_if_absent(KEY, DATA)
    assert _state(tmp_path) is None


def test_a_disk_that_cannot_sync_folders_is_refused(tmp_path: Path) -> None:
    fault = failing("fsync", errno.EINVAL, path_end=tmp_path.name)
    blobs = LocalBlobStore(tmp_path, syscalls=FaultyDisk(before=fault).syscalls)
    with pytest.raises(BackendUnsuitableError, match="cannot sync"):
        blobs.put_if_absent("FORMAT", DATA)
    assert not list(LocalBlobStore(tmp_path).list(""))


@pytest.mark.parametrize(
    "code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOENT], ids=errno.errorcode.get
)
def test_where_an_unnamed_file_cannot_be_linked_a_named_one_is_used(
    tmp_path: Path, code: int
) -> None:
    """As where `/proc` is missing, or on overlays that open such files and link none."""
    disk = FaultyDisk(before=failing("link_open_file", code))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    blobs.put_if_absent(KEY, DATA)
    assert blobs.get(KEY, max_size_bytes=99) == DATA
    with pytest.raises(BlobExistsError):
        blobs.put_if_absent(KEY, DATA)
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["1"]


def test_a_link_whose_answer_was_lost_and_repeated_is_found_to_be_ours(tmp_path: Path) -> None:
    """A network file system sends it again, and the second finds the name taken, by us."""
    disk = FaultyDisk(
        before=without_unnamed_files,
        after=failing("link", errno.EEXIST),
    )
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    blobs.put_if_absent(KEY, DATA)
    assert _state(tmp_path) == DATA
    with pytest.raises(BlobExistsError):
        blobs.put_if_absent(KEY, b"other")


def test_a_link_with_an_unclear_answer_is_an_unknown_outcome(tmp_path: Path) -> None:
    disk = FaultyDisk(after=failing("link_open_file", errno.ETIMEDOUT, path_end=KEY))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    with pytest.raises(BlobOutcomeUnknownError):
        blobs.put_if_absent(KEY, DATA)
    assert blobs.get(KEY, max_size_bytes=99) == DATA


def test_a_failed_overwrite_leaves_the_old_hint(tmp_path: Path) -> None:
    for name in ("open", "write", "rename"):
        LocalBlobStore(tmp_path).overwrite("head", b"old")
        disk = FaultyDisk(before=failing(name, errno.ENOSPC))
        blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
        with pytest.raises(StorageFullError):
            blobs.overwrite("head", b"new")
        assert blobs.get("head", max_size_bytes=9) == b"old"
        assert [path.name for path in tmp_path.iterdir()] == ["head"]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    """The kernel may take fewer bytes than it was given, one at the least."""
    syscalls = replace(SYSCALLS, write=lambda file, data: os.write(file, memoryview(data)[:3]))
    blobs = LocalBlobStore(tmp_path, syscalls=syscalls)
    blobs.put_if_absent(KEY, bytes(range(100)))
    assert blobs.get(KEY, max_size_bytes=100) == bytes(range(100))
