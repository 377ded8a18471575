"""A put on a disk, cut at every system call: what the next process finds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from weightstore.errors import BlobNotFoundError
from weightstore.storage.local import LocalBlobStore
from weightstore.testing import totals
from weightstore.testing.disk import FaultyDisk, no_fault, without_unnamed_files
from weightstore.testing.faults import PowerCut, When

KEY = "packs/a-1/1"
OLD, NEW = b"the old hint", b"the new bytes"


def _put(blobs: LocalBlobStore) -> None:
    blobs.put_if_absent(KEY, NEW)


def _put_without_durability(blobs: LocalBlobStore) -> None:
    blobs.put_if_absent(KEY, NEW, durable=False)


def _put_stream(blobs: LocalBlobStore) -> None:
    blobs.put_stream_if_absent(KEY, [NEW[:5], NEW[5:]])


def _put_file(blobs: LocalBlobStore) -> None:
    blobs.put_file_if_absent(KEY, blobs.root.with_name("source"))


def _overwrite(blobs: LocalBlobStore) -> None:
    blobs.overwrite("head", NEW)


def _delete(blobs: LocalBlobStore) -> None:
    blobs.delete("head")


def _read(blobs: LocalBlobStore, key: str) -> bytes | None:
    try:
        return blobs.get(key, max_size_bytes=99)
    except BlobNotFoundError:
        return None


@pytest.mark.parametrize("is_named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize(
    ("run", "key", "states"),
    [
        (_put, KEY, {None, NEW}),
        (_put_without_durability, KEY, {None, NEW}),
        (_put_stream, KEY, {None, NEW}),
        (_put_file, KEY, {None, NEW}),
        (_overwrite, "head", {OLD, NEW}),
        (_delete, "head", {OLD, None}),
    ],
)
def test_a_cut_leaves_all_or_nothing_and_a_repeat_gets_through(
    tmp_path: Path,
    run: Callable[[LocalBlobStore], None],
    key: str,
    states: set[bytes | None],
    when: When,
    *,
    is_named: bool,
) -> None:
    for index in count():
        root = tmp_path / str(index) / "store"
        LocalBlobStore(root, create=True).overwrite("head", OLD)
        root.with_name("source").write_bytes(NEW)
        missing = without_unnamed_files if is_named else no_fault
        disk = FaultyDisk(before=missing, cut=(index, when))
        with suppress(PowerCut):
            run(LocalBlobStore(root, syscalls=disk.syscalls))
        if not disk.is_cut:
            break
        after = LocalBlobStore(root)
        found = _read(after, key)
        assert found in states
        assert {info.key for info in after.list("")} <= {"head", KEY}
        after.sweep_temporary()
        assert not [path for path in root.rglob("*") if "~tmp" in path.name]
        assert _read(after, key) == found
        if found is None and key == KEY:
            run(after)
            assert _read(after, key) == NEW
    assert index >= 1


_KILLER = """
import os, signal, sys
from itertools import count
from pathlib import Path
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.disk import FaultyDisk, no_fault, without_unnamed_files

def put(root, at, is_named):
    def die(call):
        if call.index == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return without_unnamed_files(call) if is_named else None

    blobs = LocalBlobStore(root, create=True, syscalls=FaultyDisk(before=die).syscalls)
    blobs.put_if_absent("packs/a-1/1", b"the new bytes")

for index in count():
    child = os.fork()
    if child == 0:
        put(Path(sys.argv[1]) / str(index), index, sys.argv[2] == "named")
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended)
    if ended != -signal.SIGKILL:
        break
"""


@pytest.mark.crash
@pytest.mark.parametrize("way", ["unnamed", "named"])
def test_a_killed_process_leaves_all_or_nothing(tmp_path: Path, way: str) -> None:
    """A real SIGKILL at each system call; a successor sweeps what is left and repeats."""
    killer = subprocess.run(
        [sys.executable, "-c", _KILLER, str(tmp_path), way],
        check=True,
        capture_output=True,
        text=True,
    )
    *killed, last = [int(line) for line in killer.stdout.split()]
    assert set(killed) == {-9}
    assert len(killed) >= 10
    assert last == 0
    states = set()
    for index in range(len(killed) + 1):
        root = tmp_path / str(index)
        after = LocalBlobStore(root)
        found = _read(after, KEY)
        states.add(found)
        assert found in {None, NEW}
        after.sweep_temporary()
        assert {path.name for path in root.rglob("*")} <= {"packs", "a-1", "1"}
        if found is None:
            _put(after)
        assert _read(after, KEY) == NEW
    assert states == {None, NEW}
    totals.add("sigkills", len(killed))
