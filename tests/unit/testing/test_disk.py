"""The disk that fails on purpose."""

from __future__ import annotations

import errno
from itertools import count
from pathlib import Path

import pytest

from weightstore.storage.local import LocalBlobStore
from weightstore.testing.disk import UNNAMED, FaultyDisk, failing, without_unnamed_files
from weightstore.testing.faults import PowerCut, When


@pytest.mark.parametrize("when", When)
def test_a_walk_reaches_every_call_those_that_fail_too(tmp_path: Path, when: When) -> None:
    """Most disks cannot share blocks; a cut after that answer is a cut like any other."""
    source = tmp_path / "source"
    source.write_bytes(b"x")
    whole = FaultyDisk(before=failing("clone", errno.EOPNOTSUPP))
    LocalBlobStore(tmp_path / "whole", create=True, syscalls=whole.syscalls).put_file_if_absent(
        "anchors/a/x", source
    )
    for index in count():
        disk = FaultyDisk(before=failing("clone", errno.EOPNOTSUPP), cut=(index, when))
        blobs = LocalBlobStore(tmp_path / str(index), create=True, syscalls=disk.syscalls)
        if index == len(whole.calls):
            break
        with pytest.raises(PowerCut):
            blobs.put_file_if_absent("anchors/a/x", source)
    assert "clone" in [call.name for call in whole.calls]


def test_after_a_cut_every_call_is_refused(tmp_path: Path) -> None:
    disk = FaultyDisk(cut=(0, When.AFTER))
    blobs = LocalBlobStore(tmp_path, syscalls=disk.syscalls)
    for _ in range(3):
        with pytest.raises(PowerCut):
            blobs.put_if_absent("log/1", b"1")
        with pytest.raises(PowerCut):
            blobs.overwrite("head", b"1")
    assert disk.is_cut
    assert not list(LocalBlobStore(tmp_path).list(""))


def test_files_without_a_name_are_told_apart_from_others(tmp_path: Path) -> None:
    for fault, is_unnamed in ((without_unnamed_files, False), (lambda _: None, True)):
        disk = FaultyDisk(before=fault)
        blobs = LocalBlobStore(tmp_path / str(is_unnamed), create=True, syscalls=disk.syscalls)
        blobs.put_if_absent("log/1", b"1")
        written = [call.path for call in disk.calls if call.name == "write"]
        assert [path.endswith(UNNAMED) for path in written] == [is_unnamed]
