"""Which version a receiver may serve: its mode, and what it has read of the log's tail.

The policy is a pure function of what is live, what was read, and the time. Safety of the joint
commit is this function in each receiver's own gate; nothing that members say about themselves
enters it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal, assert_never

from weightstore.history.delta_path import VersionRef
from weightstore.ids import Slot, VersionId

ModeName = Literal["controller", "active", "latest"]

_FOLLOW = "`follow` the store, or see the follower's `status`"


class Mode(enum.Enum):
    """By what a receiver serves."""

    CONTROLLER = "controller"
    """Whatever is wholly there: the caller's controller says when to refit, and waits for all."""
    ACTIVE = "active"
    """The version that the newest `activate` record names, and nothing else."""
    LATEST = "latest"
    """The newest version, or one that is at most so many versions older."""


@dataclass(frozen=True, slots=True)
class TailView:
    """What one look at the tail of the log has shown.

    Attributes:
        newest: The newest version; None where there is none.
        active: The version that the newest `activate` record names.
        active_slot: Of that record.
        read_at_s: Monotonic time from before the read, so that everything that stood in the
            log then was seen.
    """

    newest: VersionId | None
    active: VersionId | None
    active_slot: Slot | None
    read_at_s: float

    def joined(self, other: TailView) -> TailView:
        """What two looks have shown together, in whatever order they came back.

        Whatever stood in the log at the later of both times was seen by one of them.
        """
        last = max(
            self, other, key=lambda view: -1 if view.active_slot is None else view.active_slot
        )
        newest = [view.newest for view in (self, other) if view.newest is not None]
        return TailView(
            newest=max(newest, default=None),
            active=last.active,
            active_slot=last.active_slot,
            read_at_s=max(self.read_at_s, other.read_at_s),
        )


@dataclass(frozen=True, slots=True)
class ServePolicy:
    """What a receiver may serve.

    Attributes:
        mode: By what.
        max_lag: In the mode `latest`, versions that it may be behind the newest.
        max_staleness_s: In the mode `active`, how long one look at the tail is relied on.
    """

    mode: Mode = Mode.CONTROLLER
    max_lag: int = 0
    max_staleness_s: float = 0.0

    def refusal(self, version: VersionId, *, view: TailView | None, now_s: float) -> str:
        """Why a version that is wholly there may not be served; empty where it may.

        Args:
            version: The one that is live.
            view: What was read of the tail; None before the first look.
            now_s: Monotonic time.
        """
        match self.mode:
            case Mode.CONTROLLER:
                return ""
            case Mode.LATEST:
                newest = view.newest if view else None
                lag = max((newest or version) - version, 0)
                return "" if lag <= self.max_lag else _behind(version, lag, self.max_lag)
            case Mode.ACTIVE:
                return self._inactive(version, view, now_s)
            case _:
                assert_never(self.mode)

    def applied_slot(self, served: VersionRef | None, view: TailView | None) -> Slot | None:
        """The `activate` record by which a version is served; None where it is not by one.

        Args:
            served: The version; None while none is served.
            view: What was read of the tail.
        """
        if self.mode is not Mode.ACTIVE or served is None or view is None:
            return None
        return view.active_slot if served.version == view.active else None

    def _inactive(self, version: VersionId, view: TailView | None, now_s: float) -> str:
        if view is None:
            return f"the tail of the log was not read yet: {_FOLLOW}"
        if view.active is None:
            return "no version is active: activate one"
        if version != view.active:
            return f"version {version} is live, the active version is {view.active}"
        age_s = now_s - view.read_at_s
        if age_s > self.max_staleness_s:
            return (
                f"the tail of the log was read {age_s:.1f} s ago, and is relied on for "
                f"{self.max_staleness_s:g} s: {_FOLLOW}"
            )
        return ""


CONTROLLER = ServePolicy()
"""Serves whatever is wholly there."""


def _behind(version: VersionId, lag: int, max_lag: int) -> str:
    newest = version + lag
    return f"version {version} is live, {lag} behind version {newest}; at most {max_lag} may be"
