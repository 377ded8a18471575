"""An engine of several ranks as what a follower moves: one member, whatever its number of ranks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from weightstore.clock import Clock
from weightstore.errors import WeightStoreError
from weightstore.receiver.follower import Follower
from weightstore.receiver.live_state import (
    Dirty,
    Empty,
    Live,
    NothingStaged,
    Ready,
    Staged,
    VersionRef,
    Way,
    Whole,
)
from weightstore.receiver.membership import Membership, Standing
from weightstore.receiver.ranks.engine_report import EngineReport
from weightstore.receiver.ranks.leader import Leader
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.receiver_status import state_name
from weightstore.receiver.refits import At
from weightstore.receiver.serve_policy import TailView

LOGGER = logging.getLogger("weightstore.receiver")


class FollowedEngine:
    """Rank 0's side of an engine, for a follower. A version counts when all ranks have it.

    Args:
        leader: Decides for all ranks.
        receiver: Of rank 0; its looks at the log are the leader's.

    Attributes:
        membership: Tells others; None until `follow`.
    """

    def __init__(self, leader: Leader, receiver: Receiver) -> None:
        self.membership: Membership | None = None
        self._leader = leader
        self._receiver = receiver
        self._refit_count = 0
        self._wire_bytes = 0
        self._applied_bytes = 0
        self._last_pause_s = 0.0
        self._lost_engine_id: str | None = None
        self._given_up: tuple[int, int] | None = None
        self._is_busy = False
        self._is_cut_off = False
        leader.before_drop = self._withdraw_gone

    @property
    def settings(self) -> ReceiverSettings:
        """Mode and times."""
        return self._receiver.settings

    @property
    def live(self) -> Live:
        """What every rank holds and serves."""
        leader = self._leader
        if leader.live is not None and self._is_broken():
            return Dirty("a rank has given up its weights, or another process has its place")
        if leader.live is not None:
            return Whole(leader.live)
        if leader.pending is not None:
            return Dirty(f"{leader.pending} is not yet on every rank")
        return Empty()

    @property
    def staged(self) -> Staged:
        """What every rank has staged."""
        staged = self._leader.staged
        if staged is None or self._is_broken():
            return NothingStaged()
        return Ready(self._leader.live, staged, Way.CHANGE)

    @property
    def view(self) -> TailView | None:
        """What was read of the tail."""
        return self._receiver.view

    def poll(self) -> TailView:
        """Look at the tail of the log, and whether every rank is still there.

        A rank may start again, or give up its weights, while nothing is asked of it; it serves
        nothing until the next engine or round, which must not wait for the next version. A
        channel that cannot be read is no reason to look at the log less often; what was known of
        the ranks stays.
        """
        view = self._receiver.poll()
        leader = self._leader
        engine_id, opened = leader.engine_id, leader.opened
        try:
            self._lost_engine_id = engine_id if leader.lost_ranks() else None
            self._given_up = opened if leader.given_up_ranks() else None
        except WeightStoreError as error:
            if not self._is_cut_off:
                LOGGER.warning("the channel of the ranks cannot be read: %s", error.message)
            self._is_cut_off = True
        else:
            self._is_cut_off = False
        return view

    def stage(self, selector: int | str, /) -> VersionRef:
        """Make a version ready on every rank."""
        with self._leader.alone():
            if self.membership is not None:
                self.membership.withdraw()
            with self._busy():
                return self._leader.stage(selector)

    def refit(self, selector: int | str, /, *, at: At) -> EngineReport:
        """Bring a version to every rank, between two engine steps."""
        del at  # requests are the scheduler's, which sits above the ranks
        with self._leader.alone():
            membership, staged = self.membership, self._leader.staged
            if membership is not None and (staged is None or staged.version != selector):
                membership.withdraw()
            with self._busy():
                report = self._leader.refit(selector)
        if report.ranks:
            self._refit_count += 1
            self._wire_bytes += sum(rank.wire_bytes for rank in report.ranks)
            self._applied_bytes += sum(rank.applied_bytes for rank in report.ranks)
            self._last_pause_s = report.pause_s
        return report

    def standing(self) -> Standing:
        """What others are told of all ranks together."""
        # In this order: a version goes from staged to live, and must not be missed in between.
        staged, live, view = self._leader.staged, self._leader.live, self.view
        if self._is_broken():
            staged = live = None
        return Standing(
            mode=self.settings.mode,
            state=state_name(self.live),
            live=live,
            staged=staged,
            activate_slot=view.active_slot if view else None,
            applied_slot=self.settings.policy.applied_slot(live, view),
            phase=self._phase(),
            refit_count=self._refit_count,
            wire_bytes=self._wire_bytes,
            applied_bytes=self._applied_bytes,
            last_pause_us=round(1e6 * self._last_pause_s),
        )

    def follow(self, membership: Membership, clock: Clock) -> Follower:
        """A follower of this engine.

        Args:
            membership: Tells others.
            clock: Measures how long a staged version is kept.
        """
        self.membership = membership
        return Follower(self, membership, clock, at="step", on_close=self._unfollow)

    def _is_broken(self) -> bool:
        """Whether the last look found that not every rank holds what was opened last."""
        leader = self._leader
        has_lost = self._lost_engine_id is not None and self._lost_engine_id == leader.engine_id
        has_given_up = self._given_up is not None and self._given_up == leader.opened
        # Of rank 0 nobody takes a step between two rounds.
        return has_lost or has_given_up or isinstance(self._receiver.live, Dirty)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Say inside that the ranks are asked for something: a rank may keep all waiting.

        What is staged at the end, also after an error, is said again.
        """
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
            membership = self.membership
            if membership is not None:
                membership.stand_by()

    def _phase(self) -> str:
        if not self._is_busy:
            return ""
        return "stage" if self._leader.pending is None else "apply"

    def _unfollow(self) -> None:
        self.membership = None

    def _withdraw_gone(self) -> None:
        membership = self.membership
        if membership is not None:
            membership.withdraw_gone()
