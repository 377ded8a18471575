"""What others saw of a process that was killed, and what healed it."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import load_file

from weightstore.history.log import Log
from weightstore.testing.fleet_kills.fleet import Fleet
from weightstore.testing.fleet_kills.seats import LINK
from weightstore.testing.fleet_kills.story import (
    AGENT,
    FILES,
    MEMBERS,
    RANKS,
    RECEIVERS,
    SETTINGS,
    TRAINER,
    weights_of,
)
from weightstore.testing.trainer_lab import bits_of

SEAT_KINDS = {
    TRAINER: "trainer",
    AGENT: "host agent",
    FILES: "directory's follower",
    RANKS[0]: "rank 0, the leader",
    RANKS[1]: "rank 1",
    **dict.fromkeys(RECEIVERS, "receiver"),
}
WAYS = {"change": "staged change", "streamed": "stream", "full": "full", "nothing": "nothing"}


def seat_kind(seat: str) -> str:
    """What a seat is, in words."""
    return SEAT_KINDS[seat]


def phase_of(point: str) -> str:
    """The phase of a point, in words."""
    phase, _, rest = point.rpartition(":")
    is_call = rest.strip() not in {"before", "after"}
    return f"{phase} (storage)" if is_call else phase


def seen_of(fleet: Fleet, seat: str, process: int) -> str:
    """What others see of a process that has just died.

    Raises:
        AssertionError: a load of the directory would find a mixture.
    """
    if seat == TRAINER:
        return _log_state(fleet)
    if seat == AGENT:
        return "a socket at which nobody listens"
    if seat == FILES:
        held = held_by_files(fleet)
        return "no directory" if held is None else f"the directory, {_relative(fleet, held)}"
    member = fleet.member(process if seat in MEMBERS else fleet.process(RANKS[0]))
    whose = "its object" if seat in MEMBERS else "the engine's object"
    if member is None:
        return f"{whose} is not there"
    live = "" if member.live is None else f" at the {_relative(fleet, member.live.version)}"
    staged = "" if member.staged is None else ", the next one staged"
    return f"{whose}: {member.state}{live}{staged}"


def healed_by(fleet: Fleet, seat: str, marks: dict[str, int]) -> str:
    """What was done after a death until everybody was at the goal.

    Args:
        fleet: It.
        seat: Whose process died.
        marks: How many lines each seat had written before.

    Raises:
        AssertionError: a rank died, and no new engine was begun.
    """
    fleet.read_on()  # all of what the last to come there was brought by
    if seat == TRAINER:
        return _trainer_healed(fleet, marks[seat])
    if seat == AGENT:
        reasons = [
            str(one.rest[3])
            for receiver in RECEIVERS
            for one in fleet.scrolls[receiver].of("report", first=marks[receiver])
        ]
        is_out = any("host agent" in reason for reason in reasons)
        return "agent left out: receivers read by themselves" if is_out else "nothing"
    if seat == FILES:
        return _files_healed(fleet, marks[seat])
    if seat in RECEIVERS:
        return _way(fleet, seat, 0.0)
    begun = fleet.scrolls[RANKS[0]].of("engine", first=marks[RANKS[0]])
    assert begun, f"{seat} died, and the engine went on"
    ways = ", ".join(f"{rank}: {_way(fleet, rank, begun[-1].when_s)}" for rank in RANKS)
    return f"new engine; {ways}"


def held_by_files(fleet: Fleet) -> int | None:
    """The version that a load of the directory finds; None where there is no directory.

    Raises:
        AssertionError: it finds no version.
    """
    folder = fleet.place / "files" / LINK
    if not folder.exists():
        return None
    found = {
        name: array for file in _weight_files(folder) for name, array in load_file(file).items()
    }
    for version in (fleet.goal, *range(fleet.goal - 1, 0, -1)):
        wanted = weights_of(version)
        if bits_of(found) == bits_of(wanted):
            return int(version)
    raise AssertionError(f"{folder} leads to no version")


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _log_state(fleet: Fleet) -> str:
    now = Log(fleet.blobs, SETTINGS.limits).tail().now
    assert now.newest is not None
    assert now.active is not None
    if now.newest.version < fleet.goal:
        return "no new version"
    if now.active.version < fleet.goal:
        return "the new version, not active"
    return "the new version, active"


def _relative(fleet: Fleet, version: int) -> str:
    if version == fleet.goal:
        return "new version"
    return "version before" if version == fleet.goal - 1 else "older version"


def _trainer_healed(fleet: Fleet, first: int) -> str:
    process = fleet.process(TRAINER)
    scroll = fleet.scrolls[TRAINER]
    done = [one.word for one in scroll.said[first:] if one.process == process]
    if "put" not in done:
        return "nothing"
    return "the same step put and activated again"


def _files_healed(fleet: Fleet, first: int) -> str:
    process = fleet.process(FILES)
    scroll = fleet.scrolls[FILES]
    (found,) = scroll.of("recovered", process=process, first=first)
    version, is_redo, _ = found.rest
    if is_redo:
        return "redo from the journal"
    if version is None:
        return "full"
    return "nothing" if version == fleet.goal else "staged change"


def _way(fleet: Fleet, seat: str, since_s: float) -> str:
    """How the process of a seat came to a version for the first time since then."""
    for one in fleet.scrolls[seat].of("report", process=fleet.process(seat)):
        if one.when_s >= since_s:
            way = str(one.rest[0])
            return WAYS.get(way, way) + (" (redo)" if one.rest[1] else "")
    return "nothing"
