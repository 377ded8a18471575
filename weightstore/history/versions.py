"""Finding versions in the log: by number, `latest`, `active`, `tag:name` and `run@step`.

The log is never scanned: a record's `now` says which version was newest below it, so a
version's record is found by bisection over slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weightstore.errors import CorruptLogError, SelectorError, VersionNotFoundError
from weightstore.format.kept import Kept
from weightstore.format.records import Newest, VersionRecord
from weightstore.format.rules import Prefix, is_kept
from weightstore.history.existence import check_committed, check_kept
from weightstore.history.log import Log
from weightstore.history.tags import find_tag
from weightstore.ids import (
    Epoch,
    RunId,
    Slot,
    Step,
    VersionId,
    parse_number,
    parse_run_id,
    parse_tag_name,
)

TAG_SELECTOR = "tag:"


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A committed version, and whether it can still be checked out."""

    record: VersionRecord
    kept: bool


def find_version(log: Log, prefix: Prefix, selector: str | int) -> VersionRecord:
    """The record of the version that a selector names.

    Args:
        log: The log.
        prefix: The tail to look below.
        selector: `"latest"`, `"active"` (what the newest `activate` record names), a
            version's number, `"tag:name"` or `"run@step"` (the newest version of that step).

    Raises:
        SelectorError: the selector cannot be parsed.
        VersionNotFoundError: no such version was ever committed, or none is active.
        VersionGoneError: it was retired; the error names the newest kept one.
        TagNotFoundError: no such tag is set.
    """
    if isinstance(selector, int):
        return _kept_version(log, prefix, selector)
    if selector == "latest":
        return latest(log, prefix)
    if selector == "active":
        return active(log, prefix)
    if selector.startswith(TAG_SELECTOR):
        name = parse_tag_name(selector.removeprefix(TAG_SELECTOR))
        return _kept_version(log, prefix, find_tag(log, prefix, name))
    run, sign, step = selector.rpartition("@")
    if sign:
        return _kept_step(log, prefix, parse_run_id(run), parse_number(step, what="step"))
    if selector.isascii() and selector.isdigit():
        return _kept_version(log, prefix, parse_number(selector, what="version"))
    raise SelectorError(
        f"{selector!r} names no version",
        do="Use latest, active, a number, tag:NAME or RUN@STEP.",
        facts={"selector": selector},
    )


def latest(log: Log, prefix: Prefix) -> VersionRecord:
    """The record of the newest version.

    Raises:
        VersionNotFoundError: the store is empty.
    """
    newest = prefix.now.newest
    if newest is None:
        raise VersionNotFoundError(
            "the store is empty: no version was committed yet",
            do="Put or import a first version.",
        )
    return _version_record(log, newest)


def active(log: Log, prefix: Prefix) -> VersionRecord:
    """The record of the version that the newest `activate` record names.

    Raises:
        VersionNotFoundError: no version was activated yet.
    """
    found = prefix.now.active
    if found is None:
        raise VersionNotFoundError(
            "no version is active: none was ever activated",
            do="Activate one with `store.activate(...)`, or ask for latest.",
        )
    return _kept_version(log, prefix, found.version)


def record_of_version(log: Log, prefix: Prefix, version: int) -> VersionRecord:
    """The record that made a version, retired or not, in O(log n) reads.

    Raises:
        VersionNotFoundError: it was never committed.
    """
    wanted = check_committed(prefix.now, version)
    newest = prefix.now.newest
    assert newest is not None
    indexed = _indexed_newest(log, prefix, wanted)
    if indexed is not None:
        return _version_record(log, indexed)
    # Each version takes a slot of its own, after those of `init` and the first claim.
    below = wanted + 1
    upto = newest.slot + 1 - (newest.version - wanted)
    found = _first_newest(log, below, upto, lambda one: one.version >= wanted)
    return _version_record(log, found)


def find_step(
    log: Log, prefix: Prefix, run: RunId, step: int, *, epoch: Epoch | None = None
) -> VersionRecord | None:
    """The newest version of a run's step, retired or not; None if there is none.

    A run's versions lie between a claim and the next, where steps rise: the claims are
    walked newest first, and within one the step is found by bisection.

    Args:
        log: The log.
        prefix: The tail to look below.
        run: The run.
        step: The trainer's step.
        epoch: Look at versions of this claim alone.
    """
    top = prefix.now.newest
    for claim in log.records_of_kind(prefix, "claim"):
        slot = claim.record.slot
        if (
            top is not None
            and top.slot > slot
            and top.run == run
            and top.step >= step
            and epoch in {None, top.epoch}
        ):
            found = _step_above(log, slot, top, step)
            if found.step == step:
                return _version_record(log, found)
        top = claim.record.now.newest
        if top is None:
            break
    return None


def list_versions(log: Log, prefix: Prefix) -> Iterator[ListedVersion]:
    """Every committed version, newest first; one read each."""
    for stored in log.records_of_kind(prefix, "version"):
        assert isinstance(stored.record, VersionRecord)
        yield ListedVersion(stored.record, is_kept(prefix.now, stored.record.version))


def records_of(log: Log, prefix: Prefix, kept: Kept) -> Iterator[VersionRecord]:
    """Records of every version of a set, newest first; one read each and a bisection a range."""
    for part in reversed(kept):
        record = record_of_version(log, prefix, part.last)
        while record.version > part.first:
            yield record
            below = record.now.newest
            if below is None:
                raise _unlinked(record)
            record = _version_record(log, below)
        yield record


def _kept_version(log: Log, prefix: Prefix, version: int) -> VersionRecord:
    return record_of_version(log, prefix, check_kept(prefix.now, version))


def _kept_step(log: Log, prefix: Prefix, run: RunId, step: int) -> VersionRecord:
    found = find_step(log, prefix, run, Step(step))
    if found is None:
        raise VersionNotFoundError(
            f"no version of {run}@{step} was ever committed",
            do="List the versions of the store.",
            facts={"run": run, "step": step},
        )
    check_kept(prefix.now, found.version)
    return found


def _step_above(log: Log, claim: Slot, top: Newest, step: int) -> Newest:
    """The first version after a claim that has reached a step, as the version `top` has."""
    return _first_newest(
        log, claim + 1, top.slot + 1, lambda one: one.slot > claim and one.step >= step
    )


def _indexed_newest(log: Log, prefix: Prefix, version: VersionId) -> Newest | None:
    """A version as the index finds it and the log says it; None: look for it in the log."""
    slot = log.indexed_slot_of(version)
    if slot is None or slot >= prefix.next_slot:
        return None
    found = log.prefix_at(Slot(slot + 1)).now.newest
    return found if found is not None and (found.version, found.slot) == (version, slot) else None


def _first_newest(log: Log, below: int, upto: int, reached: Callable[[Newest], bool]) -> Newest:
    """The first `newest` that satisfies a condition which never turns false again.

    Args:
        log: The log.
        below: A prefix length at which the condition is surely false.
        upto: A prefix length at which it is surely true.
        reached: The condition, false where there is no version.
    """
    while upto - below > 1:
        middle = (below + upto) // 2
        newest = log.prefix_at(Slot(middle)).now.newest
        if newest is not None and reached(newest):
            upto = middle
        else:
            below = middle
    found = log.prefix_at(Slot(upto)).now.newest
    if found is None or not reached(found):
        raise CorruptLogError(
            f"the log below slot {upto} lacks a version that its tail counts",
            facts={"slot": upto},
        )
    return found


def _unlinked(record: VersionRecord) -> CorruptLogError:
    return CorruptLogError(
        f"log record {record.slot} makes version {record.version} and knows no version before it",
        facts={"slot": record.slot, "version": record.version},
    )


def _version_record(log: Log, newest: Newest) -> VersionRecord:
    record = log.stored_at(newest.slot).record
    if not isinstance(record, VersionRecord) or record.version != newest.version:
        raise CorruptLogError(
            f"log record {newest.slot} does not make version {newest.version}",
            facts={"slot": newest.slot, "version": newest.version},
        )
    return record
