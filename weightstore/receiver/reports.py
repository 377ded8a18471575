"""What a refit did: which way, how long each phase took, and how many bytes it was about."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from weightstore.clock import Clock
from weightstore.errors import WeightStoreError
from weightstore.receiver.live_state import Way


class Phase(enum.Enum):
    """Where the time of a refit goes. Phases before `wait` run while the engine serves."""

    DISCOVER = "discover"
    """Finding the version in the log and the way to it."""
    FETCH = "fetch"
    """Reading packs or the full form, and their hashes."""
    SCAN = "scan"
    """Looking at a share of all live elements, or at all of them."""
    VERIFY = "verify"
    """Indexes, counts and digest tables; what a heal or a whole version has written."""
    DECODE = "decode"
    """Streams into positions and bits, over the bits that are live."""
    STAGE = "stage"
    """Moving the change into the pool."""
    WAIT = "wait"
    """For open serving blocks."""
    PAUSE = "pause"
    """From the last block's end until the gate opens; holds the two below, and of every way but a
    staged change what is read and compared meanwhile."""
    APPLY = "apply"
    """Writing live memory."""
    RESUME = "resume"
    """Callbacks."""


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """What a refit moved.

    Attributes:
        wire: Bytes of the objects that were read here; not what a host agent has read.
        decoded: Bytes of positions and values of changes in them.
        applied: Bytes written to live memory.
        skipped: Bytes of changed units that do not live here.
        full: Bytes of everything that lives here: what a full load would have written.
    """

    wire: int = 0
    decoded: int = 0
    applied: int = 0
    skipped: int = 0
    full: int = 0


def spent_text(seconds: Mapping[str, float], size_bytes: ByteCounts) -> str:
    """Times and bytes of a refit as logs say them.

    Args:
        seconds: By name of the phase.
        size_bytes: What was moved.
    """
    names = [phase.value for phase in Phase if phase.value in seconds]
    times = [f"{name} {1000 * seconds[name]:.1f}" for name in names]
    sizes = [f"{each.name} {getattr(size_bytes, each.name)}" for each in fields(size_bytes)]
    return f"ms: {', '.join(times) or 'none'}; bytes: {', '.join(sizes)}"


@dataclass(frozen=True, slots=True)
class RefitReport:
    """What one refit, redo, recovery or rollback did.

    Attributes:
        base: The version before; None where nothing was known. Of a mixture: the version that
            was there before the change that was cut.
        target: The version that is there now.
        way: How it came there.
        reason: Why it was no staged change, or went on without its host agent; else empty.
        seconds: By phase; a phase that did not happen is not in it.
        size_bytes: What was moved.
        applied_count: Units that were written.
        launch_count: Writes that live memory saw.
        is_redo: A change that had been cut was written again.
        superseded_by: The version that another thread brought in while this refit waited,
            and that stays; nothing was done then.
    """

    base: int | None
    target: int
    way: Way
    reason: str = ""
    seconds: dict[Phase, float] = field(default_factory=dict)
    size_bytes: ByteCounts = ByteCounts()
    applied_count: int = 0
    launch_count: int = 0
    is_redo: bool = False
    superseded_by: int | None = None

    @property
    def pause_s(self) -> float:
        """Seconds in which nothing was served, waiting apart."""
        return self.seconds.get(Phase.PAUSE, 0.0)


@dataclass(frozen=True, slots=True)
class RefitFailure:
    """What a refit, staging, redo, recovery or rollback had done when an error ended it.

    Attributes:
        base: The version before; None where nothing was known.
        target: The version that was wanted; None if the error came before it was found.
        error_code: Of the error, such as `"WS-4007"`; the name of the exception where that is
            none of this library.
        message: What happened, in words.
        seconds: By phase, up to the error.
        size_bytes: What was moved up to the error.
        applied_count: Units that were written; above 0 the receiver is dirty.
        launch_count: Writes that live memory saw.
    """

    base: int | None
    target: int | None
    error_code: str
    message: str
    seconds: dict[Phase, float] = field(default_factory=dict)
    size_bytes: ByteCounts = ByteCounts()
    applied_count: int = 0
    launch_count: int = 0

    @property
    def pause_s(self) -> float:
        """Seconds in which nothing was served, waiting apart."""
        return self.seconds.get(Phase.PAUSE, 0.0)


Report = RefitReport | RefitFailure
"""What callbacks of a receiver are given: one for each refit, whether it is done or not."""


class Tally:
    """Adds up the report of the refit that is under way. Not for several threads.

    Attributes:
        now: The phase that it is in, for whoever looks from outside; None between two.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._inner_s: list[float] = []
        self.now: Phase | None = None
        self.seconds: dict[Phase, float] = {}
        self.wire_bytes = 0
        self.decoded_bytes = 0
        self.applied_bytes = 0
        self.skipped_bytes = 0
        self.applied_count = 0
        self.launch_count = 0
        self.reason = ""

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Count the seconds of a block, also of one that fails.

        Phases inside a phase are not counted for it, the pause apart.
        """
        start_s, before = self._clock.monotonic_s(), self.now
        self._inner_s.append(0.0)
        self.now = phase
        try:
            yield
        finally:
            self.now = before
            spent_s = self._clock.monotonic_s() - start_s
            inner_s = self._inner_s.pop()
            if self._inner_s:
                self._inner_s[-1] += spent_s
            own_s = spent_s if phase is Phase.PAUSE else spent_s - inner_s
            self.seconds[phase] = self.seconds.get(phase, 0.0) + own_s

    def wrote(self, unit_count: int, size_bytes: int) -> None:
        """Count one launch."""
        self.launch_count += 1
        self.applied_count += unit_count
        self.applied_bytes += size_bytes

    def report(
        self, base: int | None, target: int, way: Way, *, full_bytes: int, is_redo: bool
    ) -> RefitReport:
        """What was counted."""
        return RefitReport(
            base=base,
            target=target,
            way=way,
            reason=self.reason,
            seconds=dict(self.seconds),
            size_bytes=self._size_bytes(full_bytes),
            applied_count=self.applied_count,
            launch_count=self.launch_count,
            is_redo=is_redo,
        )

    def failure(
        self, base: int | None, target: int | None, error: BaseException, *, full_bytes: int
    ) -> RefitFailure:
        """What was counted until an error came."""
        code, message = type(error).__name__, str(error)
        if isinstance(error, WeightStoreError):
            code, message = error.code, error.message
        return RefitFailure(
            base=base,
            target=target,
            error_code=code,
            message=message,
            seconds=dict(self.seconds),
            size_bytes=self._size_bytes(full_bytes),
            applied_count=self.applied_count,
            launch_count=self.launch_count,
        )

    def _size_bytes(self, full_bytes: int) -> ByteCounts:
        return ByteCounts(
            wire=self.wire_bytes,
            decoded=self.decoded_bytes,
            applied=self.applied_bytes,
            skipped=self.skipped_bytes,
            full=full_bytes,
        )
