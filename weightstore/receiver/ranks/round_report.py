"""What one round did on one rank: counted from its staging on, and reported once, at its end."""

from __future__ import annotations

from collections.abc import Callable

from weightstore.clock import Clock
from weightstore.errors import RankFailedError
from weightstore.receiver.live_state import Ready, VersionRef, Way
from weightstore.receiver.ranks.messages import Work, text_of
from weightstore.receiver.reports import Phase, Report, Tally


class RankRound:
    """Counts a round on one rank. Not for several threads.

    Args:
        tell: Takes its report.
        clock: For times.
        base: The version that is wholly there when the round begins; None where none is.
        target: The version that the round is about.

    Attributes:
        tally: Counts.
        target: The version that the round is about.
        is_told: Whether its end was reported.
    """

    def __init__(
        self,
        tell: Callable[[Report], None],
        clock: Clock,
        base: VersionRef | None,
        target: VersionRef,
    ) -> None:
        self.tally = Tally(clock)
        self.target = target
        self._tell = tell
        self._clock = clock
        self._base = base
        self._way: Way | None = None
        self._is_redo = False
        self._is_closing = False
        self._closed_at_s: float | None = None
        self.is_told = False

    @property
    def is_open_ended(self) -> bool:
        """Whether the gate was to be closed for it, and its end was not reported."""
        return self._is_closing and not self.is_told

    def staged(self, ready: Ready, base: VersionRef | None, *, is_redo: bool) -> None:
        """Note what is ready.

        Args:
            ready: That.
            base: The version that it takes the place of, as far as that is known.
            is_redo: It was cut on its way in.
        """
        self._base, self._way, self._is_redo = base, ready.way, is_redo

    def write_begins(self, *, is_redo: bool) -> None:
        """Note that it is written.

        Args:
            is_redo: It was cut on its way in since it was staged.
        """
        self._is_redo = self._is_redo or is_redo

    def closing(self) -> None:
        """Note that the gate is being closed, which may be cut."""
        self._is_closing = True

    def closed(self) -> None:
        """Note that nothing is served from now on."""
        if self._closed_at_s is None:
            self._closed_at_s = self._clock.monotonic_s()

    def done(self, full_bytes: int) -> None:
        """Report that the version is in place here.

        Args:
            full_bytes: Of everything that lives here.
        """
        if self.is_told or self._way is None:
            return
        self._end()
        report = self.tally.report(
            _number(self._base),
            self.target.version,
            self._way,
            full_bytes=full_bytes,
            is_redo=self._is_redo,
        )
        self._tell(report)

    def failed(self, error: Exception, full_bytes: int) -> None:
        """Report the error that ended it here.

        Args:
            error: That.
            full_bytes: As of `done`.
        """
        if self.is_told:
            return
        self._end()
        failure = self.tally.failure(
            _number(self._base), self.target.version, error, full_bytes=full_bytes
        )
        self._tell(failure)

    def given_up(self, reason: str, full_bytes: int) -> None:
        """Report that it was begun here, and that nobody asks for its end any more.

        Args:
            reason: Why, in words.
            full_bytes: As of `done`.
        """
        self.failed(RankFailedError(f"the engine has given up {self.target}: {reason}"), full_bytes)

    def work(self, full_bytes: int) -> Work:
        """What was done so far, for the leader.

        Args:
            full_bytes: As of `done`.
        """
        tally = self.tally
        return Work(
            way="" if self._way is None else self._way.value,
            reason=text_of(tally.reason),
            is_redo=self._is_redo,
            applied_count=tally.applied_count,
            launch_count=tally.launch_count,
            wire_bytes=tally.wire_bytes,
            decoded_bytes=tally.decoded_bytes,
            applied_bytes=tally.applied_bytes,
            skipped_bytes=tally.skipped_bytes,
            full_bytes=full_bytes,
            seconds_us={
                phase.value: int(seconds * 1e6) for phase, seconds in tally.seconds.items()
            },
        )

    def _end(self) -> None:
        self.is_told = True
        if self._closed_at_s is not None:
            self.tally.seconds[Phase.PAUSE] = self._clock.monotonic_s() - self._closed_at_s


def _number(ref: VersionRef | None) -> int | None:
    return None if ref is None else ref.version
