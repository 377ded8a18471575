"""A store that is far away: every call takes virtual time, and may go wrong on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar, assert_never, cast

import numpy as np
from typing_extensions import Buffer

from weightstore.errors import BlobOutcomeUnknownError, StorageFailedError, WeightStoreError
from weightstore.format.keys import LOG_PREFIX
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, Method, RecordingBlobs
from weightstore.testing.simulation.turns import Group, Stopped, Turns

_Result = TypeVar("_Result")
TIMEOUT_S = 1.0
"""After so long a request without an answer counts as lost."""
STALL_S = 8.0
"""So long a thread may stand still at the most."""
DELAY_S = 12.0
"""So late a request may arrive at the most."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How often things go wrong in one run.

    Attributes:
        faults: Kinds of faults, each with the share of calls that have it.
        kill_ratio: Share of calls before or after which the process is killed.
        short_ratio: Share of listings that lack something.
        stall_ratio: Share of calls on whose way the thread stands still for long.
        slow_ratio: Share of answers about the log that come late to engines.
        latency_s: Of a call, there and back, about.
        outages: From when to when whom the store cannot be reached by: names that begin so.
    """

    faults: tuple[tuple[Fault, float], ...] = ()
    kill_ratio: float = 0.0
    short_ratio: float = 0.0
    stall_ratio: float = 0.0
    slow_ratio: float = 0.0
    latency_s: float = 0.02
    outages: tuple[tuple[float, float, str], ...] = ()


CALM = Weather()


class Watcher(Protocol):
    """Who is told what the store really does, and when."""

    def written(self, key: str, data: bytes, /) -> None:
        """An object was made or overwritten."""
        ...

    def answered(self, group: Group, method: Method, key: str, result: object, /) -> None:
        """A process has an answer."""
        ...

    def fault(self, group: Group, kind: str, what: str, /) -> None:
        """Something goes wrong on the way."""
        ...

    def killed(self, group: Group, /) -> None:
        """A process was killed."""
        ...


class WatchedStore(MemoryBlobStore):
    """The store itself: what has arrived here has happened."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """See `BlobStore.put_if_absent`.

        After a crash: nothing of this store is left.
        """
        super().put_if_absent(key, data, durable=durable)
        self._watcher.written(key, bytes(data))

    def overwrite(self, key: str, data: Buffer, /) -> None:
        """See `BlobStore.overwrite`.

        After a crash: nothing of this store is left.
        """
        super().overwrite(key, data)
        self._watcher.written(key, bytes(data))


@dataclass
class Sky:
    """What all ways to the store share.

    Attributes:
        turns: Gives time.
        chances: Decides what goes wrong.
        watcher: Is told.
        weather: Now.
    """

    turns: Turns
    chances: np.random.Generator
    watcher: Watcher
    weather: Weather = CALM

    def is_out(self, name: str) -> bool:
        """Whether a process does not reach the store now."""
        now_s = self.turns.now_s
        return any(
            first <= now_s < last and name.startswith(whom)
            for first, last, whom in self.weather.outages
        )

    def latency_s(self) -> float:
        """Of one way; now and then long."""
        return float(self.chances.exponential(self.weather.latency_s / 2))

    def happens(self, ratio: float) -> bool:
        """Whether something happens that does so with this share."""
        return ratio > 0 and float(self.chances.random()) < ratio

    def fault(self) -> Fault | None:
        """What becomes of a call."""
        drawn = float(self.chances.random())
        for fault, ratio in self.weather.faults:
            drawn -= ratio
            if drawn < 0:
                return fault
        return None


class FarBlobs(RecordingBlobs):
    """The way of one process to the store.

    Args:
        inner: The store.
        sky: What is between.
        group: The process.
    """

    def __init__(self, inner: BlobStore, sky: Sky, group: Group) -> None:
        super().__init__(inner)
        self._sky = sky
        self._group = group

    def _happen(self, call: Call, effect: Callable[[], _Result]) -> _Result:
        if call.method is Method.CHUNK:
            return effect()
        if call.method is Method.LOCAL_PATH:
            return effect()
        sky, turns = self._sky, self._sky.turns
        self._maybe_die(call)
        self._maybe_stall(call)
        turns.pause(sky.latency_s())
        if sky.is_out(self._group.name):
            sky.watcher.fault(self._group, "outage", f"{call.method.value} {call.key}")
            raise StorageFailedError(f"{call.method.value} {call.key}: no way to the store")
        fault = sky.fault()
        if fault is not None:
            sky.watcher.fault(self._group, fault.value, f"{call.method.value} {call.key}")
        try:
            result = self._after(call, fault, effect)
        except WeightStoreError:
            # That there is no such object is an answer like any other.
            self._come_back(call)
            raise
        self._come_back(call)
        sky.watcher.answered(self._group, call.method, call.key, result)
        return result

    def _after(self, call: Call, fault: Fault | None, effect: Callable[[], _Result]) -> _Result:
        turns = self._sky.turns
        match fault:
            case None:
                return self._shortened(call, effect())
            case Fault.UNAVAILABLE:
                raise StorageFailedError(f"{call.method.value} {call.key}: slow down (503)")
            case Fault.LOST_REQUEST:
                pass
            case Fault.DELAYED:
                delay_s = float(self._sky.chances.random()) * DELAY_S
                turns.at(turns.now_s + delay_s, lambda: _arrive(effect))
            case Fault.LOST_ANSWER:
                _arrive(effect)
            case Fault.REPEATED:
                _arrive(effect)
                return effect()
            case _:
                assert_never(fault)
        turns.pause(TIMEOUT_S)
        raise _no_answer(call)

    def _shortened(self, call: Call, result: _Result) -> _Result:
        """A listing that lacks its newest part, or any part."""
        if call.method is not Method.LIST or not self._sky.happens(self._sky.weather.short_ratio):
            return result
        whole = cast("tuple[object, ...]", result)
        kept = tuple(one for one in whole if float(self._sky.chances.random()) < 0.5)  # noqa: PLR2004 -- a half
        left_out = f"list {call.key} without {len(whole) - len(kept)} of {len(whole)}"
        self._sky.watcher.fault(self._group, "short_listing", left_out)
        return cast("_Result", kept)

    def _come_back(self, call: Call) -> None:
        sky = self._sky
        sky.turns.pause(sky.latency_s())
        # Whoever looks at the log to serve by it: late answers to others only slow the run.
        is_log = call.method is Method.GET and call.key.startswith(LOG_PREFIX)
        is_log = is_log and self._group.name.startswith(("rollout", "engine"))
        if is_log and sky.happens(sky.weather.slow_ratio):
            slow_s = float(sky.chances.random()) * STALL_S
            sky.watcher.fault(self._group, "slow_answer", f"{slow_s:.1f} s to {call.key}")
            sky.turns.pause(slow_s)
        self._maybe_stall(call)
        self._maybe_die(call)

    def _maybe_stall(self, call: Call) -> None:
        sky = self._sky
        if sky.happens(sky.weather.stall_ratio):
            stall_s = float(sky.chances.random()) * STALL_S
            sky.watcher.fault(self._group, "stall", f"{stall_s:.1f} s at {call.method.value}")
            sky.turns.pause(stall_s)

    def _maybe_die(self, call: Call) -> None:
        if self._group.is_dead:
            raise Stopped
        if self._sky.happens(self._sky.weather.kill_ratio):
            self._sky.watcher.fault(self._group, "killed", f"at {call.method.value} {call.key}")
            self._sky.watcher.killed(self._group)
            raise Stopped


def _arrive(effect: Callable[[], object]) -> None:
    with suppress(WeightStoreError):
        effect()


def _no_answer(call: Call) -> WeightStoreError:
    message = f"{call.method.value} {call.key}: no answer"
    if call.method.is_write or call.method is Method.CONFIRM:
        return BlobOutcomeUnknownError(
            message, do="Read the key before anything else.", facts={"key": call.key}
        )
    return StorageFailedError(message, do="Repeat.", facts={"key": call.key})
