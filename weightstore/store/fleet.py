"""What the facade says and does about the receivers of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weightstore.clock import Clock
from weightstore.errors import BlobNotFoundError, ReceiverNotFoundError, WeightStoreError
from weightstore.format.keys import RECEIVERS_PREFIX
from weightstore.format.member import Member
from weightstore.history.activation import Activated, Applied, absent, activate, wait_applied
from weightstore.history.commit import LogWriter
from weightstore.history.members import SilenceWatch
from weightstore.ids import Slot, VersionId
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.store.views import Activation, ReceiverInfo

_MS_PER_S = 1000


def receiver_info(member: Member, *, newest: VersionId | None, now_ms: int) -> ReceiverInfo:
    """A member object for people.

    Args:
        member: As it was read.
        newest: The newest version of the store, for the lag.
        now_ms: This machine's wall clock.
    """
    live = member.live.version if member.live else None
    lag = max(newest - live, 0) if newest is not None and live is not None else None
    return ReceiverInfo(
        member_id=member.member_id,
        name=member.name,
        host=member.host,
        process=member.process,
        rank_count=member.rank_count,
        mode=member.mode,
        state=member.state,
        live=live,
        staged=member.staged.version if member.staged else None,
        lag=lag,
        activate_slot=member.activate_slot,
        applied_slot=member.applied_slot,
        counter=member.counter,
        phase=member.phase,
        refit_count=member.refit_count,
        wire_bytes=member.wire_bytes,
        applied_bytes=member.applied_bytes,
        last_pause_us=member.last_pause_us,
        age_s=(now_ms - member.written_unix_ms) / _MS_PER_S,
    )


def activation_view(activated: Activated, *, newest: VersionId | None, now_ms: int) -> Activation:
    """What an activation has done, for people."""
    return Activation(
        version=activated.version,
        slot=activated.slot,
        listed_count=activated.listed_count,
        staged_count=activated.staged_count,
        missing=tuple(
            receiver_info(each, newest=newest, now_ms=now_ms) for each in activated.missing
        ),
        waited_s=activated.waited_s,
        repeated=activated.repeated,
    )


def forget_receiver(blobs: BlobStore, member_id: str) -> None:
    """Delete what stands under a receiver's key, readable or not.

    After a crash: it is there or not. A receiver that lives writes it again.

    Raises:
        ReceiverNotFoundError: nothing stands there.
        InputRefusedError: no key can have this name.
    """
    key = f"{RECEIVERS_PREFIX}{member_id}"
    try:
        blobs.size(key)
    except BlobNotFoundError as error:
        raise ReceiverNotFoundError(
            f"no receiver {member_id} is listed", facts={"member_id": member_id}
        ) from error
    blobs.delete(key)


@dataclass(frozen=True, slots=True)
class Settled:
    """What a put has reached that waited for its version to be active.

    Attributes:
        slot: Of the activation; from then on no listed receiver of the mode `active` begins to
            serve by an older one. None where it is not known whether the version is active.
        missed: What was not reached, in words; empty where all was.
    """

    slot: Slot | None
    missed: str


def activate_committed(
    open_writer: Callable[[], LogWriter],
    blobs: BlobStore,
    version: VersionId,
    *,
    clock: Clock,
    settings: Settings,
    watch: SilenceWatch,
) -> Settled:
    """Activate a version that a put has committed, and wait until nobody serves another.

    After a crash: as `activate`.

    Returns:
        What was reached. The put has succeeded whatever happens here, so nothing is an error.
    """
    try:
        writer = open_writer()
        active = writer.log.tail().now.active
        if active is not None and active.version > version:
            # A repeated put of an old step must not lead the fleet back.
            return Settled(
                None, f"version {version} is not activated: version {active.version} is active"
            )
        activated = activate(
            writer,
            blobs,
            version=version,
            clock=clock,
            timeout_s=settings.activate_timeout_s,
            poll_s=settings.activate_poll_s,
            silent_s=settings.member_silent_s,
            watch=watch,
        )
        applied = wait_applied(
            writer,
            blobs,
            activated=activated,
            clock=clock,
            max_staleness_s=settings.activate_max_staleness_s,
            poll_s=settings.activate_poll_s,
        )
    except WeightStoreError as error:
        return Settled(
            None,
            f"version {version} is committed; whether it is active is not known:"
            f" {error.message}. Call `store.activate({version})`",
        )
    return Settled(activated.slot, _not_applied(activated, applied))


def _not_applied(activated: Activated, applied: Applied) -> str:
    """Who does not serve the version yet, in words; empty where all do."""
    others = absent(applied.missing, applied.unread)
    if not others:
        return ""
    return (
        f"version {activated.version} is active (slot {activated.slot}), and"
        f" {applied.applied_count} of {applied.listed_count} receivers serve it after"
        f" {applied.waited_s:.1f} s; the others serve nothing until they do:"
        f" {others}. Take those that are gone off the list with"
        " `weightstore receivers --forget`: each such put waits for them"
    )
