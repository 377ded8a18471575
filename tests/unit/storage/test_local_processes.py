"""One store used by several processes at once, and on both sides of a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weightstore.storage.durable import SYSCALLS
from weightstore.storage.folders import open_root
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.open_files import all_files_closed

RACER_COUNT = 4
KEY_COUNT = 150

_RACER = """
import sys
from pathlib import Path
from weightstore.errors import BlobExistsError
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.disk import FaultyDisk, no_fault, without_unnamed_files

root, name, way, count = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
disk = FaultyDisk(before=without_unnamed_files if way == "named" else no_fault)
blobs = LocalBlobStore(root, syscalls=disk.syscalls)
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    try:
        blobs.put_if_absent(f"log/{number}", name.encode() * 100, durable=number % 10 == 0)
    except BlobExistsError:
        continue
    print(number)
"""


@pytest.mark.parametrize("ways", [("unnamed",), ("named",), ("unnamed", "named")])
def test_of_racing_processes_exactly_one_wins_each_key(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """Also where one of them links files without a name and the other cannot."""
    racers = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", _RACER),
                *(str(tmp_path), str(racer), ways[racer % len(ways)], str(KEY_COUNT)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for racer in range(RACER_COUNT)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [racer.communicate()[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * RACER_COUNT
    assert sorted(int(number) for numbers in won for number in numbers) == list(range(KEY_COUNT))
    blobs = LocalBlobStore(tmp_path)
    for racer_number, numbers in enumerate(won):
        for number in numbers:
            expected = str(racer_number).encode() * 100
            assert blobs.get(f"log/{number}", max_size_bytes=100) == expected


def test_a_handle_works_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put_if_absent("log/0", b"before")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert blobs.get("log/0", max_size_bytes=6) == b"before"
            blobs.put_if_absent("log/1", b"child")
            blobs.put_if_absent("packs/a-1/1", b"child")
            code = 42
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert blobs.get("log/1", max_size_bytes=5) == b"child"
    blobs.put_if_absent("log/2", b"parent")


def test_no_call_leaves_a_descriptor_open(tmp_path: Path) -> None:
    """Neither one that succeeds nor one that fails."""
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with all_files_closed():
        for number in range(3):
            blobs.put_if_absent(f"log/{number}", b"1")
            blobs.put_stream_if_absent(f"packs/a-1/{number}", [b"1"])
            blobs.put_file_if_absent(f"anchors/a/{number}", source)
            blobs.overwrite("head", b"1")
            list(blobs.list(""))
            next(blobs.list(""))
            blobs.confirm_durable("packs/a-1/")
            blobs.sweep_temporary()
            for call in (
                lambda: blobs.put_if_absent("log/0", b"1"),
                lambda: blobs.put_stream_if_absent("packs/1", [1]),  # type: ignore[list-item]
                lambda: blobs.put_file_if_absent("anchors/b", tmp_path),
                lambda: blobs.get("log/9", max_size_bytes=9),
                lambda: blobs.get("log/0", max_size_bytes=0),
                lambda: blobs.read_into("log/0", 1, bytearray(9)),
                lambda: blobs.get("log", max_size_bytes=9),
                lambda: blobs.confirm_durable("log/0/x"),
            ):
                try:
                    call()
                except Exception:  # noqa: BLE001 -- any failure will do here
                    continue


def test_folders_that_are_gone_are_not_remembered_by_another_handle(tmp_path: Path) -> None:
    """What is remembered belongs to one handle, and so to what it has opened."""
    folders = open_root(tmp_path, SYSCALLS, create=False)
    with folders.made(("packs", "a-1"), durable=True) as folder:
        assert os.fstat(folder).st_ino == (tmp_path / "packs" / "a-1").stat().st_ino
    with folders.found(("packs", "b-1")) as folder_or_none:
        assert folder_or_none is None
