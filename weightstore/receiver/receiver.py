"""`Receiver`: live weights that move from version to version in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

from weightstore import arguments
from weightstore.clock import Clock, Entropy, SystemEntropy
from weightstore.codec.codec import PieceCodec
from weightstore.ids import VersionId
from weightstore.layout.schema import Schema
from weightstore.receiver.feeds import feed_of
from weightstore.receiver.follower import Follower
from weightstore.receiver.gate import SampleVersions, ServingGate, Wanted
from weightstore.receiver.live_check import LiveCheck
from weightstore.receiver.live_state import Live, Ready, Staged, VersionRef
from weightstore.receiver.live_weights import Callback, LiveWeights
from weightstore.receiver.membership import Membership, Standing
from weightstore.receiver.placement import Placement
from weightstore.receiver.pool import Pool
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.receiver_status import (
    ReceiverStatus,
    ReportCallback,
    Reporter,
    make_status,
)
from weightstore.receiver.refits import At, Refits
from weightstore.receiver.reports import RefitReport
from weightstore.receiver.serve_policy import TailView
from weightstore.receiver.steps import StepMaker
from weightstore.receiver.version_source import VersionSource


class Receiver:
    """Live weights, what is known of them, and what is staged for them.

    Everything that changes weights or stages for it is done by one thread at a time; others
    wait. Serving blocks may be open in any number of threads.

    Args:
        source: The store.
        place: Plans where the tensors of a schema live; called again for another schema.
        clock: For the policy, and for times in reports.
        settings: Of this receiver.
        make_pool: Takes the memory for staged changes.
        codec: Kernels to use; None takes those of the process.
        entropy: For the id under which it follows; None takes the system's.

    Raises:
        VersionNotFoundError: the store holds no version yet, so that nothing says which
            tensors there are.
        SchemaMismatchError: the live tensors do not fit; everything is listed.
    """

    def __init__(
        self,
        source: VersionSource,
        place: Callable[[Schema], Placement],
        *,
        clock: Clock,
        settings: ReceiverSettings | None = None,
        make_pool: Callable[[int], Pool] = Pool.of_size,
        codec: PieceCodec | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings = settings or ReceiverSettings()
        self._source = source
        self._clock = clock
        self._entropy = entropy or SystemEntropy()
        self._gate = ServingGate(self.settings.policy, clock.monotonic_s)
        self._weights = LiveWeights(
            StepMaker(
                source,
                place,
                self.settings,
                make_pool,
                codec,
                feed_of(source, self.settings, clock),
            ),
            self._gate,
            thread_count=source.settings.thread_count,
            block_timeout_s=self.settings.block_timeout_s,
        )
        self._refits = Refits(source, self._weights, self._gate, clock, self.settings)

    @property
    def live(self) -> Live:
        """What the live memory holds."""
        return self._weights.live

    @property
    def staged(self) -> Staged:
        """What is ready to be applied."""
        return self._weights.staged

    @property
    def version(self) -> VersionId | None:
        """The version that is wholly there; None where there is none, never 0."""
        held = self._weights.held
        return held.version if held else None

    @property
    def view(self) -> TailView | None:
        """What was read of the log's tail; None before the first look."""
        return self._gate.view

    @property
    def placement(self) -> Placement:
        """Where the tensors live."""
        return self._weights.placement

    @property
    def reporter(self) -> Reporter:
        """Told of each refit; for one that takes an apply apart, as `exclusive`."""
        return self._refits.reporter

    def status(self) -> ReceiverStatus:
        """Everything that is known of the receiver now; waits for nothing."""
        # In this order: a version goes from staged to live, and must not be missed in between.
        staged, live = self.staged, self.live
        return make_status(
            self.settings.mode,
            live,
            staged,
            self.view,
            self._clock.monotonic_s(),
            reporter=self._refits.reporter,
            why_not=self._gate.refusal(),
        )

    @contextmanager
    def serving(
        self,
        *,
        exact: int | None = None,
        min: int | None = None,  # noqa: A002 -- the word of requests that ask for it
        max_lag: int | None = None,
    ) -> Iterator[VersionId]:
        """Compute with the weights for one engine step.

        Args:
            exact: This version only.
            min: This version or a newer one.
            max_lag: At most so many versions behind the newest that this receiver heard of.

        Raises:
            InputRefusedError: an argument is no whole number from 0.
            NotReadyError: at the beginning: nothing is wholly there, another version than was
                asked for, or one that the mode does not let through; at the end, if the weights
                were changed inside: then what was computed must be thrown away.
            StoreClosedError: this is a forked child, as everywhere; the receiver is its parent's.
        """
        with self._gate.serving(Wanted.of(exact, min, max_lag)) as version:
            yield version

    @contextmanager
    def admitted(
        self,
        *,
        exact: int | None = None,
        min: int | None = None,  # noqa: A002 -- as of `serving`
        max_lag: int | None = None,
    ) -> Iterator[SampleVersions]:
        """Let a whole request in; each of its engine steps is a `serving` block of its own.

        A refit with `at="idle"` waits for the end of open requests and admits no new ones
        meanwhile; one with `at="step"` does not care, and the request's sample then has several
        versions.

        Args:
            exact: As of `serving`, when the request comes.
            min: As of `serving`, when the request comes.
            max_lag: As of `serving`, when the request comes.

        Yields:
            What to note the version of each step in: the versions of the request's sample.

        Raises:
            InputRefusedError, NotReadyError: as `serving`; or a refit waits.
        """
        with self._gate.admitted(Wanted.of(exact, min, max_lag)) as sample:
            yield sample

    @contextmanager
    def exclusive(self) -> Iterator[LiveWeights]:
        """Hold the weights for one that takes an apply apart: a rank of an engine."""
        with self._refits.owned():
            yield self._weights

    def on_applied(self, callback: Callback) -> None:
        """Call a function after each change of version, before anything is served with it.

        It is called again if it raises and the refit is repeated.
        """
        arguments.function(callback, "callback")
        with self._refits.owned():
            self._weights.callbacks.append(callback)

    def on_report(self, callback: ReportCallback) -> None:
        """Call a function with the report of each refit, done or failed, outside the pause.

        What it raises is logged and changes nothing.
        """
        self._refits.refuse_fork()
        self._refits.reporter.add(arguments.function(callback, "callback"))

    def poll(self) -> TailView:
        """Look at the tail of the log: what is newest and what is active.

        In the mode `active` a receiver serves only for `max_staleness_s` after a look; a
        follower looks by itself.

        Raises:
            UnavailableError, CorruptLogError: it cannot be read; earlier looks still count.
        """
        return self._refits.look()

    def follow(self, *, at: At = "step") -> Follower:
        """Follow the log by itself: as a context in the background, or `follow().run()`.

        In the mode `active` the newest version is staged while the engine serves, and applied
        when an activation names it; in `latest` each new version is applied; in `controller`
        refits stay the caller's. Others see the receiver under `receivers/` meanwhile.

        Args:
            at: As of `refit`.

        Raises:
            InputRefusedError: the receiver is followed already.
        """
        arguments.choice(at, "at", get_args(At))
        membership = self._refits.follow(self._new_membership)
        return Follower(self, membership, self._clock, at=at, on_close=self._refits.unfollow)

    def stage(self, selector: int | str = "latest") -> Ready:
        """Make a version ready while the engine serves. Writes no live memory.

        A share of all elements is looked at first, so that every few versions all of them were.
        A change that was cut is given up for it; `refit` finishes that one first.

        Raises:
            WrongBaseError: a delta does not fit; nothing was written. (P8)
            LiveWeightsError: live memory was changed or moved by somebody else.
            SchemaMismatchError: the version has other tensors than live here.
            VersionGoneError, VersionNotFoundError, CorruptError: of the version.
            UnavailableError: others were told of the version that is staged now, and that
                cannot be taken back; it stays staged.
        """
        return self._refits.stage(selector)

    def apply(self, *, at: At = "step") -> RefitReport:
        """Write what is staged: the engine does not serve meanwhile.

        After a crash or an error: the receiver is dirty and does not serve. Calling `refit` or
        `recover` heals it, any number of times; `apply` too, while it is still staged. (P5)

        Args:
            at: As of `refit`.

        Raises:
            InputRefusedError: nothing is staged.
            LiveWeightsError: live memory did not hold what it should.
            CorruptError, VersionGoneError: of a version that is written whole or streamed.
        """
        return self._refits.apply(at)

    def refit(self, selector: int | str = "latest", *, at: At = "step") -> RefitReport:
        """Bring a version into place, whatever was there.

        A change that was cut is finished first. Of several threads that refit at once the
        newest version wins, in the mode `active` the one that is active, and those that waited
        with another one do nothing. A version that is staged, given by its number, is applied
        without the store. A share of all elements is looked at before a version is staged.

        After a crash or an error: as `apply`.

        Args:
            selector: The version.
            at: `step` closes the gate between two engine steps, with requests in flight;
                `idle` first waits for admitted requests, for `block_timeout_s` at most, and
                lets no new ones in. What did not end in time raises when it ends.

        Raises:
            LiveWeightsError, WrongBaseError, SchemaMismatchError: as `stage` and `apply`.
            VersionGoneError, VersionNotFoundError, CorruptError: of the version.
        """
        return self._refits.refit(selector, at)

    def recover(self) -> RefitReport:
        """Heal: write a change that was cut again, else what may differ, else the whole version.

        The first needs no store; the second, an overwrite set, needs to know which versions are
        mixed. The report says which it was, and why. A version that is wholly there is left alone.

        After a crash or an error: as `apply`.

        Raises:
            VersionGoneError, CorruptError: of the version.
        """
        return self._refits.recover()

    def rollback(self) -> RefitReport:
        """Go back to the version before the last change, from the bits that were kept.

        They are kept until the next version is staged. A change that was cut is undone.

        After a crash or an error: as `apply`.

        Raises:
            InputRefusedError: no old bits are kept.
            LiveWeightsError: live memory did not hold what it should.
        """
        return self._refits.rollback()

    def adopt(self, selector: int | str = "latest") -> VersionRef:
        """Take weights that the engine has loaded by itself for a version, after a full scan.

        Raises:
            WrongBaseError: they are not that version; names the tensors.
            VersionGoneError, VersionNotFoundError, CorruptError: of the version.
        """
        return self._refits.adopt(selector)

    def invalidate(self, reason: str = "somebody else wrote the weights") -> None:
        """Give up what is known: called by whatever writes weights behind the receiver.

        Nothing is served from the call on, until a refit after it. Waits for what is under way.
        """
        self._refits.invalidate(arguments.text(reason, "reason"))

    def verify(self, *, tensors: Sequence[str] | None = None) -> LiveCheck:
        """Look at every element and compare each tensor's digest with the version's.

        Args:
            tensors: Look at these alone.

        Returns:
            The version that is wholly there, and the tensors that were looked at.

        Raises:
            NotReadyError: no version is said to be there.
            InputRefusedError: a name is no live tensor.
            LiveWeightsError: some tensors differ; names them. The receiver is dirty.
        """
        found = self.check(tensors=tensors)
        found.raise_if_differing()
        return found

    def check(self, *, tensors: Sequence[str] | None = None) -> LiveCheck:
        """As `verify`, but tensors that differ are in what it returns: the receiver is dirty.

        Raises:
            NotReadyError, InputRefusedError: as `verify`.
        """
        return self._refits.check(None if tensors is None else arguments.texts(tensors, "tensors"))

    def scan(self) -> VersionRef:
        """Look at the next share of the elements, as is done before a version is staged.

        Raises:
            NotReadyError, LiveWeightsError: as `verify`.
        """
        return self._refits.scan()

    def _new_membership(self) -> Membership:
        return Membership(
            self._source.blobs,
            self._clock,
            self._entropy,
            self._standing,
            name=self.settings.name,
            heartbeat_s=self.settings.heartbeat_s,
        )

    def _standing(self) -> Standing:
        """What others are told."""
        status, served, view = self.status(), self._gate.open_version, self.view
        totals = status.totals
        return Standing(
            mode=status.mode,
            state=status.state,
            live=status.live,
            staged=status.staged,
            activate_slot=status.activate_slot,
            applied_slot=self.settings.policy.applied_slot(served, view),
            phase=status.phase,
            refit_count=totals.refit_count,
            wire_bytes=totals.wire_bytes,
            applied_bytes=totals.applied_bytes,
            last_pause_us=round(1e6 * totals.last_pause_s),
        )
