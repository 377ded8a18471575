"""What the processes of a fleet do until the end, each as its user would write it.

What one of them serves, reports and says about itself it appends to a file, line by line, which
survives its death.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from weightstore.clock import SystemClock
from weightstore.codec.blocked import BlockedChange
from weightstore.errors import NotFoundError, NotReadyError
from weightstore.format.member import Member
from weightstore.history import activation
from weightstore.history.members import MemberList, list_members, put_member
from weightstore.layout.tensors import Units
from weightstore.receiver import membership
from weightstore.receiver.host_agent import pack_maker, segments
from weightstore.receiver.host_agent.channel import Channel
from weightstore.receiver.host_agent.client import AgentClient
from weightstore.receiver.host_agent.segment_cache import SegmentCache
from weightstore.receiver.host_files.disk_steps import DiskSteps
from weightstore.receiver.live_state import Way
from weightstore.receiver.live_storage import HostStorage, ScatterCounts
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.membership import Membership
from weightstore.receiver.ranks.channel import BlobChannel
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.receiver.ranks.roll_call import RollCall
from weightstore.receiver.refits import Refits
from weightstore.receiver.reports import RefitReport, Report
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.fleet_kills.board import Board, Doom
from weightstore.testing.fleet_kills.points import IDLE, Points, Say
from weightstore.testing.fleet_kills.story import (
    ACTIVATE_TIMEOUT_S,
    AGENT,
    FILES,
    FULL_FORM_EVERY,
    RANKS,
    RUN,
    SETTINGS,
    TRAINER,
    bits_sha256,
    boxes_of,
    empty_units,
    receiver_settings,
    weights_of,
)

PAUSE_S = 0.01
STAGED_WAIT_S = 1.0
LAUNCH_S = 0.002
LINK = "live"

_WEIGHTS = (
    (LiveWeights, "stage", "stage"),
    (LiveWeights, "close_for_apply", "close"),
    (LiveWeights, "write_staged", "apply"),
    (LiveWeights, "resume_after", "resume"),
    (LiveWeights, "open_after", "open"),
    (HostStorage, "scatter", "launch"),
    (HostStorage, "write", "write whole"),
    (AgentClient, "ask", "ask the agent"),
    (Membership, "publish", "publish member"),
    (Membership, "withdraw", "withdraw member"),
    (Refits, "look", "look at the log"),
)
_PHASES: dict[str, tuple[tuple[object, str, str], ...]] = {
    AGENT: (
        (LocalBlobStore, "get", "fetch"),
        (pack_maker, "make_segment", "decode"),
        (segments, "_write", "fill"),
        (SegmentCache, "take", "grant"),
        (SegmentCache, "give_back", "take back"),
        (Channel, "send", "send"),
        (Channel, "receive", "hear"),
    ),
    FILES: (
        (DiskSteps, "recover", "recover"),
        (DiskSteps, "write_journal", "journal"),
        (DiskSteps, "change", "change"),
        (DiskSteps, "export", "export"),
        (DiskSteps, "switch", "switch"),
        (DiskSteps, "hide", "hide"),
    ),
}


@dataclass(frozen=True, slots=True)
class Seat:
    """One process of the fleet.

    Attributes:
        name: Of its seat.
        place: Folder of the fleet.
        board: What it is asked for.
        points: Where it may die.
        say: Writes to its file.
    """

    name: str
    place: Path
    board: Board
    points: Points
    say: Say

    @contextmanager
    def opened(self) -> Iterator[WeightStore]:
        """The store."""
        with WeightStore.open(self.place / "store", settings=SETTINGS) as store:
            yield store

    def is_wanted(self) -> bool:
        """Wait a little; whether to go on."""
        if not self.board.is_over:
            threading.Event().wait(PAUSE_S)
            # A process at rest passes points too: by them it answers to a changed doom.
            self.points.passed(f"{IDLE}: rest")
        return not self.board.is_over


class Serves(Protocol):
    """A receiver, or a rank."""

    @property
    def live(self) -> object:
        """What its memory holds."""
        ...

    def serving(self) -> Any:  # noqa: ANN401 -- a context
        """A block."""
        ...


def be(name: str, place: Path) -> None:
    """Be the process of a seat until the end of the fleet."""
    file = os.open(_events(place, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    clock = SystemClock()

    def say(*words: object) -> None:
        line = json.dumps([os.getpid(), clock.monotonic_s(), *words])
        os.write(file, line.encode("ascii") + b"\n")

    board = Board(place / "board")
    points = Points(Doom(board, name), say)
    seat = Seat(name, place, board, points, say)
    _tell(seat)
    _slow_down()
    points.install()
    for owner, method, phase in _PHASES.get(name, _WEIGHTS if name != TRAINER else ()):
        points.wrap(owner, method, phase)
    say("started")
    _ROLES.get(name, _receive)(seat)
    say("ended")


def _events(place: Path, name: str) -> Path:
    return place / "events" / name


def _tell(seat: Seat) -> None:
    """Write down what this process says about itself, and what an activation has counted."""

    def put(blobs: Any, member: Member) -> None:  # noqa: ANN401 -- as the product's
        # Before it: whoever has seen the object finds the line.
        seat.say("member", member.member_id, member.counter, member.model_dump_json())
        put_member(blobs, member)

    def listed(blobs: Any, limits: Any) -> MemberList:  # noqa: ANN401 -- ditto
        found = list_members(blobs, limits)
        counted = [[one.member_id, one.counter] for one in found.members if one.mode == "active"]
        seat.say("listed", counted)
        return found

    _replace(membership, "put_member", put)
    _replace(activation, "list_members", listed)


def _slow_down() -> None:
    """Let each launch take a while, so that a block that was wrongly let in sees it."""
    scatter = HostStorage.scatter

    def slow(storage: HostStorage, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        found = scatter(storage, change, redo=redo)
        threading.Event().wait(LAUNCH_S)
        return found

    _replace(HostStorage, "scatter", slow)


def _replace(owner: object, name: str, value: Callable[..., Any]) -> None:
    """Replace what a module or class holds, in this process alone."""
    setattr(owner, name, value)


def _train(seat: Seat) -> None:
    """Put what is missing up to the goal and activate that, whenever it is not active."""
    with seat.opened() as store:
        state = store.state()
        active, newest = state.active or 0, state.newest or 0
        seat.say("reached", active)
        if newest > active:
            newest -= 1  # whoever was here before may have died without an answer: once more
        while seat.is_wanted():
            goal = seat.board.goal
            if active == goal:
                continue
            while newest < goal:
                newest += 1
                with seat.points.phase_of_all("put"):
                    version = store.put_step(
                        newest, weights_of(newest), run=RUN, anchor=newest % FULL_FORM_EVERY == 1
                    )
                seat.say("put", newest, version)
                if newest < goal:
                    _wait_staged(seat, store, newest)
            with seat.points.phase_of_all("activate"):
                done = store.activate(goal, timeout_s=ACTIVATE_TIMEOUT_S)
            seat.say("active", goal, done.slot, done.listed_count, done.staged_count)
            active = goal
            seat.say("reached", active)


def _wait_staged(seat: Seat, store: WeightStore, version: int) -> None:
    """Wait a little until all that live have a version staged, which the next one replaces."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + STAGED_WAIT_S
    while clock.monotonic_s() < until_s and seat.is_wanted():
        if all(one.staged == version for one in store.receivers()):
            return


def _receive(seat: Seat) -> None:
    with seat.opened() as store:
        units = empty_units(seat.name)
        settings = receiver_settings(seat.name, str(seat.place / "agent"))
        receiver = store.receiver(units, settings=settings)
        receiver.on_report(lambda report: _say_report(seat, report))
        with receiver.follow():
            _serve(seat, receiver, units)


def _say_report(seat: Seat, report: Report) -> None:
    if isinstance(report, RefitReport):
        way, redo = report.way.value, report.is_redo
        seat.say("report", way, redo, report.target, report.reason, report.size_bytes.wire)
    else:
        seat.say("failure", report.error_code, report.message)


def _rank(seat: Seat) -> None:
    """A rank serves its own share; the first one leads and follows the log for all."""
    _tell_rounds(seat)
    with seat.opened() as store:
        units = empty_units(seat.name)
        number = RANKS.index(seat.name)
        engine = store.engine(
            units,
            boxes=boxes_of(seat.name),
            rank=number,
            rank_count=len(RANKS),
            channel=seat.place / "channel",
            settings=EngineSettings(
                answer_timeout_s=20.0,
                stage_timeout_s=20.0,
                receiver=receiver_settings(seat.name, str(seat.place / "agent")),
            ),
        )
        if number == 0:
            with engine.follow():
                _serve(seat, engine, units)
            return
        stop = threading.Event()
        rounds = threading.Thread(target=_told, args=(seat, lambda: engine.serve_rounds(stop)))
        rounds.start()
        try:
            _serve(seat, engine, units)
        finally:
            stop.set()
            rounds.join()


def _told(seat: Seat, action: Callable[[], None]) -> None:
    try:
        action()
    except BaseException as error:
        seat.say("error", type(error).__name__, str(error))
        raise


def _tell_rounds(seat: Seat) -> None:
    """Make the parts of a round phases, and write down how a version came to this rank."""
    do, begin = RankWork.do, RollCall.begin

    def done(work: RankWork, part: Any, *given: Any) -> Any:  # noqa: ANN401 -- as the product's
        with seat.points.phase(f"round: {part.value}"):
            found = do(work, part, *given)
        if part.value == "open":
            made = work.work()
            assert made is not None
            seat.say("report", made.way, made.is_redo, given[0].version, made.reason, 0)
        return found

    def begun(roll_call: RollCall) -> Any:  # noqa: ANN401 -- ditto
        with seat.points.phase("begin an engine"):
            engine = begin(roll_call)
        seat.say("engine", engine.generation)
        return engine

    _replace(RankWork, "do", done)
    _replace(RollCall, "begin", begun)
    seat.points.wrap(RankWork, "attach", "round: attach")
    seat.points.wrap(BlobChannel, "put", "say to the ranks")


def _serve(seat: Seat, server: Serves, units: Mapping[str, Units]) -> None:
    """Serve block after block, and write down what each was computed with."""
    clock = SystemClock()
    while seat.is_wanted():
        asked_s = clock.monotonic_s()
        try:
            with server.serving() as version:
                start_s, state = clock.monotonic_s(), type(server.live).__name__
                sha256 = bits_sha256(units)
                end_s = clock.monotonic_s()
        except NotReadyError:
            continue
        seat.say("served", version, sha256, start_s, end_s, state, asked_s)


def _feed(seat: Seat) -> None:
    with seat.opened() as store, store.host_agent(seat.place / "agent"):
        seat.say("serving")
        while seat.is_wanted():
            pass


def _follow_files(seat: Seat) -> None:
    with seat.opened() as store, store.host_files(seat.place / "files" / LINK) as files:
        found = files.last_recovery
        seat.say("recovered", found.version, found.is_redo, found.reason)
        said = None
        while seat.is_wanted():
            try:
                report = files.refit("active")
            except NotFoundError:  # nothing is active yet
                continue
            if report.way is not Way.NOTHING or report.is_redo:
                _say_report(seat, report)
            if report.target != said:
                said = report.target
                seat.say("reached", said)


_ROLES: dict[str, Callable[[Seat], None]] = {
    TRAINER: _train,
    AGENT: _feed,
    FILES: _follow_files,
    **dict.fromkeys(RANKS, _rank),
}
