"""What a power cut may leave of every durable operation, state by state.

The disk is a model that keeps nothing but what was synced for sure; a state is what may be
left of one moment. In every state what anybody was told is there, and nothing is half
visible; from a sample of them another process goes on, on a real disk, and ends where one
without a cut ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weightstore.testing import totals
from weightstore.testing.crash_stories import STORE, STORIES, versions
from weightstore.testing.crash_traces import (
    Trace,
    calls_of,
    crashes,
    record,
    record_killed,
    record_lost,
    record_moved,
    recover,
)
from weightstore.testing.disk_trace import Call, Lack

STATE_COUNTS_MIN = {
    "create": 35_000,
    "first put": 50_000,
    "put of a delta": 45_000,
    "put with an anchor": 5_000,
    "put with a baseline file": 30_000,
    "puts of one session": 25_000,
    "import by copy": 80_000,
    "tag": 9_000,
    "retire and sweep": 3_500,
    "export of a delta": 120,
    "export of a full form": 120,
    "checkout to a file": 10,
    "create and put": 120_000,
}
"""How many distinct states of each story are checked in the long run at least."""
UNION_COUNT_MIN = 200_000
"""How many of all stories together, where stories share some."""
STATE_LIMIT, LIMIT_OF_VARIANTS = 1500, 30
"""How many states are tried after one event: of a story, and of each way to disturb it."""
RECOVER_EVERY = 151
RECOVER_EVERY_OF_FEW = {"export of a delta": 5, "export of a full form": 5, "checkout to a file": 1}

KILLED = ("create", "first put", "put of a delta", "import by copy", "tag", "retire and sweep")
LOST = ("create", "first put", "put with an anchor")
WITHOUT_UNNAMED = ("create and put", "put of a delta", "import by copy")
MOVED = {"moved store": "outer", "moved log": f"{STORE}/log"}

Record = Callable[[Path], Trace | None]


@dataclass
class Seen:
    """What was checked.

    Attributes:
        states: Distinct states, by their numbers.
        check_count: States and what was relied on in them.
        recovered_count: States that another process went on from.
        wrong: What was found.
    """

    states: set[int] = field(default_factory=set)
    check_count: int = 0
    recovered_count: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Seen) -> None:
        """Take what another process has seen."""
        self.states |= other.states
        self.check_count += other.check_count
        self.recovered_count += other.recovered_count
        self.wrong += other.wrong


@contextmanager
def fast_folder() -> Iterator[Path]:
    """A folder in memory where there is one: the model stands for the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)


def check(recording: Record, *, limit: int, recover_every: int | None) -> Seen:
    """Check every state of a trace, and go on from one in so many."""
    seen = Seen()
    with fast_folder() as base:
        trace = recording(base)
    if trace is None:
        return seen
    for crash in crashes(trace, limit):
        seen.check_count += 1
        wrong = crash.wrong
        # Chosen by their order, the first among them, so that every run goes on from the same
        # ones: names of temporary files differ in each, and so do the numbers of states.
        is_chosen = recover_every is not None and (seen.check_count - 1) % recover_every == 0
        if is_chosen and crash.number not in seen.states:
            seen.recovered_count += 1
            with fast_folder() as base:
                wrong += tuple(recover(crash, base))
        seen.states.add(crash.number)
        if wrong and len(seen.wrong) < 3:
            seen.wrong.append(f"{trace.name}, after event {crash.index}: {wrong}")
    return seen


@pytest.mark.parametrize("name", STORIES)
def test_a_power_cut_at_any_moment_breaks_no_promise(name: str) -> None:
    seen = check(lambda base: record(name, STORIES[name], base), limit=25, recover_every=151)
    assert not seen.wrong
    assert len(seen.states) >= 10


@pytest.mark.parametrize("name", MOVED)
def test_a_reader_makes_durable_what_it_relies_on(name: str) -> None:
    """What a user has renamed may be back at its old place, but not once it was read."""
    seen = check(_moved(name, 1), limit=40, recover_every=None)
    assert not seen.wrong
    assert len(seen.states) > 1


@pytest.mark.parametrize("then_read", [False, True])
def test_what_a_killed_process_left_is_made_durable_before_it_is_relied_on(
    *, then_read: bool
) -> None:
    """It had made folders and linked files, and had synced none of the last ones."""
    for index in range(3, 60, 11):
        seen = check(_killed("first put", index, then_read=then_read), limit=10, recover_every=307)
        assert not seen.wrong


def test_a_sweep_after_a_killed_one_deletes_nothing_that_a_manifest_may_still_name() -> None:
    """The killed one had deleted the manifests, and not synced that: the power brings them back."""

    def is_sync_of_manifests(call: Call) -> bool:
        return call.name == "fsync" and call.path.startswith(f"{STORE}/manifests")

    name = "retire and sweep"
    seen = check(
        lambda base: record_killed(
            name, STORIES[name], base, is_sync_of_manifests, then_read=False
        ),
        limit=25,
        recover_every=None,
    )
    assert seen.states
    assert not seen.wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", STATE_COUNTS_MIN)
def test_thousands_of_states_of_each_story_break_no_promise(name: str, of_this_run: Path) -> None:
    seen = Seen()
    for recording, limit in recordings_of(name):
        every = RECOVER_EVERY_OF_FEW.get(name, RECOVER_EVERY)
        seen.add(check(recording, limit=limit, recover_every=every))
    assert not seen.wrong, seen.wrong[:10]
    assert len(seen.states) >= STATE_COUNTS_MIN[name]
    assert seen.recovered_count >= 1
    # Stories share states, and the quick tests see some of them too: each is counted once, by
    # the story that comes last in this run, in whatever process.
    union = totals.union_when_complete(of_this_run, name, seen.states, STATE_COUNTS_MIN)
    if union is not None:
        assert len(union) >= UNION_COUNT_MIN
        totals.add("crash_states", len(union))


def test_every_story_is_run_at_length() -> None:
    assert set(STATE_COUNTS_MIN) == set(STORIES)


def recordings_of(name: str) -> Iterator[tuple[Record, int]]:
    """Everything that is done to a story, and how many states are tried after each event."""
    story = STORIES[name]
    yield (lambda base: record(name, story, base)), STATE_LIMIT
    if name in WITHOUT_UNNAMED:
        lacks = frozenset({Lack.UNNAMED})
        yield (lambda base: record(f"{name}, named", story, base, lacks=lacks)), STATE_LIMIT
    with fast_folder() as base:
        calls = calls_of(story, base)
    for call in calls:
        if name in KILLED:
            yield _killed(name, call.index, then_read=False), LIMIT_OF_VARIANTS
            yield _killed(name, call.index, then_read=True), LIMIT_OF_VARIANTS
        if name in LOST and call.name.startswith("link"):
            yield _lost(name, call.index), LIMIT_OF_VARIANTS


def _lost(name: str, index: int) -> Record:
    return lambda base: record_lost(
        f"{name}, no answer to call {index}",
        STORIES[name],
        base,
        lambda call: call.index == index,
    )


def _killed(name: str, index: int, *, then_read: bool) -> Record:
    return lambda base: record_killed(
        f"{name} killed before call {index}",
        STORIES[name],
        base,
        lambda call: call.index == index,
        then_read=then_read,
    )


def _moved(name: str, version_count: int) -> Record:
    what = MOVED.get(name, "")
    return lambda base: record_moved(name, base, versions(version_count), what)
