"""The traced disk: what is written down is what happened."""

from __future__ import annotations

import mmap
import os
from dataclasses import fields
from pathlib import Path

import pytest

from weightstore.storage.durable import SYSCALLS, Syscalls
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.crash_stories import STORIES
from weightstore.testing.crash_traces import calls_of, record, record_killed, record_lost
from weightstore.testing.disk_model import FOLDER, Contents, ModelDisk, Synced
from weightstore.testing.disk_trace import Lack, TracedDisk
from weightstore.testing.faults import PowerCut


def tree(base: Path) -> dict[str, bytes | None]:
    """Everything below a directory."""
    return {
        path.relative_to(base).as_posix(): path.read_bytes() if path.is_file() else None
        for path in base.rglob("*")
    }


def replayed(disk: TracedDisk) -> dict[str, bytes | None]:
    """The directory as the events say it is."""
    model = ModelDisk(disk.contents)
    for event in (*disk.before, *disk.events):
        model.apply(event)
    return {
        path: None if number == FOLDER else disk.contents.bytes_of(number)
        for path, number in model.present().items()
    }


def test_what_is_done_past_the_system_calls_is_seen(tmp_path: Path) -> None:
    disk = TracedDisk(tmp_path, Contents())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"12345678")
    disk.note()
    assert replayed(disk) == tree(tmp_path)
    with (
        (tmp_path / "folder/file").open("r+b") as file,
        mmap.mmap(file.fileno(), 8) as view,
    ):
        view[2:4] = b"xx"
    (tmp_path / "other").write_bytes(b"o")
    disk.note()
    assert replayed(disk) == tree(tmp_path)
    (tmp_path / "other").unlink()
    (tmp_path / "again").write_bytes(b"")  # may have the inode's number of the one before
    disk.move(tmp_path / "folder", tmp_path / "moved")
    disk.note()
    assert (
        replayed(disk)
        == tree(tmp_path)
        == {
            "again": b"",
            "moved": None,
            "moved/file": b"12xx5678",
        }
    )


@pytest.mark.parametrize("lacks", [frozenset[Lack](), frozenset({Lack.UNNAMED})])
@pytest.mark.parametrize("name", ["create and put", "import by copy", "export of a delta"])
def test_replayed_events_end_in_the_real_directory(
    name: str, lacks: frozenset[Lack], tmp_path: Path
) -> None:
    trace = record(name, STORIES[name], tmp_path, lacks=lacks)
    model = trace.disk()
    for event in trace.events:
        model.apply(event)
    shown = {
        path: None if number == FOLDER else trace.contents.bytes_of(number)
        for path, number in model.present().items()
    }
    assert shown == tree(tmp_path)


def test_each_fsync_is_told_by_the_functions_that_made_it(tmp_path: Path) -> None:
    disk = TracedDisk(tmp_path, Contents())
    with disk.tracing():
        LocalBlobStore(tmp_path / "store", create=True).put_if_absent("log/1", b"x")
    sites = [
        (event.site, event.path.partition("#")[0])
        for event in disk.events
        if isinstance(event, Synced)
    ]
    assert sites[-2:] == [
        ("LocalBlobStore._sync_bytes", "store/log/"),
        ("LocalBlobStore._sync_name", "store/log"),
    ]


def test_system_calls_are_as_before_afterwards(tmp_path: Path) -> None:
    before = [getattr(SYSCALLS, each.name) for each in fields(Syscalls)]
    disk = TracedDisk(tmp_path, Contents())
    disk.begin(cut=lambda call: call.name == "write")
    with pytest.raises(PowerCut), disk.tracing():
        LocalBlobStore(tmp_path).put_if_absent("log/1", b"x")
    assert [getattr(SYSCALLS, each.name) for each in fields(Syscalls)] == before
    assert SYSCALLS.fsync is os.fsync


def test_a_dead_process_makes_no_call_and_the_next_one_does(tmp_path: Path) -> None:
    disk = TracedDisk(tmp_path, Contents())
    with disk.tracing():
        disk.begin(cut=lambda call: call.index == 4)
        blobs = LocalBlobStore(tmp_path)
        for _ in range(2):
            with pytest.raises(PowerCut):
                blobs.put_if_absent("log/1", b"x")
        assert len(disk.calls) == 4
        disk.begin()
        LocalBlobStore(tmp_path).put_if_absent("log/1", b"x")
    assert (tmp_path / "log/1").read_bytes() == b"x"


def test_a_story_ends_alike_killed_or_without_answers(tmp_path: Path) -> None:
    story = STORIES["first put"]
    (tmp_path / "calls").mkdir()
    calls = calls_of(story, tmp_path / "calls")
    middle, last = len(calls) // 2, len(calls)
    for name in ("whole", "killed", "ended", "lost"):
        (tmp_path / name).mkdir()
    whole = record("whole", story, tmp_path / "whole")
    killed = record_killed(
        "killed", story, tmp_path / "killed", lambda call: call.index == middle, then_read=False
    )
    assert killed is not None
    assert 0 < killed.first < len(killed.events)
    ended = record_killed(
        "ended", story, tmp_path / "ended", lambda call: call.index == last + 99, then_read=True
    )
    assert ended is None
    lost = record_lost("lost", story, tmp_path / "lost", lambda call: call.index == middle)
    versions = [trace.outcome[0] for trace in (whole, killed, lost)]
    assert versions == [versions[0]] * 3
