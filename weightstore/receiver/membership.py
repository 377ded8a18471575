"""The object by which a receiver tells others that it is there and what it has ready.

It is for liveness: an activation waits by it. It may be late and it may be lost, but it must
not claim a staged version that is gone, so it is taken back before such a version is dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from weightstore.clock import Clock, Entropy
from weightstore.errors import (
    StorageFailedError,
    StoreClosedError,
    StoreReadOnlyError,
    UnavailableError,
    UnknownOutcomeError,
    WeightStoreError,
)
from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.member import Member, MemberVersion, member_text
from weightstore.history.delta_path import VersionRef
from weightstore.history.members import put_member, remove_member
from weightstore.ids import MemberId, Slot
from weightstore.receiver.gate import OWN_RECEIVER
from weightstore.receiver.receiver_status import StateName
from weightstore.receiver.serve_policy import ModeName
from weightstore.storage.blobs import BlobStore
from weightstore.storage.machine import boot_id, host_name, process_id, refuse_fork

LOGGER = logging.getLogger("weightstore.receiver")
LEAVE_PAUSES_S = (0.1, 0.4, 1.5)
"""Before each further try to leave: nobody else takes the object of who has left away."""
LEAVE_TIMEOUT_S = 10.0
"""After so long no other try to leave is begun."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What a receiver says of itself; of an engine of several ranks, all of them together.

    Attributes:
        mode: By what it serves.
        state: Of its live weights.
        live: The version that they wholly are.
        staged: The version that is ready to be applied.
        activate_slot: The newest `activate` record that it has read.
        applied_slot: The `activate` record under which it serves what is live.
        phase: What it does now.
        refit_count: Refits so far.
        wire_bytes: Bytes that they have read.
        applied_bytes: Bytes that they have written.
        last_pause_us: How long the last one stopped serving.
    """

    mode: ModeName
    state: StateName
    live: VersionRef | None
    staged: VersionRef | None
    activate_slot: Slot | None
    applied_slot: Slot | None
    phase: str = ""
    refit_count: int = 0
    wire_bytes: int = 0
    applied_bytes: int = 0
    last_pause_us: int = 0


class Membership:
    """One start of one receiver, under an id that no other start has. Safe from any thread.

    Args:
        blobs: The store.
        clock: For heartbeats and for display.
        entropy: Gives the id.
        stand: Tells what to say, at once. It is called while a lock is held that a staged
            version waits for before it is dropped, so what it finds staged is there.
        name: For people; empty takes host and process.
        heartbeat_s: Say something new at least so often.
        rank_count: Ranks of the engine.
    """

    def __init__(
        self,
        blobs: BlobStore,
        clock: Clock,
        entropy: Entropy,
        stand: Callable[[], Standing],
        *,
        name: str = "",
        heartbeat_s: float = 0.0,
        rank_count: int = 1,
    ) -> None:
        self.member_id = MemberId(entropy.hex128())
        self._blobs = blobs
        self._clock = clock
        self._stand = stand
        self._name = member_text(name or f"{host_name()}:{process_id()}")
        self._heartbeat_s = heartbeat_s
        self._rank_count = rank_count
        # The first for what is claimed, never for long; the second while the object is written.
        self._claiming = threading.Lock()
        self._writing = threading.Lock()
        self._counter = 0
        self._said: tuple[Standing, float] | None = None
        self._may_claim = False
        self._is_withdrawn = False
        self._has_left = False
        self._may_be_there = False
        self._process = process_id()

    def publish(self) -> bool:
        """Say how things stand, if that is news or it is time for a sign of life.

        After a crash: the old object or the new one.

        Returns:
            Whether the object was written; a forked child leaves it to its parent.

        Raises:
            UnavailableError, UnknownOutcomeError: it could not be written, or perhaps it was.
        """
        if process_id() != self._process:
            return False
        with self._writing:
            if self._has_left:
                return False
            with self._claiming:
                # In this order, since `stand_by` comes at any time: a version that was found
                # staged before it must not be claimed after it.
                is_withdrawn, standing = self._is_withdrawn, self._stand()
                if is_withdrawn:
                    standing = replace(standing, staged=None)
                if not self._is_news(standing):
                    return False
                could_claim = self._may_claim
                self._may_claim = could_claim or standing.staged is not None
            self._put(standing, could_claim=could_claim)
            return True

    def withdraw(self) -> None:
        """Take back that a version is staged; called before it is dropped.

        Waits for the object only if it may claim the version.

        After a crash: the object claims it or not; the version is still staged.

        Raises:
            UnavailableError, UnknownOutcomeError: the object still claims it, or may; do not
                drop the version.
            StoreClosedError: this is a forked child; the claim is its parent's.
        """
        refuse_fork(self._process, "this receiver", OWN_RECEIVER)
        with self._claiming:
            self._is_withdrawn, may_claim = True, self._may_claim
        if not may_claim:
            return
        with self._writing:
            if not self._may_claim:
                return
            try:
                self._put(replace(self._stand(), staged=None), could_claim=True)
            except (UnavailableError, UnknownOutcomeError):
                # A full disk takes no new bytes, but lets go of old ones.
                try:
                    self._remove()
                except (UnavailableError, UnknownOutcomeError):
                    self._is_withdrawn = False
                    raise

    def withdraw_gone(self) -> None:
        """As `withdraw`, for a version that is lost whether others learn it or not."""
        try:
            self.withdraw()
        except WeightStoreError as error:
            LOGGER.warning("could not take back what is staged: %s", error.message)

    def stand_by(self) -> None:
        """Let the next `publish` say again what is staged: it was staged anew.

        Waits for nothing: a slow write of the object must not keep a version from coming in.
        """
        self._is_withdrawn = False

    def leave(self) -> None:
        """Remove the object for good, by a few tries; in a forked child nothing is done.

        After a crash: it is there or not.

        Raises:
            UnavailableError, UnknownOutcomeError: it is there, or may be, or a write of it has
                not ended for long; call again. A store that is closed or may not be written is
                not tried again.
        """
        if process_id() != self._process:
            return
        deadline_s = self._clock.monotonic_s() + LEAVE_TIMEOUT_S
        self._has_left = True
        if not self._writing.acquire(timeout=LEAVE_TIMEOUT_S):
            raise StorageFailedError(
                f"the object of receiver {self.member_id} is being written for more than "
                f"{LEAVE_TIMEOUT_S:.0f} s",
                do="Mend the storage, then take the receiver off with `forget_receiver`.",
                facts={"member_id": self.member_id},
            )
        try:
            self._removed(deadline_s)
        finally:
            self._writing.release()

    def _removed(self, deadline_s: float) -> None:
        """Remove the object if it may be there, by a few tries until a time."""
        for pause_s in LEAVE_PAUSES_S:
            try:
                self._remove()
            except (StoreClosedError, StoreReadOnlyError):
                raise
            except (UnavailableError, UnknownOutcomeError):
                if self._clock.monotonic_s() + pause_s > deadline_s:
                    raise
                self._clock.sleep(pause_s)
            else:
                return
        self._remove()

    def _is_news(self, standing: Standing) -> bool:
        if self._said is None:
            return True
        said, said_at_s = self._said
        return standing != said or self._clock.monotonic_s() - said_at_s >= self._heartbeat_s

    def _put(self, standing: Standing, *, could_claim: bool) -> None:
        self._counter += 1
        was_there, self._may_be_there = self._may_be_there, True
        said_at_s = self._clock.monotonic_s()
        try:
            put_member(self._blobs, self._member(standing))
        except StoreReadOnlyError:
            self._may_claim, self._may_be_there = could_claim, was_there
            raise
        self._may_claim = standing.staged is not None
        self._said = (standing, said_at_s)

    def _remove(self) -> None:
        if self._may_be_there:
            remove_member(self._blobs, self.member_id)
        self._may_claim, self._may_be_there, self._said = False, False, None

    def _member(self, standing: Standing) -> Member:
        return Member(
            member_id=self.member_id,
            name=self._name,
            host=member_text(host_name()),
            process=process_id(),
            boot_id=member_text(boot_id()),
            rank_count=self._rank_count,
            mode=standing.mode,
            state=standing.state,
            live=_member_version(standing.live),
            staged=_member_version(standing.staged),
            activate_slot=standing.activate_slot,
            applied_slot=standing.applied_slot,
            counter=self._counter,
            phase=member_text(standing.phase),
            refit_count=standing.refit_count,
            wire_bytes=min(standing.wire_bytes, MAX_INTEGER),
            applied_bytes=min(standing.applied_bytes, MAX_INTEGER),
            last_pause_us=min(standing.last_pause_us, MAX_INTEGER),
            written_unix_ms=self._clock.unix_ms(),
        )


def _member_version(ref: VersionRef | None) -> MemberVersion | None:
    return None if ref is None else MemberVersion(version=ref.version, digest=ref.digest)
