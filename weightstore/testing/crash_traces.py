"""Stories as they went on a traced disk: whole, killed and repeated, without an answer, moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from weightstore.errors import WeightStoreError
from weightstore.format.records import VersionRecord
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.log import Log
from weightstore.history.tags import list_tags
from weightstore.settings import Limits
from weightstore.storage.blob_keys import TEMPORARY_MARK
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.crash_check import (
    FilesMade,
    Reliance,
    StateChecks,
    is_durable_key,
)
from weightstore.testing.crash_stories import STORE, Stage, Story, read
from weightstore.testing.disk_model import (
    FOLDER,
    Contents,
    Event,
    Made,
    ModelDisk,
    Named,
    State,
    Synced,
    Told,
    link_target,
)
from weightstore.testing.disk_trace import AtCall, Call, Lack, Skips, TracedDisk, no_fsync
from weightstore.testing.faults import PowerCut
from weightstore.testing.history_check import HistoryViolation, check_history


@dataclass(frozen=True, slots=True)
class Trace:
    """What happened to a disk in one story.

    Attributes:
        name: Of the story, and of what was done to it.
        story: The story.
        contents: Bytes by number.
        place: Path of the store.
        before: What had happened long before; everything of it is durable.
        events: What happened then.
        first: Power cuts before this event are those of another trace.
        told_before: What somebody relied on before.
        outcome: What the store holds in the end.
    """

    name: str
    story: Story
    contents: Contents
    place: str
    before: tuple[Event, ...]
    events: tuple[Event, ...]
    first: int
    told_before: tuple[object, ...]
    outcome: tuple[object, ...]

    def sites(self) -> set[tuple[str, str]]:
        """Each fsync as its call site and the kind of what it syncs."""
        return {
            (event.site, kind_of(event.path, self.place))
            for event in self.events
            if isinstance(event, Synced)
        }

    def disk(self) -> ModelDisk:
        """The disk before the story."""
        disk = ModelDisk(self.contents)
        for event in self.before:
            disk.apply(event)
        disk.settle()
        return disk


@dataclass(frozen=True, slots=True)
class Crash:
    """A power cut and what it has left.

    Attributes:
        trace: What was cut.
        index: Events that had happened.
        number: Tells states apart.
        state: The disk.
        reliance: What somebody relied on when the power went.
        wrong: What is wrong with it; empty if all is well.
    """

    trace: Trace
    index: int
    number: int
    state: State
    reliance: Reliance
    wrong: tuple[str, ...]


def kind_of(path: str, place: str) -> str:
    """What is synced, for the table of call sites: names of runs and nonces left out."""
    if path == place:
        return "the store's folder"
    if not path.startswith(place + "/"):
        return "beside or above the store"
    inner = path.removeprefix(place + "/").split("/")
    if inner[-1].startswith(("#", TEMPORARY_MARK)):
        return f"bytes of a file in {inner[0]}/" if len(inner) > 1 else "bytes of FORMAT"
    return f"{inner[0]}/" if len(inner) == 1 else f"a folder in {inner[0]}/"


def crashes(trace: Trace, limit: int) -> Iterator[Crash]:
    """Cut the power after every event, and check what may be left; each state once.

    Args:
        trace: What is cut.
        limit: How many states are tried after one event at most.
    """
    checks = StateChecks(trace.contents, trace.place + "/", _whole(trace), _files_made(trace))
    told = list(trace.told_before)
    reliance = Reliance.on(told)
    disk, seen = trace.disk(), set[tuple[int, int]]()
    for index, event in enumerate((None, *trace.events)):
        if event is not None:
            disk.apply(event)
        if isinstance(event, Told):
            told.append(event.what)
            reliance = Reliance.on(told)
        # An fsync only takes states away, and an inode without a name is in none.
        if index < trace.first or isinstance(event, Synced | Made):
            continue
        for state in disk.crash_states(limit):
            key = (trace.contents.number_of_state(state), len(told))
            if key not in seen:
                seen.add(key)
                wrong = checks.violations(state, reliance)
                yield Crash(trace, index, key[0], state, reliance, wrong)


def record(
    name: str,
    story: Story,
    base: Path,
    *,
    lacks: frozenset[Lack] = frozenset(),
    skips: Skips = no_fsync,
) -> Trace:
    """Trace a story from its beginning to its end.

    Args:
        name: Of the trace.
        story: The story.
        base: An empty directory.
        lacks: What its file system does not have.
        skips: Which fsyncs do nothing.
    """
    disk, stage, before = _prepared(story, base, lacks, skips)
    with disk.tracing():
        story.run(stage)
    return _trace(name, story, disk, stage, before)


def record_killed(
    name: str,
    story: Story,
    base: Path,
    cut: AtCall,
    *,
    then_read: bool,
    skips: Skips = no_fsync,
) -> Trace | None:
    """Trace what comes after a process was killed before one of its system calls.

    What it did is visible and not durable. Then a reader comes, or another process that
    does the same; both rely on what they find.

    Returns:
        The trace from the kill on; None if the process came to its end.
    """
    disk, stage, before = _prepared(story, base, frozenset(), skips)
    with disk.tracing():
        disk.begin(cut=cut)
        try:
            story.run(stage)
        except PowerCut:
            pass
        else:
            return None
        disk.begin()
        first = disk.note()
        second = Stage(base, disk.tell, "second")
        (read if then_read else story.run)(second)
    trace = _trace(name, story, disk, stage, before)
    if then_read:  # then the story is still to be told to its end
        story.run(Stage(base, lambda _: None, "last"))
    return replace(trace, first=first, outcome=outcome(stage.root))


def record_lost(
    name: str, story: Story, base: Path, lost: AtCall, *, skips: Skips = no_fsync
) -> Trace:
    """Trace a process that is told of errors after system calls that had their effect."""
    disk, stage, before = _prepared(story, base, frozenset(), skips)
    with disk.tracing():
        disk.begin(lost=lost)
        try:
            story.run(stage)
        except WeightStoreError:
            # Reported as what it is; another process finds out and goes on.
            disk.begin()
            story.run(Stage(base, disk.tell, "second"))
    return _trace(name, story, disk, stage, before)


def record_moved(
    name: str,
    base: Path,
    prepare: Callable[[Stage], None],
    what: str,
    *,
    skips: Skips = no_fsync,
) -> Trace:
    """Trace a reader of a store that its user has just moved, in whole or in part.

    Args:
        name: Of the trace.
        base: An empty directory.
        prepare: Makes the store.
        what: Path of what comes back to its place by a rename that nobody synced.
        skips: Which fsyncs do nothing.
    """
    story = Story(prepare, read)
    disk, stage, before = _prepared(story, base, frozenset(), skips)
    disk.move(base / what, base / "aside")
    disk.settle()
    with disk.tracing():
        disk.move(base / "aside", base / what)
        read(stage)
    # Until the reader came nobody knew where the store would be.
    return replace(_trace(name, story, disk, stage, before), told_before=())


def recover(crash: Crash, base: Path) -> list[str]:
    """Go on after a power cut, on a real disk: open, sweep, check all bits, do it again.

    Args:
        crash: What was left.
        base: An empty directory.

    Returns:
        What is wrong: nothing, if the story ends as one without a cut does.
    """
    trace, told = crash.trace, list[object]()
    write_state(crash.state, trace.contents, base)
    stage = Stage(base, told.append, f"third {crash.number}")
    root = base / trace.place
    history = crash.reliance.history
    wrong: list[str] = []
    try:
        if root.is_dir():
            blobs = LocalBlobStore(root)
            blobs.sweep_temporary()
            check_history(blobs, history, deep=True)
        trace.story.run(stage)
        relied = Reliance.on(told).history
        told_all = (*history.acknowledged, *relied.acknowledged)
        all_told = replace(history, acknowledged=told_all, reads=(*history.reads, *relied.reads))
        check_history(LocalBlobStore(root), all_told, deep=True)
    except (HistoryViolation, WeightStoreError) as error:
        wrong.append(f"{type(error).__name__}: {error}")
    wrong += [f"{path} was left" for path in base.rglob(f"{TEMPORARY_MARK}*")]
    if not wrong and outcome(root) != trace.outcome:
        wrong.append(f"ends with {outcome(root)}, not {trace.outcome}")
    return wrong


def write_state(state: State, contents: Contents, base: Path) -> None:
    """Write a state of the disk into a directory."""
    for path, content in sorted(state.items()):
        if content == FOLDER:
            (base / path).mkdir()
            continue
        data = contents.bytes_of(content)
        target = link_target(data)
        if target is None:
            (base / path).write_bytes(data)
        else:
            (base / path).symlink_to(target)


def outcome(root: Path) -> tuple[object, ...]:
    """What a store holds in the end, whoever wrote it: versions, kept set and tags."""
    log = Log(LocalBlobStore(root), Limits())
    records = [step.stored.record for step in log.steps(EMPTY_PREFIX)]
    tail = log.tail()
    made = [
        (one.version, one.run, one.step, one.digest)
        for one in records
        if isinstance(one, VersionRecord)
    ]
    tags = [(one.name, one.version) for one in list_tags(log, tail)]
    return (tuple(made), tail.now.kept, tuple(tags))


def calls_of(story: Story, base: Path) -> list[Call]:
    """The system calls of a story, in order."""
    disk, stage, _ = _prepared(story, base, frozenset(), no_fsync)
    with disk.tracing():
        story.run(stage)
        return list(disk.calls)


def _prepared(
    story: Story, base: Path, lacks: frozenset[Lack], skips: Skips
) -> tuple[TracedDisk, Stage, list[object]]:
    disk = TracedDisk(base, Contents(), lacks=lacks, skips=skips)
    told: list[object] = []
    stage = Stage(base, told.append)
    story.prepare(stage)
    disk.settle()
    stage.tell = disk.tell
    return disk, stage, told


def _trace(name: str, story: Story, disk: TracedDisk, stage: Stage, told: list[object]) -> Trace:
    disk.note()
    return Trace(
        name=name,
        story=story,
        contents=disk.contents,
        place=stage.place,
        before=tuple(disk.before),
        events=tuple(disk.events),
        first=0,
        told_before=tuple(told),
        outcome=outcome(stage.root),
    )


def _files_made(trace: Trace) -> tuple[FilesMade, ...]:
    """What the story makes outside the store in the end."""
    told = (event.what for event in trace.events if isinstance(event, Told))
    return tuple({one.path: one for one in told if isinstance(one, FilesMade)}.values())


def _whole(trace: Trace) -> dict[str, set[int]]:
    """Every durable blob's path, and what it held when it had its name."""
    place, disk = f"{STORE}/", trace.disk()
    whole: dict[str, set[int]] = {}
    for event in (None, *trace.events):
        if event is not None:
            disk.apply(event)
        if event is None or isinstance(event, Named):
            for path, content in disk.present().items():
                key = path.removeprefix(place)
                if path != key and content != FOLDER and is_durable_key(key):
                    whole.setdefault(path, set()).add(content)
    return whole
