"""Ownership of a store: at most one trainer, all ranks of one launch, at a time (P7).

A claim opens an epoch. Whatever an older epoch still sends is invalid from the moment
the new claim's record exists, however late it lands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weightstore.errors import FencedError, InputRefusedError, StoreOwnedError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.records import ClaimRecord, Newest, Now, OpenClaim, Record
from weightstore.format.rules import Prefix
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log, StoredRecord
from weightstore.ids import Epoch, RunId, SessionId, Slot, Step

TEXT_LENGTH_MAX = 256

IsOwnerDead = Callable[[SessionId, str], bool]
"""Whether the owner of this session and boot id surely cannot write any more."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Which process claims, for whoever meets its claim.

    Attributes:
        host: Name of the machine.
        process: Process id.
        boot_id: Nonce of the machine's boot, or an empty text where there is none.
    """

    host: str
    process: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """An open claim as its owner holds it.

    Attributes:
        run: The run that owns the store.
        epoch: The epoch that the claim began.
        session: Nonce of the launch.
        slot: Where the claim's record is.
        last_step: The step that later ones must pass; None if any step may come.
        newest: The newest version: what a baseline is proved against. Nobody but this
            session moves it while the claim is open.
    """

    run: RunId
    epoch: Epoch
    session: SessionId
    slot: Slot
    last_step: Step | None
    newest: Newest | None


def open_claim(
    writer: LogWriter,
    *,
    run: RunId,
    owner: Owner,
    take_over: bool = False,
    rewind_to: Step | None = None,
    is_owner_dead: IsOwnerDead | None = None,
) -> Claim:
    """Become the owner of the store, for the writer's session.

    After a crash: the claim is open, or nothing changed. Opening it again in the same
    session finds it; another session needs `take_over`, or a proof that the owner is dead.

    Args:
        writer: Its session is the one of the launch.
        run: The run whose versions will come.
        owner: This process.
        take_over: Fence whoever owns the store now.
        rewind_to: Steps above this one become new versions, where the run has passed it.
        is_owner_dead: Proof by a released file lock; implies `take_over`.

    Raises:
        StoreOwnedError: another session owns the store.
        FencedError: the claim was opened, and taken over by another session at once.
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    _check_owner(owner, rewind_to)
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record | StoredRecord:
        held = prefix.now.claim
        if held is not None and _is_own(writer.log, held, writer.session, run, rewind_to):
            return writer.log.stored_at(held.slot)
        if held is not None and not take_over and not _is_dead(held, is_owner_dead):
            raise _owned(held)
        last_step = last_step_of_run(writer.log, prefix, run)
        passed = rewind_to is not None and last_step is not None and rewind_to < last_step
        return ClaimRecord(
            **writer.header(prefix, commit_id),
            epoch=Epoch(prefix.now.epoch + 1),
            run=run,
            action="open",
            take_over=held is not None,
            rewind_to=rewind_to if passed else None,
            last_step=rewind_to if passed else last_step,
            host=owner.host,
            process=owner.process,
            boot_id=owner.boot_id,
        )

    return _open_claim_of(writer, writer.put(build).record)


def close_claim(writer: LogWriter, claim: Claim, *, owner: Owner) -> None:
    """Give the store up, so that the next trainer need not take it over.

    After a crash: the claim is open or closed; closing it again is no error. A claim
    that was taken over is left alone.

    Raises:
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record | StoredRecord:
        held = prefix.now.claim
        if held is None or not owns(prefix.now, claim):
            return writer.log.stored_at(prefix.now.last_slots["claim"])
        return ClaimRecord(
            **writer.header(prefix, commit_id),
            epoch=held.epoch,
            run=held.run,
            action="close",
            take_over=False,
            rewind_to=None,
            last_step=held.last_step,
            host=owner.host,
            process=owner.process,
            boot_id=owner.boot_id,
        )

    writer.put(build)


def owns(now: Now, claim: Claim) -> bool:
    """Whether a claim is still the open one."""
    return now.claim is not None and (now.claim.slot, now.claim.session) == (
        claim.slot,
        claim.session,
    )


def fenced(now: Now, claim: Claim) -> FencedError:
    """What a trainer learns whose claim is not the open one."""
    newer = now.claim
    if newer is None:
        message = f"the claim of run {claim.run} (epoch {claim.epoch}) was closed"
    else:
        message = (
            f"run {newer.run} (host {newer.host}, process {newer.process}) took the store over"
            f" in epoch {newer.epoch}; this trainer is of epoch {claim.epoch}"
        )
    return FencedError(
        message,
        do="Stop this trainer; open the store again to claim it.",
        facts={"epoch": claim.epoch, "newer_epoch": now.epoch},
    )


def last_step_of_run(log: Log, prefix: Prefix, run: RunId) -> Step | None:
    """The step of a run's newest version, or None if it made none.

    Between two claims all versions are of one run, so the state below each claim tells:
    one read per claim, newest first.
    """
    newest = prefix.now.newest
    if newest is None or newest.run == run:
        return newest.step if newest else None
    for claim in log.records_of_kind(prefix, "claim"):
        below = claim.record.now.newest
        if below is None or below.run == run:
            return below.step if below else None
    return None


def _check_owner(owner: Owner, rewind_to: Step | None) -> None:
    if max(len(owner.host), len(owner.boot_id)) > TEXT_LENGTH_MAX:
        raise InputRefusedError(f"host name or boot id is longer than {TEXT_LENGTH_MAX}")
    # A type checker keeps other types away; a bool or a float may come all the same.
    if rewind_to is not None and not (type(rewind_to) is int and 0 <= rewind_to <= MAX_INTEGER):
        raise InputRefusedError(
            f"rewind_to={rewind_to!r} is no step", do=f"Give a step from 0 to {MAX_INTEGER}."
        )


def _is_own(
    log: Log, held: OpenClaim, session: SessionId, run: RunId, rewind_to: Step | None
) -> bool:
    """Whether the open claim is what this session asks for: it asked before."""
    if (held.session, held.run) != (session, run):
        return False
    if rewind_to is None or held.last_step is None or held.last_step <= rewind_to:
        return True
    record = log.stored_at(held.slot).record
    return isinstance(record, ClaimRecord) and record.rewind_to == rewind_to


def _is_dead(held: OpenClaim, is_owner_dead: IsOwnerDead | None) -> bool:
    return is_owner_dead is not None and is_owner_dead(held.session, held.boot_id)


def _owned(held: OpenClaim) -> StoreOwnedError:
    return StoreOwnedError(
        f"run {held.run} owns the store: host {held.host}, process {held.process},"
        f" session {held.session}, claimed in slot {held.slot}",
        do="If that trainer is surely gone, repeat with take_over=True: it is fenced then.",
        facts={
            "run": held.run,
            "host": held.host,
            "process": held.process,
            "slot": held.slot,
            "session": held.session,
        },
    )


def _open_claim_of(writer: LogWriter, record: Record) -> Claim:
    assert isinstance(record, ClaimRecord)
    assert record.run is not None
    now = writer.log.tail().now
    claim = Claim(
        run=record.run,
        epoch=record.epoch,
        session=record.session,
        slot=record.slot,
        last_step=now.claim.last_step if now.claim else None,
        newest=now.newest,
    )
    if not owns(now, claim):
        raise fenced(now, claim)
    return claim
