"""Activation: the whole fleet is told which version to serve, by one record.

Two phases, for liveness alone: first every listed receiver has the version staged, then
the record names it. Safety is not made here: a receiver in the mode `active` serves only
what the newest `activate` record that it has read names, and only for as long as that read
is fresh. So nobody has to be waited for, and whoever was not there loads `active` later.

Members of the mode `active` alone are listed: the others do not move by this record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weightstore.clock import Clock
from weightstore.errors import (
    ConflictError,
    InputRefusedError,
    NotStagedError,
    UnavailableError,
)
from weightstore.format.member import Member, MemberVersion, members_sha256
from weightstore.format.records import ActivateRecord, ActiveVersion, Record
from weightstore.format.rules import Prefix
from weightstore.history.commit import LogWriter
from weightstore.history.existence import check_kept
from weightstore.history.log import StoredRecord
from weightstore.history.members import SilenceWatch, list_members
from weightstore.history.versions import record_of_version
from weightstore.ids import Slot, VersionId
from weightstore.settings import TIME_MIN_S
from weightstore.storage.blobs import BlobStore

_NAMED_COUNT = 5


@dataclass(frozen=True, slots=True)
class Activated:
    """What an activation has done.

    Attributes:
        slot: Of the record that names the version.
        version: It.
        listed_count: Receivers that were listed at the last look.
        staged_count: Those of them that had the version staged, or live.
        waited_s: How long they were waited for.
        missing: The others.
        repeated: The version was active already; no record was put.
    """

    slot: Slot
    version: VersionId
    listed_count: int
    staged_count: int
    waited_s: float
    missing: tuple[Member, ...]
    repeated: bool


@dataclass(frozen=True, slots=True)
class Applied:
    """How far the receivers came after an activation.

    Attributes:
        listed_count: Receivers that were listed at the last look.
        applied_count: Those of them that serve the version, or one activated later.
        waited_s: How long they were waited for.
        missing: The others. They serve nothing once their `max_staleness_s` has passed.
        unread: Keys of objects that may be receivers too, and could not be read.
    """

    listed_count: int
    applied_count: int
    waited_s: float
    missing: tuple[Member, ...]
    unread: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the members: those of the mode `active`, and those not there yet."""

    listed: tuple[Member, ...]
    missing: tuple[Member, ...]
    unread: tuple[str, ...]
    waited_s: float

    @property
    def reached_count(self) -> int:
        return len(self.listed) - len(self.missing)


def activate(
    writer: LogWriter,
    blobs: BlobStore,
    *,
    version: int,
    clock: Clock,
    timeout_s: float,
    poll_s: float,
    silent_s: float,
    require_staged: bool = False,
    watch: SilenceWatch | None = None,
) -> Activated:
    """Wait until the listed receivers have a version staged, then name it in the log.

    After a crash: the record is in the log or not. Repeating the call ends in one record:
    a version that is active already is not activated again.

    Args:
        writer: Puts the record.
        blobs: Where the members are.
        version: A kept version; an older one than the active rolls the fleet back.
        clock: For the deadline and the pauses.
        timeout_s: At the latest then the record is put, whoever is missing.
        poll_s: Between two looks at the members.
        silent_s: A member whose counter stands still for so long is not waited for.
        require_staged: Put no record while one is missing, is silent or could not be read.
        watch: What is known of silent members from earlier activations.

    Raises:
        NotStagedError: with `require_staged`, somebody had not staged it in time; nothing
            was put.
        ConflictError: another version was activated meanwhile; nothing was put.
        VersionNotFoundError: the version was never committed.
        VersionGoneError: it was retired, before or while it was waited for.
        CommitUnknownError: no answer until the deadline; repeat the call.
        UnavailableError: the members could not be listed in all that time, or no record put.
    """
    check_pace(poll_s)
    prefix = writer.log.tail()
    wanted = _reference(writer, prefix, version)
    before = prefix.now.active
    if before is not None and before.version == wanted.version:
        timeout_s, require_staged = 0.0, False
    silence = watch or SilenceWatch(clock, silent_s)
    look = _Wait(writer, blobs, clock, timeout_s, poll_s).until(
        lambda member: has_staged(member, wanted),
        _nobody_missing if require_staged else lambda look: _all_lively_staged(look, silence),
    )
    if require_staged and not _nobody_missing(look):
        raise _not_staged(wanted.version, look)
    stored, repeated = _put(writer, wanted.version, look, before=before)
    return Activated(
        slot=stored.record.slot,
        version=wanted.version,
        listed_count=len(look.listed),
        staged_count=look.reached_count,
        waited_s=look.waited_s,
        missing=look.missing,
        repeated=repeated,
    )


def wait_applied(
    writer: LogWriter,
    blobs: BlobStore,
    *,
    activated: Activated,
    clock: Clock,
    max_staleness_s: float,
    poll_s: float,
) -> Applied:
    """Wait until every listed receiver serves an activated version, or cannot serve another.

    Args:
        writer: Reads the version's record.
        blobs: Where the members are.
        activated: What `activate` has returned, just before.
        clock: For the deadline and the pauses.
        max_staleness_s: The longest of any receiver. When so much time has passed since the
            record, whoever has not read it serves nothing.
        poll_s: Between two looks at the members.

    Raises:
        UnavailableError: the members could not be listed in all that time.
    """
    check_pace(poll_s)
    log = writer.log
    # Retired since, it still has a record: what it was is what is compared.
    record = record_of_version(log, log.tail(), activated.version)
    wanted = MemberVersion(version=record.version, digest=record.digest)
    look = _Wait(writer, blobs, clock, max_staleness_s, poll_s).until(
        lambda member: has_applied(member, wanted, activated.slot), _nobody_missing
    )
    return Applied(len(look.listed), look.reached_count, look.waited_s, look.missing, look.unread)


def has_staged(member: Member, wanted: MemberVersion) -> bool:
    """Whether a receiver can serve a version without reading the store any more."""
    return member.staged == wanted or (member.state == "whole" and member.live == wanted)


def has_applied(member: Member, wanted: MemberVersion, slot: Slot) -> bool:
    """Whether a receiver serves a version by the activation at a slot, or by a later one."""
    if member.applied_slot is None or member.applied_slot < slot:
        return False
    is_there = member.state == "whole" and member.live == wanted
    return is_there or member.applied_slot > slot


def settled_slot(
    version: VersionId, *, active: ActiveVersion | None, before: ActiveVersion | None
) -> Slot | None:
    """Where a version is active already; None where its record is to be put now.

    Args:
        version: It.
        active: What is active now.
        before: What was active when the activation began.

    Raises:
        ConflictError: another version was activated since then.
    """
    # An answer that was lost, or another activator with the same wish: it is done. (P11)
    if active is not None and active.version == version:
        return active.slot
    if active != before:
        # Whoever waits long must not lead the fleet back from what was decided since.
        raise _overtaken(version, active)
    return None


def absent(missing: Sequence[Member], unread: Sequence[str]) -> str:
    """Who is missing, by name, and what was not read, for a message; empty where nothing is."""
    parts = [("missing: ", [repr(each.name) for each in missing]), ("not read: ", unread)]
    return "; ".join(words + _some(names) for words, names in parts if names)


def check_pace(poll_s: float) -> None:
    """Refuse a pause that would make a loop without one.

    Raises:
        InputRefusedError: it is shorter than a clock can tell.
    """
    if not poll_s >= TIME_MIN_S:
        raise InputRefusedError(
            f"poll_s={poll_s} is no pause", do=f"Give a number of seconds from {TIME_MIN_S}."
        )


@dataclass(frozen=True, slots=True)
class _Wait:
    """Looks at the members until it is over or the time is."""

    writer: LogWriter
    blobs: BlobStore
    clock: Clock
    timeout_s: float
    poll_s: float

    def until(self, is_there: Callable[[Member], bool], is_over: Callable[[_Look], bool]) -> _Look:
        """Look always once, and once more at the end; the last look.

        Raises:
            UnavailableError: the storage listed nothing all the time.
        """
        started_s = self.clock.monotonic_s()
        look: _Look | None = None
        while True:
            failure = None
            try:
                look = self._look(is_there, self.clock.monotonic_s() - started_s)
                if is_over(look):
                    return look
            except UnavailableError as error:
                # What was seen before counts until the time is over.
                failure = error
            left_s = self.timeout_s - (self.clock.monotonic_s() - started_s)
            if left_s < TIME_MIN_S and look is not None:
                return look
            if left_s < TIME_MIN_S and failure is not None:
                raise failure
            self.clock.sleep(min(self.poll_s, left_s))

    def _look(self, is_there: Callable[[Member], bool], waited_s: float) -> _Look:
        found = list_members(self.blobs, self.writer.log.limits)
        listed = tuple(each for each in found.members if each.mode == "active")
        missing = tuple(each for each in listed if not is_there(each))
        return _Look(listed, missing, found.unread, waited_s)


def _nobody_missing(look: _Look) -> bool:
    """Whether all are there, and nothing that may be a receiver was left unread."""
    return not (look.missing or look.unread)


def _all_lively_staged(look: _Look, silence: SilenceWatch) -> bool:
    """Whether only members are missing that have stopped writing."""
    silent = silence.silent(look.listed)
    return all(each.member_id in silent for each in look.missing)


def _reference(writer: LogWriter, prefix: Prefix, version: int) -> MemberVersion:
    record = record_of_version(writer.log, prefix, check_kept(prefix.now, version))
    return MemberVersion(version=record.version, digest=record.digest)


def _put(
    writer: LogWriter, version: VersionId, look: _Look, *, before: ActiveVersion | None
) -> tuple[StoredRecord, bool]:
    """The record of an activation, and whether it was there before."""
    commit_id = writer.new_commit_id()
    counted = members_sha256(look.listed)

    def build(prefix: Prefix) -> Record | StoredRecord:
        slot = settled_slot(version, active=prefix.now.active, before=before)
        if slot is not None:
            return writer.log.stored_at(slot)
        return ActivateRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            version=check_kept(prefix.now, version),
            previous_activate_slot=prefix.now.last_slots.get("activate"),
            members_sha256=counted,
            listed_count=len(look.listed),
            staged_count=look.reached_count,
        )

    stored = writer.put(build)
    return stored, stored.record.commit_id != commit_id


def _overtaken(version: VersionId, active: ActiveVersion | None) -> ConflictError:
    newer = active.version if active is not None else None
    return ConflictError(
        f"version {newer} was activated while the receivers staged version {version}, which"
        " was not",
        do=f"Activate version {version} again if it is still the one to serve.",
        facts={"version": version, "active": newer},
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_COUNT
    return ", ".join(names[:_NAMED_COUNT]) + (f" and {more} more" if more > 0 else "")


def _not_staged(version: VersionId, look: _Look) -> NotStagedError:
    return NotStagedError(
        f"version {version} is staged by {look.reached_count} of {len(look.listed)} receivers"
        f" after {look.waited_s:.1f} s; {absent(look.missing, look.unread)}",
        do="Repeat with a longer `timeout_s`, take receivers that are gone off the list with"
        " `forget_receiver`, or activate without `require_all`.",
        facts={
            "version": version,
            "listed_count": len(look.listed),
            "staged_count": look.reached_count,
            "missing": tuple(each.member_id for each in look.missing),
            "unread": look.unread,
        },
    )
