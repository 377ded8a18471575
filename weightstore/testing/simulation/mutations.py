"""Safety steps that are left out of the running product, and what then must be noticed."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from weightstore.clock import Clock
from weightstore.codec.blocked import BlockedChange
from weightstore.format.rules import Prefix
from weightstore.history import activation
from weightstore.ids import VersionId
from weightstore.receiver.gate import ServingGate
from weightstore.receiver.live_state import Building, Ready, VersionRef
from weightstore.receiver.live_storage import HostStorage, ScatterCounts
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.membership import Membership, Standing
from weightstore.receiver.ranks.messages import Part, Tables
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.serve_policy import ServePolicy, TailView
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.simulation.far_store import Weather
from weightstore.testing.simulation.run import Outcome, simulate


class Removed(enum.Enum):
    """A safety step of the product."""

    POLICY = "the gate asks for the policy of the receiver's mode"
    STALENESS = "in the mode `active` a look at the log is relied on for a bounded time"
    READ_TIME = "that time is counted from before the read"
    CLOSED_GATE = "the gate is closed while weights are written"
    STOPPED_BLOCK = "a block whose weights were changed inside raises when it ends"
    DRAINED = "a refit between requests waits for those that are open, or ends them"
    ABSOLUTE_REDO = "what is written again is absolute bits"
    STAGED_CLAIM = "a receiver says that a version is staged once it is"
    WITHDRAWAL = "it takes that back before it drops the version"
    CLOSED_RANK = "every rank has closed its gate before any is written"
    ALL_APPLIED = "no rank opens its gate before all have applied"
    PUT_WAIT = "a put that waits until its version is active waits for every receiver listed"
    STAGED_COUNT = "an activation counts those who have said that they are ready"


@contextmanager
def without(step: Removed) -> Iterator[None]:
    """Let the product run without a safety step inside this block."""
    with ExitStack() as stack:
        for target, name, stand_in in _STAND_INS[step]:
            stack.enter_context(patch.object(target, name, stand_in))
        yield


def caught(step: Removed, first_seed: int, seed_count: int) -> Outcome | None:
    """The first of so many seeds that breaks the promise of a step; None if none does.

    What the step protects from happens more often than it would by chance. A run that ends
    otherwise, as with an error that nobody expected, has not noticed that the step is gone.
    """
    promise = _BROKEN[step]
    with without(step):
        for seed in range(first_seed, first_seed + seed_count):
            found = simulate(seed, weather=_WEATHER.get(step))
            if any(promise.fullmatch(text) for text in found.broken):
                return found
    return None


def _everything(*_: object, **__: object) -> str:
    return ""


_inactive = ServePolicy._inactive  # noqa: SLF001 -- what is left out is inside


def _for_ever(self: ServePolicy, version: VersionId, view: TailView | None, now_s: float) -> str:
    return _inactive(replace(self, max_staleness_s=math.inf), version, view, now_s)


_look = VersionSource.look


def _look_then_clock(self: VersionSource, clock: Clock) -> tuple[Prefix, TailView]:
    prefix, view = _look(self, clock)
    return prefix, replace(view, read_at_s=clock.monotonic_s())


def _stay_open(self: ServingGate, reason: str, timeout_s: float) -> bool:
    del self, reason, timeout_s
    return True


_close = ServingGate.close


def _close_silently(self: ServingGate, reason: str, timeout_s: float) -> bool:
    all_ended = _close(self, reason, timeout_s)
    self._stop_count -= 1
    return all_ended


@contextmanager
def _wait_for_none(self: ServingGate, reason: str, timeout_s: float) -> Iterator[bool]:
    del self, reason, timeout_s
    yield True


def _xor(self: HostStorage, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
    del redo
    self._units[change.places()] ^= change.old_bits ^ change.new_bits
    return ScatterCounts(change.count, 0)


_standing = Receiver._standing  # noqa: SLF001 -- what is left out is inside


def _early(self: Receiver) -> Standing:
    said, staged = _standing(self), self.staged
    return replace(said, staged=staged.target) if isinstance(staged, Building) else said


_withdraw = Membership.withdraw


def _withdraw_for_now(self: Membership) -> None:
    _withdraw(self)
    self.stand_by()


def _nothing(self: Membership) -> None:
    del self


_move = RankWork._move  # noqa: SLF001 -- what is left out is inside


def _keep_open(
    self: RankWork, weights: LiveWeights, part: Part, target: VersionRef, reason: str
) -> None:
    if part is not Part.CLOSE:
        _move(self, weights, part, target, reason)
    elif isinstance(weights.staged, Ready) and weights.staged.target == target:
        self._closed_for = target


_apply = RankWork._apply  # noqa: SLF001 -- what is left out is inside


def _apply_and_open(self: RankWork, weights: LiveWeights, target: VersionRef) -> Tables:
    found = _apply(self, weights, target)
    weights.settle()
    weights.open_after()
    return found


def _always(*_: object) -> bool:
    return True


_STAND_INS: dict[Removed, tuple[tuple[Any, str, Callable[..., object]], ...]] = {
    Removed.POLICY: ((ServePolicy, "refusal", _everything),),
    Removed.STALENESS: ((ServePolicy, "_inactive", _for_ever),),
    Removed.READ_TIME: ((VersionSource, "look", _look_then_clock),),
    Removed.CLOSED_GATE: ((ServingGate, "close", _stay_open),),
    Removed.STOPPED_BLOCK: ((ServingGate, "close", _close_silently),),
    Removed.DRAINED: ((ServingGate, "drained", _wait_for_none),),
    Removed.ABSOLUTE_REDO: ((HostStorage, "scatter", _xor),),
    # Both of these keep a version from being claimed while it is built.
    Removed.STAGED_CLAIM: (
        (Receiver, "_standing", _early),
        (Membership, "withdraw", _withdraw_for_now),
    ),
    Removed.WITHDRAWAL: ((Membership, "withdraw", _nothing),),
    Removed.CLOSED_RANK: ((RankWork, "_move", _keep_open),),
    Removed.ALL_APPLIED: ((RankWork, "_apply", _apply_and_open),),
    Removed.STAGED_COUNT: ((activation, "has_staged", _always),),
    Removed.PUT_WAIT: ((activation, "has_applied", _always),),
}

_WEATHER: dict[Removed, Callable[[Weather], Weather]] = {
    Removed.READ_TIME: lambda _: Weather(slow_ratio=0.3, latency_s=0.01),
    Removed.STALENESS: lambda _: Weather(outages=((5.0, 11.0, "rollout"),), latency_s=0.01),
}

_AT, _SERVED = r"\d+\.\d{3} s: \S+", r"\S+ served version \d+ from \d+\.\d{3} s"
_NO_ACTIVATION = rf"{_SERVED}: no activation of the \S+ s before names it"
_OTHER_BITS = rf"{_SERVED}: its bits are others"
_NOT_STAGED = rf"{_AT} says that version \d+ is staged, and has \[[\d, ]*\]"
_RANKS_APART = rf"{_AT} serves version \d+, and \S+-rank-\d+#\d+ holds something else"

# Each of one line, so that no traceback has these words by chance.
_BROKEN: dict[Removed, re.Pattern[str]] = {
    step: re.compile(words)
    for step, words in {
        Removed.POLICY: rf"{_AT} serves version \d+, has seen version \d+, and may be \d+ behind",
        Removed.STALENESS: _NO_ACTIVATION,
        Removed.READ_TIME: _NO_ACTIVATION,
        Removed.CLOSED_GATE: rf"{_AT} serves version \d+, and is (Applying|Dirty)\(.*\)",
        Removed.STOPPED_BLOCK: _OTHER_BITS,
        Removed.DRAINED: rf"{_AT} writes between requests, and one was served by \[\d+(, \d+)+\]",
        Removed.ABSOLUTE_REDO: _OTHER_BITS,
        Removed.STAGED_CLAIM: _NOT_STAGED,
        Removed.WITHDRAWAL: _NOT_STAGED,
        Removed.CLOSED_RANK: _RANKS_APART,
        Removed.ALL_APPLIED: _RANKS_APART,
        Removed.PUT_WAIT: (rf"{_SERVED}: at \d+\.\d{{3}} s \S+ had waited for version \d+ on it"),
        Removed.STAGED_COUNT: (
            rf"{_AT} slot \d+ counts \d+ of \d+ receivers; \d+ of \d+ had said that they have "
            r"version \d+"
        ),
    }.items()
}
"""How a run says that the promise which a step keeps is broken."""
