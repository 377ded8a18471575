"""Followed directories on a disk that forgets: stories, and what must hold in every state.

Wherever the power goes, the link leads to one whole version or is not there, and whoever was
told of a version finds it. From any such state the next process ends where one without a cut
ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from weightstore.errors import CorruptObjectError, WeightStoreError
from weightstore.history.export import export_checkpoint
from weightstore.history.store_format import open_store
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.host_files.mark import parse_mark
from weightstore.receiver.host_files.opening import open_host_files
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.crash_stories import SETTINGS, Stage, Story, versions
from weightstore.testing.crash_traces import Trace, write_state
from weightstore.testing.disk_model import (
    EMPTY,
    Made,
    State,
    Synced,
    Told,
    link_target,
)

LINK = "live"
PLACE = f".{LINK}.weightstore"
LEFT_IN_THE_END = {"lock", "state"}
"""Besides the folder that the link leads to."""

Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class LiveAt:
    """Somebody was told that the directory holds a version; None where a change has begun."""

    version: int | None


@dataclass(frozen=True, slots=True)
class LiveCrash:
    """A power cut and what it has left.

    Attributes:
        trace: What was cut.
        index: Events that had happened.
        number: Tells states apart.
        state: The disk.
        wrong: What is wrong with it; empty if all is well.
    """

    trace: Trace
    index: int
    number: int
    state: State
    wrong: str


def opened(stage: Stage) -> HostFiles:
    """The directory of a stage, in a process of its own."""
    lab = stage.process()
    return open_host_files(
        VersionSource(lab.blobs, lab.log, SETTINGS),
        open_store(lab.blobs, lab.log),
        stage.base / LINK,
        settings=None,
        clock=lab.clock,
        entropy=lab.entropy,
    )


def follow(stage: Stage, *wanted: int) -> None:
    """Bring the directory to versions, one after the other."""
    stage.tell(LiveAt(None))
    with opened(stage) as files:
        for version in wanted:
            stage.tell(LiveAt(None))
            files.refit(version)
            stage.tell(LiveAt(version))


def _prepared(count: int, *wanted: int) -> Story:
    """A store with so many versions, and a directory that was brought to the first one wanted."""

    def prepare(stage: Stage) -> None:
        versions(count)(stage)
        if len(wanted) > 1:
            follow(stage, wanted[0])

    return Story(prepare, lambda stage: follow(stage, *wanted[-2 if len(wanted) > 2 else -1 :]))  # noqa: PLR2004 -- the one that is there


STORIES: dict[str, Story] = {
    "first version": _prepared(2, 2),
    "change": _prepared(2, 1, 2),
    "two changes": _prepared(3, 1, 2, 3),
    "older version": _prepared(2, 2, 1),
}
_FROM_A_VERSION = tuple(story for name, story in STORIES.items() if name != "first version")
ENDS = {"first version": 2, "change": 2, "two changes": 3, "older version": 1}


def exported(base: Path, version_count: int) -> dict[int, Files]:
    """The files of each version, as an export writes them."""
    stage = Stage(base, lambda _: None, "exports")
    lab = stage.process()
    found = {}
    for version in range(1, version_count + 1):
        target = base / f"export-{version}"
        plan = lab.plan(version)
        export_checkpoint(lab.blobs, plan, target, entropy=lab.entropy, settings=SETTINGS)
        found[version] = {path.name: path.read_bytes() for path in target.iterdir()}
    return found


def live_crashes(trace: Trace, known: dict[int, Files], limit: int) -> Iterator[LiveCrash]:
    """Cut the power after every event, and look at the link in what may be left."""
    told = [one for one in trace.told_before if isinstance(one, LiveAt)]
    disk, seen = trace.disk(), set[tuple[int, int | None]]()
    for index, event in enumerate((None, *trace.events)):
        if event is not None:
            disk.apply(event)
        if isinstance(event, Told) and isinstance(event.what, LiveAt):
            told.append(event.what)
        if index < trace.first or isinstance(event, Synced | Made):
            continue
        relied = told[-1].version if told else None
        for state in disk.crash_states(limit):
            key = (trace.contents.number_of_state(state), relied)
            if key not in seen:
                seen.add(key)
                wrong = _wrong(trace, state, known, relied)
                yield LiveCrash(trace, index, key[0], state, wrong)


def go_on(crash: LiveCrash, known: dict[int, Files], end: int, base: Path) -> str:
    """Let another process go on from a state, on a real disk; what is wrong then.

    Args:
        crash: What was left.
        known: The files of each version.
        end: The version that the story ends with.
        base: An empty directory.
    """
    write_state(crash.state, crash.trace.contents, base)
    stage = Stage(base, lambda _: None, f"third {crash.number}")
    try:
        for _ in range(2):
            crash.trace.story.run(stage)
    except WeightStoreError as error:
        return f"{type(error).__name__}: {error}"
    return wrong_end(base, known[end])


def wrong_end(base: Path, expected: Files, link: str = LINK) -> str:
    """What is wrong with a directory that was followed to the end; or nothing."""
    live = base / link
    found = {path.name: path.read_bytes() for path in live.iterdir()} if live.exists() else {}
    if found != expected:
        return f"the link leads to {sorted(found)}, not to the version"
    left = {path.name for path in (base / f".{link}.weightstore").iterdir()}
    if left != LEFT_IN_THE_END | {live.readlink().name}:
        return f"{sorted(left)} is left"
    return ""


def _wrong(trace: Trace, state: State, known: dict[int, Files], relied: int | None) -> str:
    number = state.get(LINK)
    target = None if number is None else link_target(trace.contents.bytes_of(number))
    if number is not None and target is None:
        return "the link is no link"
    is_known = _is_marked(trace, state, known) or _is_journal(trace, state)
    if target is None:
        if relied is not None:
            return f"version {relied} was told of, and no link is there"
        is_lost = trace.story in _FROM_A_VERSION and not is_known
        return "no link is there, and nothing that brings it back" if is_lost else ""
    held = _held_at(trace, state, known, target)
    if not held:
        return "the link leads to a mixture"
    if relied not in {None, *held}:
        return f"version {relied} was told of, {held} is there"
    return "" if is_known else "the link is there, and nothing says what it leads to"


def _held_at(trace: Trace, state: State, known: dict[int, Files], target: str) -> list[int]:
    """Versions whose files are in a folder."""
    folder = f"{target}/"
    found = {
        path.removeprefix(folder): trace.contents.bytes_of(content)
        for path, content in state.items()
        if path.startswith(folder)
    }
    return [version for version, files in known.items() if files == found]


def _is_marked(trace: Trace, state: State, known: dict[int, Files]) -> bool:
    """Whether the mark names a version and a folder that holds it."""
    try:
        mark = parse_mark(trace.contents.bytes_of(state[f"{PLACE}/state"]))
    except (KeyError, CorruptObjectError):
        return False
    return mark.version in _held_at(trace, state, known, f"{PLACE}/{mark.folder}")


def _is_journal(trace: Trace, state: State) -> bool:
    """Whether a whole journal is there."""
    data = trace.contents.bytes_of(state.get(f"{PLACE}/journal", EMPTY))
    return hashlib.sha256(data[:-32]).digest() == data[-32:]
