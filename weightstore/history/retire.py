"""Retiring versions: which stay, decided anew for every tail, and the record that says so.

What must stay is never a choice: the newest, the active and the previous active version,
everything tagged, and the whole chain of each version that stays. (P9)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from weightstore.errors import (
    BlobNotFoundError,
    CorruptError,
    InputRefusedError,
    RetireRefusedError,
)
from weightstore.format import kept as kept_sets
from weightstore.format.kept import Kept
from weightstore.format.records import Now, Record, RetireRecord, VersionRecord
from weightstore.format.rules import EMPTY_PREFIX, Prefix
from weightstore.history.audit import audited_tail
from weightstore.history.commit import LogWriter
from weightstore.history.existence import check_committed, check_kept
from weightstore.history.log import Log, StoredRecord
from weightstore.history.tags import list_tags
from weightstore.history.versions import records_of
from weightstore.ids import Slot, VersionId
from weightstore.storage.blobs import BlobStore

T = TypeVar("T")


class StoredObject(Protocol):
    """An object that a version names: `ObjectRef` and `BlobInfo` are such."""

    @property
    def key(self) -> str:
        """Where it is."""
        ...

    @property
    def size_bytes(self) -> int:
        """How large it must be."""
        ...


ChainOf = Callable[[VersionRecord], Iterable[VersionId]]
"""Every version that is needed to check a version out, itself included or not."""
ObjectsOf = Callable[[VersionRecord], Sequence[StoredObject]]
"""Every object that one version names: manifest, schema, tables, packs, anchor files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """What the user wants to stay, besides what must.

    Attributes:
        newest_count: So many of the newest kept versions.
        versions: These versions.
    """

    newest_count: int = 0
    versions: Kept = ()


@dataclass(frozen=True, slots=True)
class RetirePlan:
    """What a `retire` record at this point of the log would do.

    Attributes:
        kept: Versions that stay.
        gone: Versions that are kept now and would not be any more.
        prefix: The log that it was made for.
    """

    kept: Kept
    gone: Kept
    prefix: Prefix


def plan_retire(log: Log, prefix: Prefix, keep: Keep, *, chain_of: ChainOf) -> RetirePlan:
    """Decide which versions stay; changes nothing.

    Raises:
        InputRefusedError: a count is negative.
        RetireRefusedError: what must stay needs a version that is gone already.
        VersionNotFoundError: a version to keep was never committed.
        VersionGoneError: a range to keep is gone already, all of it.
        CorruptError: a manifest that the chains run through cannot be read.
    """
    wanted = _wanted(prefix.now, keep)
    musts = kept_sets.of_versions(_must_stay(log, prefix))
    kept = _with_chains(log, prefix, kept_sets.union(wanted, musts), chain_of)
    while len(kept) > log.limits.kept_range_count:
        # What is filled in must bring its own chain. The set only grows, at most to what is
        # kept now, which fits.
        coarse = kept_sets.coarsen(
            kept, within=prefix.now.kept, range_count=log.limits.kept_range_count
        )
        kept = _with_chains(log, prefix, coarse, chain_of)
    return RetirePlan(kept, kept_sets.subtract(prefix.now.kept, kept), prefix)


def retire(
    writer: LogWriter,
    blobs: BlobStore,
    keep: Keep,
    *,
    chain_of: ChainOf,
    objects_of: ObjectsOf,
) -> RetirePlan:
    """Retire what need not stay; deletes nothing (`sweep` does).

    The plan is made anew whenever the log has moved: a tag that came in between counts.
    The whole log is validated and all objects of what stays are checked first, since what
    goes cannot come back.

    After a crash: the kept set as it was, or as planned; repeating is safe.

    Raises:
        RetireRefusedError: an object of a version that stays is missing or of a wrong size.
        CorruptError: a manifest of a version that stays cannot be read, or the log is damaged
            or misleads those who read it; nothing was put.
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    return unless_retired_meanwhile(
        writer.log,
        lambda prefix: _retire_after(
            prefix, writer, blobs, keep, chain_of=chain_of, objects_of=objects_of
        ),
    )


def unless_retired_meanwhile(
    log: Log, work: Callable[[Prefix], T], *, proven: Prefix = EMPTY_PREFIX
) -> T:
    """Do work on the audited tail, and again if it met damage that another `retire` explains.

    Whoever retires and sweeps at the same time deletes what this process still takes for
    kept: a missing object is damage only if its version is kept by the newest log.
    """
    prefix = audited_tail(log, proven=proven)
    for _ in range(log.limits.replan_count):
        try:
            return work(prefix)
        except (RetireRefusedError, CorruptError):
            later = log.follow(prefix)
            if _retire_slot(later) == _retire_slot(prefix):
                raise
            prefix = later
    return work(prefix)


def check_objects(
    blobs: BlobStore, records: Iterable[VersionRecord], objects_of: ObjectsOf
) -> frozenset[str]:
    """Check that every object of these versions is there, and return their keys.

    Raises:
        RetireRefusedError: one is missing or of a wrong size.
        CorruptError: a manifest cannot be read.
    """
    checked: set[str] = set()
    for record in records:
        for stored in objects_of(record):
            if stored.key not in checked:
                _check_object(blobs, record.version, stored)
                checked.add(stored.key)
    return frozenset(checked)


def newest_kept(kept: Kept, count: int) -> Kept:
    """The newest so many versions of a kept set."""
    parts = []
    for part in reversed(kept):
        if count <= 0:
            break
        first = VersionId(max(part.first, part.last - count + 1))
        parts.append(part.model_copy(update={"first": first}))
        count -= part.last - first + 1
    return tuple(reversed(parts))


def _retire_after(
    prefix: Prefix,
    writer: LogWriter,
    blobs: BlobStore,
    keep: Keep,
    *,
    chain_of: ChainOf,
    objects_of: ObjectsOf,
) -> RetirePlan:
    """Plan, check and put the record; nothing is deleted.

    After a crash: the kept set as it was, or as planned.
    """
    commit_id = writer.new_commit_id()
    plan = plan_retire(writer.log, prefix, keep, chain_of=chain_of)
    if not plan.gone:
        return plan
    check_objects(blobs, records_of(writer.log, prefix, plan.kept), objects_of)

    def build(prefix: Prefix) -> Record | StoredRecord:
        nonlocal plan
        planned = plan_retire(writer.log, prefix, keep, chain_of=chain_of)
        added = kept_sets.subtract(planned.kept, plan.kept)
        check_objects(blobs, records_of(writer.log, prefix, added), objects_of)
        plan = planned
        return RetireRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            kept=planned.kept,
        )

    writer.put(build, after=prefix)
    return plan


def _retire_slot(prefix: Prefix) -> Slot | None:
    return prefix.now.last_slots.get("retire")


def _wanted(now: Now, keep: Keep) -> Kept:
    if keep.newest_count < 0:
        raise InputRefusedError(
            f"{keep.newest_count} versions cannot be kept", do="Give a count of 0 or more."
        )
    for part in keep.versions:
        check_committed(now, part.first)
        check_committed(now, part.last)
    named = kept_sets.intersect(keep.versions, now.kept)
    for part in keep.versions:
        if not kept_sets.intersect((part,), now.kept):
            check_kept(now, part.first)
    return kept_sets.union(named, newest_kept(now.kept, keep.newest_count))


def _must_stay(log: Log, prefix: Prefix) -> Iterator[VersionId]:
    now = prefix.now
    for one in (now.newest, now.active, now.previous_active):
        if one is not None:
            yield one.version
    for tag in list_tags(log, prefix):
        yield tag.version


def _with_chains(log: Log, prefix: Prefix, stay: Kept, chain_of: ChainOf) -> Kept:
    """The set with the chain of each of its versions.

    Newest first, so that a version inside a chain that was walked is not walked again.
    """
    found: set[VersionId] = set()
    for record in records_of(log, prefix, stay):
        if record.version not in found:
            found.update((record.version, *chain_of(record)))
    whole = kept_sets.of_versions(found)
    lost = kept_sets.subtract(whole, prefix.now.kept)
    if lost:
        raise RetireRefusedError(
            f"a version that must stay needs version {lost[0].first}, which is gone already",
            do="Verify the store; retire nothing before it is whole.",
            facts={"version": lost[0].first},
        )
    return whole


def _check_object(blobs: BlobStore, version: VersionId, stored: StoredObject) -> None:
    try:
        size_bytes = blobs.size(stored.key)
    except BlobNotFoundError as error:
        raise _damaged(version, stored, "is missing") from error
    if size_bytes != stored.size_bytes:
        raise _damaged(version, stored, f"has {size_bytes} bytes, not {stored.size_bytes}")


def _damaged(version: VersionId, stored: StoredObject, what: str) -> RetireRefusedError:
    return RetireRefusedError(
        f"version {version} must stay, and its object {stored.key} {what}; nothing was deleted",
        do="Restore the object, or verify the store to find what still reads.",
        facts={"version": version, "key": stored.key},
    )
