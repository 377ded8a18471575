"""A receiver that follows the log: it looks, tells others, stages ahead, and applies.

Looking at the tail, working and telling others are apart, since neither a version that takes a
minute to stage nor a slow write of the member object must keep the receiver from seeing what is
active. Each is one bounded call, so that tests and simulations take the steps in any order; `run`
makes them with three threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self, assert_never

from weightstore.clock import Clock
from weightstore.errors import InputRefusedError, WeightStoreError
from weightstore.ids import VersionId
from weightstore.receiver.gate import OWN_RECEIVER
from weightstore.receiver.live_state import Live, Ready, Staged, VersionRef, held_version
from weightstore.receiver.membership import Membership
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.refits import At
from weightstore.receiver.serve_policy import Mode, TailView
from weightstore.storage.machine import process_id, refuse_fork

LOGGER = logging.getLogger("weightstore.receiver")
STOP_TIMEOUT_S = 60.0
"""So long a follower that is stopped is waited for; what it does then still comes to its end."""
_DOUBLING_COUNT_MAX = 16


class Followed(Protocol):
    """What a follower moves: a receiver, or an engine of several ranks."""

    @property
    def settings(self) -> ReceiverSettings:
        """Mode and times."""
        ...

    @property
    def live(self) -> Live:
        """What the live memory holds."""
        ...

    @property
    def staged(self) -> Staged:
        """What is ready to be applied."""
        ...

    @property
    def view(self) -> TailView | None:
        """What was read of the tail."""
        ...

    def poll(self) -> TailView:
        """Look at the tail of the log."""
        ...

    def stage(self, selector: int | str, /) -> object:
        """Make a version ready while the engine serves."""
        ...

    def refit(self, selector: int | str, /, *, at: At) -> object:
        """Bring a version into place; one that is staged, without the store."""
        ...


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done."""


@dataclass(frozen=True, slots=True)
class StageAhead:
    """Make a version ready that may be activated next."""

    version: VersionId


@dataclass(frozen=True, slots=True)
class GoTo:
    """Bring a version into place."""

    version: VersionId


Move = Rest | StageAhead | GoTo


@dataclass(frozen=True, slots=True)
class Trouble:
    """What goes wrong again and again.

    Attributes:
        error: The last one.
        count: How often in a row.
    """

    error: Exception
    count: int


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """What keeps a follower from following; None each where nothing does.

    Attributes:
        look: The tail cannot be read.
        work: A version cannot be staged or brought in.
        member: The member object cannot be written: an activation does not wait for this one.
    """

    look: Trouble | None = None
    work: Trouble | None = None
    member: Trouble | None = None


def next_move(mode: Mode, live: Live, staged: Staged, view: TailView | None) -> Move:
    """What a follower does next. Moves nothing.

    In the mode `active` the version that is active is brought in, and the newest made ready
    for its turn; before the first activation the newest is brought in, which nobody serves.
    """
    if view is None or mode is Mode.CONTROLLER:
        return Rest()
    is_active = mode is Mode.ACTIVE and view.active is not None
    goal = view.active if is_active else view.newest
    if goal is None:
        return Rest()
    held = held_version(live)
    if held is None or held.version != goal:
        return GoTo(goal)
    newest = view.newest
    if not is_active or newest is None or newest == goal or _stages(staged, held) == newest:
        return Rest()
    return StageAhead(newest)


class Follower:
    """Keeps one receiver at what its mode says, until it is closed.

    Use it as a context, which follows in the background, or call `run` in a thread of your
    own. Errors are kept in `status`, and what failed is tried again, later each time.

    Args:
        receiver: What is moved.
        membership: Tells others.
        clock: Measures how long a staged version is kept.
        at: When weights may be written.
        on_close: Called once at the end.
    """

    def __init__(
        self,
        receiver: Followed,
        membership: Membership,
        clock: Clock,
        *,
        at: At,
        on_close: Callable[[], None],
    ) -> None:
        self.membership = membership
        self._receiver = receiver
        self._settings = receiver.settings
        self._mode = receiver.settings.policy.mode
        self._clock = clock
        self._at = at
        self._on_close = on_close
        self._troubles: dict[str, Trouble] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._to_tell = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._staged_at_s = 0.0
        self._publish_from_s = 0.0
        self._process = process_id()

    @property
    def status(self) -> FollowerStatus:
        """What keeps it from following."""
        found = self._troubles
        return FollowerStatus(found.get("look"), found.get("work"), found.get("member"))

    def look(self) -> float:
        """Look at the tail of the log once, and tell others how things stand.

        Returns:
            Seconds until the next look.
        """
        self._refuse_fork()
        delay_s = self._look()
        self._publish()
        return delay_s

    def work(self) -> float:
        """Do the next thing that the last look asks for, if there is one.

        After a crash: as `Receiver.refit`.

        Returns:
            Seconds until it is worth while to come again; a look that shows something new may
            come before.
        """
        self._refuse_fork()
        delay_s = self._work()
        self._publish()
        return delay_s

    def _look(self) -> float:
        before = self._receiver.view
        delay_s = self._tried("look", self._receiver.poll)
        if _said(before) != _said(self._receiver.view):
            self._news.set()
            self._to_tell.set()
        return delay_s

    def _work(self) -> float:
        receiver, poll_s = self._receiver, self._settings.poll_s
        move = next_move(self._mode, receiver.live, receiver.staged, receiver.view)
        match move:
            case Rest():
                self._note("work", None)
                return poll_s
            case StageAhead(version):
                left_s = self._hold_left_s()
                if left_s > 0:
                    return min(left_s, poll_s)
                delay_s = self._tried("work", lambda: self._stage(version))
                self._to_tell.set()
            case GoTo(version):
                delay_s = self._tried("work", lambda: receiver.refit(version, at=self._at))
                held = held_version(receiver.live)
                if held is not None and held.version == version:
                    delay_s = 0.0
                self._to_tell.set()
            case _:
                assert_never(move)
        return delay_s

    def step(self) -> float:
        """Look once and do the next thing; for a loop of the caller's.

        Returns:
            Seconds until the next step.
        """
        return min(self.look(), self.work())

    def run(self, stop: threading.Event | None = None) -> None:
        """Follow in this thread, look and tell others in two more, until an event is set.

        Args:
            stop: Ends it when it is set; it is set when this ends, closed. None follows until
                an interrupt.
        """
        self._refuse_closed()
        ending = stop or self._stop
        helpers: list[threading.Thread] = []
        try:
            for name, loop in (("weightstore-look", self._watch), ("weightstore-tell", self._tell)):
                helper = threading.Thread(target=loop, args=(ending,), name=name, daemon=True)
                helper.start()
                helpers.append(helper)
            while not (ending.is_set() or self._is_closed):
                self._news.wait(self._work())
                self._news.clear()
        finally:
            ending.set()
            self._to_tell.set()
            for helper in helpers:
                helper.join(STOP_TIMEOUT_S / len(helpers))
            self.close()

    def close(self) -> None:
        """Leave: others no longer wait for this receiver. A second call does nothing.

        A thread that follows ends after what it is doing now. In a forked child nothing is
        done: the parent goes on.
        """
        if process_id() != self._process:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._news.set()
        self._to_tell.set()
        self._tried("member", self.membership.leave)
        self._on_close()

    def __enter__(self) -> Self:
        self._refuse_closed()
        if self._thread is not None:
            raise InputRefusedError("this follower runs already", do="Make another follower.")
        self._thread = threading.Thread(
            target=self.run, args=(self._stop,), name="weightstore-follow", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if process_id() != self._process:
            return
        self._stop.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)
            if self._thread.is_alive():
                LOGGER.warning("a follower is still at work after %s s", STOP_TIMEOUT_S)

    def _watch(self, ending: threading.Event) -> None:
        try:
            while not ending.is_set():
                ending.wait(self._look())
        finally:
            self._news.set()

    def _tell(self, ending: threading.Event) -> None:
        # Also without news, for what the work is at, and as a sign of life.
        while not ending.is_set():
            self._publish()
            self._to_tell.wait(self._settings.poll_s)
            self._to_tell.clear()

    def _stage(self, version: VersionId) -> None:
        self._receiver.stage(version)
        self._staged_at_s = self._clock.monotonic_s()

    def _hold_left_s(self) -> float:
        """How long what is staged is still kept for its activation.

        Without this a trainer that is faster than activations would have each version dropped
        before all receivers had it, and none would ever be activated by all.
        """
        held = held_version(self._receiver.live)
        if _stages(self._receiver.staged, held) is None:
            return 0.0
        kept_s = self._clock.monotonic_s() - self._staged_at_s
        return self._settings.stage_hold_s - kept_s

    def _publish(self) -> None:
        # Who may not write would else try it with each look, for ever.
        now_s = self._clock.monotonic_s()
        if self._is_closed or now_s < self._publish_from_s:
            return
        delay_s = self._tried("member", self.membership.publish)
        self._publish_from_s = now_s + delay_s if self.status.member else 0.0

    def _tried(self, what: str, action: Callable[[], object]) -> float:
        """Do something that may fail; seconds until it is tried again."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 -- kept in the status; a thread must not end by it
            count = self._note(what, error)
            doubled_s = self._settings.poll_s * 2.0 ** min(count, _DOUBLING_COUNT_MAX)
            return max(min(doubled_s, self._settings.retry_max_s), self._settings.poll_s)
        self._note(what, None)
        return self._settings.poll_s

    def _note(self, what: str, error: Exception | None) -> int:
        """Keep an error, or that there is none any more; how often it came in a row."""
        with self._lock:
            before = self._troubles.get(what)
            if error is None:
                self._troubles = {key: one for key, one in self._troubles.items() if key != what}
                return 0
            count = before.count + 1 if before else 1
            self._troubles = {**self._troubles, what: Trouble(error, count)}
        if before is None or type(before.error) is not type(error):
            is_ours = isinstance(error, WeightStoreError)
            LOGGER.warning("following fails (%s): %s", what, error, exc_info=not is_ours)
        return count

    def _refuse_fork(self) -> None:
        refuse_fork(self._process, "this receiver", OWN_RECEIVER)

    def _refuse_closed(self) -> None:
        self._refuse_fork()
        if self._is_closed:
            raise InputRefusedError("this follower is closed", do="Make another follower.")


def _stages(staged: Staged, held: VersionRef | None) -> VersionId | None:
    """The version that is ready on top of the one that is live."""
    if isinstance(staged, Ready) and staged.base in {None, held}:
        return staged.target.version
    return None


def _said(view: TailView | None) -> object:
    return None if view is None else (view.newest, view.active, view.active_slot)
