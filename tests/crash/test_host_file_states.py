"""What a power cut may leave of a directory that is followed, state by state.

As for the store itself: the disk is a model that keeps nothing but what was synced for sure.
In every state the link leads to one whole version or is not there, what brings it back is
there too, and the next process ends where one without a cut ends.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from weightstore.testing import totals
from weightstore.testing.crash_traces import Trace, calls_of, record, record_killed
from weightstore.testing.disk_model import Synced
from weightstore.testing.disk_trace import Skips, no_fsync
from weightstore.testing.host_file_lab import ENDS, STORIES, Files, exported, go_on, live_crashes

RECOVER_EVERY = 17
CALL_COUNT_MAX = 200
"""A story that makes more storage calls than this is taken for endless."""
PLENTY = 1
"""The extremes and their neighbours are tried whatever the limit is: that shows a loss."""

NAME = "durable._sync_name < durable._replace_in < durable.replace_durably"
BYTES = "durable.sync_path < durable._synced_source < durable.replace_durably"
PUT_NAME, PUT_BYTES = f"{NAME} < LinkedFolder.put_file", f"{BYTES} < LinkedFolder.put_file"
EXPORTED = "export._name_directory"
OPENING = "LinkedFolder.sync < LinkedFolder.acquire < opening.open_host_files"


@dataclass(frozen=True)
class Need:
    """An fsync, the story that goes wrong without it, and what would be lost.

    Attributes:
        site: The functions that lead to it.
        story: Name of the story.
        protects: What would be lost.
        is_killed: Whether the first process dies right after the mark got its name.
    """

    site: str
    story: str
    protects: str
    is_killed: bool = False

    @property
    def killed_at(self) -> int | None:
        """The storage call that the first process dies before; None where it lives."""
        return mark_named_at(self.story) if self.is_killed else None


NEEDS = [
    Need(f"{PUT_BYTES} < DiskSteps.write_journal", "change", "what heals a cut change"),
    Need(f"{PUT_NAME} < DiskSteps.write_journal", "change", "the same"),
    Need("LinkedFolder.unlink < DiskSteps._write", "change", "that no mixture can be loaded"),
    Need("FilePatches.sync < file_writes.write_parts", "change", "the new bits"),
    Need(f"{PUT_BYTES} < DiskSteps._write", "change", "which version the new bits are"),
    Need(f"{PUT_NAME} < DiskSteps._write", "change", "the same"),
    Need("LinkedFolder.link_to < DiskSteps.change", "change", "the version that was told of"),
    Need("durable.sync_path < export._write", "first version", "a file that was written"),
    Need("durable.sync_path < export._copy", "older version", "a file that was copied"),
    Need(f"{BYTES} < {EXPORTED}", "first version", "the names of the files"),
    Need(f"{NAME} < {EXPORTED}", "older version", "the folder of the files"),
    Need(f"{PUT_BYTES} < DiskSteps.switch", "first version", "which version it is"),
    Need(f"{PUT_NAME} < DiskSteps.switch", "first version", "the same"),
    Need("LinkedFolder.link_to < DiskSteps.switch", "first version", "the version told of"),
    Need("LinkedFolder.link_to < DiskSteps.recover", "first version", "the same", is_killed=True),
    Need(OPENING, "first version", "a mark that a killed process had named", is_killed=True),
]
HARMLESS = {
    "LinkedFolder.unlink < LinkedFolder.put_file < DiskSteps.switch": (
        "the old version is whole: only a load that goes on meanwhile must miss the link"
    ),
    "LinkedFolder.unlink < DiskSteps.hide": (
        "a version that others have damaged: no state of a story has one"
    ),
}


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder in memory where there is one: the model stands for the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


@cache
def mark_named_at(name: str) -> int:
    """The storage call of a story that comes right after its mark got its name."""
    with fast_folder() as base:
        calls = calls_of(STORIES[name], base)
    return 1 + max(
        each.index for each in calls if each.name == "rename" and each.path.endswith("/state")
    )


@cache
def known_of(name: str) -> dict[int, Files]:
    """The files of each version of a story."""
    with fast_folder() as base:
        record(name, STORIES[name], base)
        return exported(base, 3 if name == "two changes" else 2)


def traced(name: str, *, killed_at: int | None = None, skips: Skips = no_fsync) -> Trace | None:
    """A story from its beginning, or what comes after its first process was killed."""
    with fast_folder() as base:
        if killed_at is None:
            return record(name, STORIES[name], base, skips=skips)
        return record_killed(
            f"{name}, killed at {killed_at}",
            STORIES[name],
            base,
            lambda call: call.index == killed_at,
            then_read=False,
            skips=skips,
        )


@dataclass
class Looked:
    """How much was looked at.

    Attributes:
        state_count: States of the disk.
        recovery_count: States that a next process has gone on from.
    """

    state_count: int = 0
    recovery_count: int = 0

    def add(self, other: Looked) -> None:
        """Count what was looked at elsewhere, too."""
        self.state_count += other.state_count
        self.recovery_count += other.recovery_count


def check(trace: Trace, name: str, *, limit: int, recover_every: int | None) -> Looked:
    """Look at every state, and go on from one in so many.

    Which ones follows from the trace alone: the bytes, and with them the states' numbers, are
    others in each run, and so would be how many are chosen.
    """
    looked, known = Looked(), known_of(name)
    first = zlib.crc32(trace.name.encode())
    for crash in live_crashes(trace, known, limit):
        looked.state_count += 1
        assert not crash.wrong, (trace.name, crash.index, crash.wrong)
        if recover_every is not None and (first + looked.state_count) % recover_every == 0:
            with fast_folder() as base:
                wrong = go_on(crash, known, ENDS[name], base)
            assert not wrong, (trace.name, crash.index, wrong)
            looked.recovery_count += 1
    return looked


@pytest.mark.parametrize("name", STORIES)
def test_a_power_cut_at_any_moment_leaves_a_whole_version_or_no_link(name: str) -> None:
    trace = traced(name)
    assert trace is not None
    looked = check(trace, name, limit=15, recover_every=RECOVER_EVERY)
    assert looked.state_count >= 100
    assert looked.recovery_count >= 3


@pytest.mark.parametrize("name", ["change", "older version"])
def test_what_a_killed_process_left_may_be_lost_in_a_power_cut_too(name: str) -> None:
    """The next process relies on what it finds, so it makes that durable first."""
    looked, kill_count = Looked(), 0
    for killed_at in range(8, CALL_COUNT_MAX, 12):
        trace = traced(name, killed_at=killed_at)
        if trace is None:
            break
        looked.add(check(trace, name, limit=PLENTY, recover_every=RECOVER_EVERY))
        kill_count += 1
    assert trace is None
    assert kill_count >= 2
    assert looked.state_count >= 200
    assert looked.recovery_count >= 6


@pytest.mark.slow
@pytest.mark.parametrize("name", STORIES)
def test_thousands_of_states_leave_a_whole_version_or_no_link(name: str) -> None:
    trace = traced(name)
    assert trace is not None
    looked = check(trace, name, limit=1500, recover_every=31)
    for killed_at in range(CALL_COUNT_MAX):
        trace = traced(name, killed_at=killed_at)
        if trace is None:
            break
        looked.add(check(trace, name, limit=10, recover_every=211))
    assert trace is None
    assert looked.state_count >= 1000
    assert looked.recovery_count >= 10


def test_every_fsync_of_a_followed_directory_is_in_a_table() -> None:
    made = set()
    for name in STORIES:
        trace = traced(name)
        assert trace is not None
        made |= {
            event.site
            for event in trace.events
            if isinstance(event, Synced) and "LocalBlobStore" not in event.site
        }
    needed = {need.site for need in NEEDS}
    assert made == needed | set(HARMLESS)
    assert not needed & set(HARMLESS)


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.site)
def test_without_this_fsync_a_power_cut_breaks_a_promise(need: Need) -> None:
    trace = traced(
        need.story, killed_at=need.killed_at, skips=lambda event: event.site == need.site
    )
    assert trace is not None
    wrong = (crash.wrong for crash in live_crashes(trace, known_of(need.story), PLENTY))
    assert next(filter(None, wrong), "")
    totals.add("mutations_caught", 1)


def test_with_all_of_them_none_is_broken() -> None:
    """The traces that go wrong without one fsync do not go wrong with it."""
    for name, killed_at in {(need.story, need.killed_at) for need in NEEDS}:
        trace = traced(name, killed_at=killed_at)
        assert trace is not None
        assert check(trace, name, limit=PLENTY, recover_every=None).state_count >= 20


@pytest.mark.parametrize("name", STORIES)
def test_without_all_the_harmless_ones_together_none_is_broken(name: str) -> None:
    trace = traced(name, skips=lambda event: event.site in HARMLESS)
    assert trace is not None
    assert check(trace, name, limit=PLENTY, recover_every=None).state_count >= 80
