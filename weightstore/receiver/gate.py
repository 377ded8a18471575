"""The serving gate: readers in blocks, one writer that stops them.

A block is one engine step. While it is open, the weights are wholly the version that it was
given; if the writer could not wait for its end, the block says so when it ends, and what was
computed in it must be thrown away. (P4) An admission is a whole request, of many blocks: a
writer waits for it only where it was told to write between requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weightstore import arguments
from weightstore.errors import Fact, NotReadyError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.ids import VersionId
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.serve_policy import CONTROLLER, Mode, ServePolicy, TailView
from weightstore.storage.machine import process_id, refuse_fork

OWN_RECEIVER = "Attach a receiver in the child, to weights of its own."
"""What a forked child is told that uses its parent's."""


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """From which token on a sample was computed with a version."""

    version: VersionId
    first_token: int


class SampleVersions:
    """The versions that one sample was computed with, in order. One thread at a time."""

    def __init__(self) -> None:
        self._served: list[ServedVersion] = []
        self._last_token = -1

    def add(self, version: VersionId, first_token: int) -> None:
        """Note the version of the block that computed the tokens from `first_token` on.

        Raises:
            InputRefusedError: that is no whole number, or not after what was noted last.
        """
        least = self._last_token + 1
        self._last_token = arguments.whole(
            first_token, "first_token", least=least, most=MAX_INTEGER
        )
        if not self._served or self._served[-1].version != version:
            self._served.append(ServedVersion(version, first_token))

    @property
    def served(self) -> tuple[ServedVersion, ...]:
        """Each version once for each time that it came."""
        return tuple(self._served)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one block or request asks for, on top of the receiver's policy.

    Attributes:
        exact: This version only.
        at_least: This version or a newer one.
        max_lag: At most so many versions behind the newest that was heard of.
    """

    exact: int | None = None
    at_least: int | None = None
    max_lag: int | None = None

    @classmethod
    def of(cls, exact: int | None, at_least: int | None, max_lag: int | None) -> Wanted:
        """What a caller asks for.

        Raises:
            InputRefusedError: something is no whole number from 0.
        """
        return cls(
            exact=_version_or_none(exact, "exact"),
            at_least=_version_or_none(at_least, "min"),
            max_lag=_version_or_none(max_lag, "max_lag"),
        )

    def refusal(self, version: VersionId, newest: VersionId) -> str:
        """Why a version will not do; empty where it will."""
        if self.exact is not None and version != self.exact:
            return f"version {version} is live, {self.exact} was asked for"
        if self.at_least is not None and version < self.at_least:
            return f"version {version} is live, at least {self.at_least} was asked for"
        lag = newest - version
        if self.max_lag is not None and lag > self.max_lag:
            return (
                f"version {version} is live, {lag} behind version {newest}; at most "
                f"{self.max_lag} was asked for"
            )
        return ""


ANYTHING = Wanted()
"""Whatever the receiver's policy lets through."""


class ServingGate:
    """Who may compute with the weights now. Safe from any thread; does no I/O.

    Args:
        policy: What may be served of what is wholly there.
        now_s: Monotonic time, for the policy.
    """

    def __init__(
        self, policy: ServePolicy = CONTROLLER, now_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._policy = policy
        self._now_s = now_s
        self._changed = threading.Condition()
        self._ref: VersionRef | None = None
        self._closed_because = "the receiver is empty"
        self._block_count = 0
        self._stop_count = 0
        self._admission_count = 0
        self._overrun_count = 0
        self._drain_reasons: list[str] = []
        self._hold_reasons: list[str] = []
        self._view: TailView | None = None
        self._process = process_id()

    @property
    def open_version(self) -> VersionRef | None:
        """The version that the writer lets be served; None while it has closed the gate."""
        return self._ref

    @property
    def view(self) -> TailView | None:
        """What was read of the tail; None before the first look."""
        return self._view

    @contextmanager
    def serving(self, wanted: Wanted = ANYTHING) -> Iterator[VersionId]:
        """Hold the weights still for a block, or refuse.

        Raises:
            NotReadyError: at the beginning: empty, dirty, changing, another version, or out of
                policy; at the end: the weights changed inside the block, or it has outlived
                what was read of the tail.
            StoreClosedError: this is a forked child, also of a block that was open at the fork.
        """
        with self._owned():
            ref = self._checked(wanted)
            stop_count, view = self._stop_count, self._view
            self._block_count += 1
        was_stopped = is_overdue = False
        try:
            yield ref.version
        finally:
            if self._is_owned:
                with self._changed:
                    self._block_count -= 1
                    was_stopped = self._stop_count != stop_count
                    is_overdue = not was_stopped and self._is_overdue(ref.version, view)
                    self._changed.notify_all()
        self._refuse_fork()
        if was_stopped or is_overdue:
            why = (
                f"the weights of version {ref.version} were changed inside a serving block"
                if was_stopped
                else f"a serving block of version {ref.version} outlived the look at the log that "
                "it relied on"
            )
            raise NotReadyError(
                why,
                do="Throw away what the block computed, and compute it again.",
                facts={"version": ref.version},
            )

    @contextmanager
    def admitted(self, wanted: Wanted = ANYTHING) -> Iterator[SampleVersions]:
        """Let a request in, or refuse; its steps are blocks of their own.

        Raises:
            NotReadyError: at the beginning: as `serving`, or a change waits for the requests
                that are open; at the end: such a change could not wait any longer.
            StoreClosedError: as `serving`.
        """
        with self._owned():
            if self._drain_reasons:
                raise NotReadyError(
                    f"no request is admitted: {self._drain_reasons[-1]}", facts=self._facts()
                )
            ref = self._checked(wanted)
            overrun_count = self._overrun_count
            self._admission_count += 1
        was_overrun = False
        try:
            yield SampleVersions()
        finally:
            if self._is_owned:
                with self._changed:
                    self._admission_count -= 1
                    was_overrun = self._overrun_count != overrun_count
                    self._changed.notify_all()
        self._refuse_fork()
        if was_overrun:
            raise NotReadyError(
                f"the weights were changed inside a request that began with version {ref.version}",
                do="Throw the request's result away, and compute it again.",
                facts={"version": ref.version},
            )

    @contextmanager
    def drained(self, reason: str, timeout_s: float) -> Iterator[bool]:
        """Admit no request inside, and wait first for those that are open, but not for ever.

        Open requests go on serving their steps. The wait ends early where the policy lets none
        of these steps through: those requests could not end. Requests that are still open then
        raise when they end.

        Yields:
            Whether all had ended.
        """
        with self._owned():
            self._drain_reasons.append(reason)
        try:
            with self._owned():
                self._changed.wait_for(self._need_not_drain, timeout_s)
                all_ended = not self._admission_count
                self._overrun_count += 0 if all_ended else 1
            yield all_ended
        finally:
            with self._owned():
                self._drain_reasons.remove(reason)
                self._changed.notify_all()

    def close(self, reason: str, timeout_s: float) -> bool:
        """Let no new block begin and wait for open ones, but not for ever.

        Blocks that are still open then raise when they end.

        Returns:
            Whether all had ended.
        """
        with self._owned():
            self._ref = None
            self._closed_because = reason
            self._changed.notify_all()
            all_ended = self._changed.wait_for(lambda: self._block_count == 0, timeout_s)
            self._stop_count += 1
            return all_ended

    def shut(self, reason: str) -> None:
        """Stop serving at once: open blocks raise when they end."""
        self.close(reason, 0)

    def open(self, ref: VersionRef) -> None:
        """Let blocks begin on a version that is wholly there."""
        with self._owned():
            self._ref = ref
            self._changed.notify_all()

    def hold(self, reason: str) -> None:
        """Stop serving at once, whatever opens the gate, until it is released."""
        with self._owned():
            self._hold_reasons.append(reason)
        self.shut(reason)

    def release(self) -> None:
        """Take back the oldest `hold`."""
        with self._owned():
            self._hold_reasons.pop(0)
            self._changed.notify_all()

    def hear(self, view: TailView) -> None:
        """Note a look at the tail of the log, of any thread."""
        with self._owned():
            self._view = view if self._view is None else self._view.joined(view)
            self._changed.notify_all()

    def refusal(self, wanted: Wanted = ANYTHING) -> str:
        """Why a block could not begin now; empty where it could."""
        with self._owned():
            return self._refused(wanted)

    @property
    def _is_owned(self) -> bool:
        return process_id() == self._process

    def _refuse_fork(self) -> None:
        refuse_fork(self._process, "this receiver", OWN_RECEIVER)

    def _owned(self) -> threading.Condition:
        """The lock; not for a forked child, where nobody may be left to release it."""
        self._refuse_fork()
        return self._changed

    def _checked(self, wanted: Wanted) -> VersionRef:
        reason = self._refused(wanted)
        ref = self._ref
        if reason or ref is None:
            raise NotReadyError(reason, facts=self._facts())
        return ref

    def _refused(self, wanted: Wanted) -> str:
        ref = self._ref
        if self._hold_reasons:
            return f"no version may be served: {self._hold_reasons[0]}"
        if ref is None:
            return f"no version may be served: {self._closed_because}"
        version, view = ref.version, self._view
        newest = view.newest if view else None
        return self._out_of_policy(version, view) or wanted.refusal(version, newest or version)

    def _out_of_policy(self, version: VersionId, view: TailView | None) -> str:
        return self._policy.refusal(version, view=view, now_s=self._now_s())

    def _is_overdue(self, version: VersionId, begun_under: TailView | None) -> bool:
        """Whether a block that ends now relied on the tail for too long.

        A process may be stopped inside a block for any time. What the block has computed
        counts if the look that it began under still does, or a later one says the same.
        """
        return self._policy.mode is Mode.ACTIVE and all(
            self._out_of_policy(version, view) for view in (begun_under, self._view)
        )

    def _need_not_drain(self) -> bool:
        return not self._admission_count or bool(self._refused(ANYTHING))

    def _facts(self) -> dict[str, Fact]:
        return {
            "version": self._ref.version if self._ref else None,
            "newest": self._view.newest if self._view else None,
            "active": self._view.active if self._view else None,
        }


def _version_or_none(value: int | None, what: str) -> int | None:
    return None if value is None else arguments.whole(value, what, least=0, most=MAX_INTEGER)
