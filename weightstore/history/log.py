"""Reading the log: its tail in O(log n) reads, without a listing and without a clock.

Records are immutable and stand without gaps, so the tail is found by galloping and
bisection. What is found is checked before it is used: the last two records must agree on
the state between them; where they do not, the reader walks back to two that do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from weightstore.errors import (
    BlobNotFoundError,
    CorruptLogError,
    CorruptObjectError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.canonical import MAX_INTEGER, decode_json
from weightstore.format.keys import HEAD_KEY, LOG_PREFIX, log_key
from weightstore.format.records import (
    EMPTY_NOW,
    FORMAT_NUMBER,
    Kind,
    Now,
    Record,
    decode_record,
)
from weightstore.format.rules import (
    EMPTY_PREFIX,
    Invalid,
    Prefix,
    Verdict,
    accept,
    advance,
    pass_over,
    upgrade_reason,
    validate,
)
from weightstore.history.log_index import Addition, LogIndex
from weightstore.ids import Sha256, Slot
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore

_FAR_COUNT = 64
"""So far above the hint the end of the log is looked for from the top of the index, if any."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record and the SHA-256 of its stored bytes."""

    record: Record
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class Step:
    """One record read after a prefix: what it was, whether it counts, and the prefix after it."""

    stored: StoredRecord
    verdict: Verdict
    after: Prefix


class Log:
    """The log of one store. Safe to use from several threads: what it keeps never changes.

    Args:
        blobs: The store.
        limits: Hard bounds.
        index: Answers for old records where it can; the tail is always the store's to tell.
    """

    def __init__(self, blobs: BlobStore, limits: Limits, index: LogIndex | None = None) -> None:
        self.limits = limits
        self._blobs = blobs
        self._index = index
        self._records: dict[Slot, StoredRecord] = {}
        self._known = EMPTY_PREFIX
        self._confirmed = EMPTY_PREFIX.next_slot

    def read(self, slot: Slot) -> StoredRecord | None:
        """The record at a slot, or None past the end of the log.

        Raises:
            CorruptLogError: it does not parse, or is larger than a record may be.
            UpgradeRequiredError: it is of a kind that this release does not know.
        """
        cached = self._records.get(slot)
        if cached is not None:
            return cached
        try:
            data = self._blobs.get(log_key(slot), max_size_bytes=self.limits.record_size_bytes)
        except BlobNotFoundError:
            return None
        except CorruptObjectError as error:
            raise CorruptLogError(
                f"log record {slot}: {error.message}", facts={"slot": slot}
            ) from error
        return self._remembered(StoredRecord(self._decoded(data, slot), sha256_of(data)))

    def tail(self) -> Prefix:
        """The whole log, summed up; every record of it survives power loss.

        Raises:
            CorruptLogError: the newest records do not parse or contradict each other.
            UpgradeRequiredError: a record or feature that this release does not know.
        """
        near = self._near_tail(self._known)
        return self._confirm_tail(near or self._found_tail())

    def follow(self, prefix: Prefix) -> Prefix:
        """The whole log, reading every record after a prefix; from the empty one, an audit.

        Raises:
            CorruptLogError: a record does not parse.
            UpgradeRequiredError: a record or feature that this release does not know.
        """
        for step in self.steps(prefix):
            prefix = step.after
        return self._confirm_tail(prefix)

    def steps(self, prefix: Prefix) -> Iterator[Step]:
        """Each record after a prefix with its verdict, as far as the log goes now.

        Raises:
            CorruptLogError: a record does not parse.
            UpgradeRequiredError: a record or feature that this release does not know.
        """
        self._check_readable(prefix.now)
        while (stored := self.read(prefix.next_slot)) is not None:
            verdict = validate(prefix, stored.record)
            if isinstance(verdict, Invalid):
                prefix = pass_over(prefix, stored.sha256)
            else:
                prefix = accept(prefix, stored.record, stored.sha256)
            self._check_readable(prefix.now)
            yield Step(stored, verdict, prefix)

    def prefix_at(self, slot: Slot) -> Prefix:
        """The records below a slot, summed up; all of them must exist.

        Raises:
            CorruptLogError: they do not parse, contradict each other, or one is missing.
            UpgradeRequiredError: a record or feature that this release does not know.
        """
        first = max(slot - 2, 0)
        last_try = max(slot - 2 - self.limits.walk_back_count, 0)
        while first >= last_try:
            start = EMPTY_PREFIX if first == 0 else self._agreed_start(Slot(first))
            if start is not None:
                return self._fold(start, slot)
            first -= 1
        raise CorruptLogError(
            f"the {self.limits.walk_back_count} records before slot {slot} contradict each other",
            do="Verify the store; do not write to it.",
            facts={"slot": slot},
        )

    def stored_at(self, slot: Slot) -> StoredRecord:
        """The record at a slot that is below a known tail.

        Raises:
            CorruptLogError: it is missing or does not parse.
        """
        stored = self._records.get(slot) or self._indexed(slot) or self.read(slot)
        if stored is None:
            raise CorruptLogError(
                f"log record {slot} is missing, though later ones are there",
                do="Restore log/ from a copy; do not write to this store.",
                facts={"slot": slot},
            )
        return stored

    def records_of_kind(self, prefix: Prefix, kind: Kind) -> Iterator[StoredRecord]:
        """Valid records of one kind, newest first; one read each.

        Each record's `now` names its predecessor of the kind, so no other one is read.
        """
        slot = prefix.now.last_slots.get(kind)
        above = prefix.next_slot
        while slot is not None:
            stored = self.stored_at(slot)
            if stored.record.kind != kind or slot >= above:
                raise CorruptLogError(
                    f"log record {slot} is linked as the previous {kind} record, and is none",
                    facts={"slot": slot},
                )
            yield stored
            above, slot = slot, stored.record.now.last_slots.get(kind)

    def indexed_slot_of(self, version: int) -> Slot | None:
        """Where the index has a version's record; None if it does not know. To be checked."""
        if self._index is None:
            return None
        return self._index.slot_of_version(version, self._sha256_in_store)

    def iterate(self, first: Slot, last: Slot) -> Iterator[StoredRecord]:
        """Records from one slot to another, both included, valid or not."""
        for slot in range(first, last + 1):
            yield self.stored_at(Slot(slot))

    def confirm(self, prefix: Prefix) -> None:
        """Make a prefix that was read survive power loss; once per new tail.

        A record that somebody linked may be visible and still vanish with the power; it
        counts only after the reader's own fsync. (P6)

        Raises:
            BlobOutcomeUnknownError: the fsync failed; this handle is dead.
        """
        if prefix.next_slot > self._confirmed:
            self._blobs.confirm_durable(LOG_PREFIX)
            self._confirmed = prefix.next_slot

    def note_durable(self, prefix: Prefix) -> None:
        """Remember a prefix whose last record this process has just put durably."""
        self._known = prefix
        self._confirmed = max(self._confirmed, prefix.next_slot)

    def write_hint(self, slot: Slot) -> None:
        """Tell later readers where to look first. Best effort: the hint carries no truth.

        After a crash: the old hint, this one, or none; readers check all three alike.
        """
        try:
            self._blobs.overwrite(HEAD_KEY, str(slot).encode("ascii"))
        except WeightStoreError:
            # The record is committed; that a hint could not be written changes nothing.
            return

    def _remembered(self, stored: StoredRecord) -> StoredRecord:
        if len(self._records) >= self.limits.cached_record_count:
            self._records = {}
        self._records[stored.record.slot] = stored
        return stored

    def _indexed(self, slot: Slot) -> StoredRecord | None:
        """The record at a slot by the index, which it may extend; None: ask the store."""
        if self._index is None:
            return None
        body = self._index.body(slot, self._sha256_in_store)
        if body is None:
            if self._index.note_miss():
                self._index.extend(self._additions_from)
            return None
        try:
            return self._remembered(StoredRecord(self._decoded(body, slot), sha256_of(body)))
        except CorruptLogError:
            self._index.clear()
            return None

    def _sha256_in_store(self, slot: Slot) -> Sha256 | None:
        stored = self.read(slot)
        return None if stored is None else stored.sha256

    def _additions_from(self, slot: Slot) -> Iterator[Addition]:
        prefix = EMPTY_PREFIX if slot == 0 else self.prefix_at(slot)
        for step in islice(self.steps(prefix), self.limits.index_extension_count):
            is_valid = not isinstance(step.verdict, Invalid)
            yield Addition(step.stored.record, step.stored.sha256, is_valid)

    def _decoded(self, data: bytes, slot: Slot) -> Record:
        try:
            return decode_record(data, slot=slot)
        except CorruptLogError:
            # A later format may have other fields; it still says which format it is.
            reason = _reason_of_a_later_format(data)
            if reason is None:
                raise
        raise self._upgrade_required(reason)

    def _near_tail(self, known: Prefix) -> Prefix | None:
        """The tail if it is a few records past a known prefix, else None."""
        if known.next_slot == 0:
            return None
        for count, step in enumerate(self.steps(known), start=1):
            known = step.after
            if count > self.limits.tail_step_count:
                return None
        return known

    def _found_tail(self) -> Prefix:
        end = self._find_end()
        # The newest records are always the store's own words, also where an index has them.
        for slot in range(max(end - 2, 0), end):
            self.read(Slot(slot))
        return self.prefix_at(end)

    def _confirm_tail(self, prefix: Prefix) -> Prefix:
        self.confirm(prefix)
        self._known = prefix
        return prefix

    def _find_end(self) -> Slot:
        """Number of records in the log: gallop up from what is surely there, then bisect."""
        present = max(self._hinted_slot(), self._known.next_slot - 1)
        stride = 1
        while self._is_present(present + stride):
            present += stride
            stride *= 2
            if stride == _FAR_COUNT and self._index is not None:
                # The hint is old or lost: the index may know a slot far above that is there.
                present = max(present, self._index.top(self._sha256_in_store) or 0)
                stride = 1
                break
        while self._is_present(present + stride):
            present += stride
            stride *= 2
        absent = present + stride
        while absent - present > 1:
            middle = (present + absent) // 2
            if self._is_present(middle):
                present = middle
            else:
                absent = middle
        return Slot(absent)

    def _hinted_slot(self) -> int:
        """The slot that `head` names if a record is there, else -1: the hint may be anything."""
        try:
            data = self._blobs.get(HEAD_KEY, max_size_bytes=self.limits.hint_size_bytes)
        except WeightStoreError:
            return -1
        if not (data.isascii() and data.isdigit()):
            return -1
        return slot if self._is_present(slot := int(data)) else -1

    def _is_present(self, slot: int) -> bool:
        if slot > MAX_INTEGER:
            return False
        try:
            self._blobs.size(log_key(Slot(slot)))
        except BlobNotFoundError:
            return False
        return True

    def _agreed_start(self, first: Slot) -> Prefix | None:
        """The prefix below a slot as its record says it, if the next record agrees.

        That one must also be valid: a correct writer puts no other record, so an invalid
        one is no witness.
        """
        stored = self.stored_at(first)
        start = Prefix(first, stored.record.parent_sha256, stored.record.now)
        self._check_readable(start.now)
        after = advance(start, stored.record, stored.sha256)
        self._check_readable(after.now)
        following = self.stored_at(Slot(first + 1)).record
        return None if isinstance(validate(after, following), Invalid) else start

    def _fold(self, prefix: Prefix, end: Slot) -> Prefix:
        for stored in self.iterate(prefix.next_slot, Slot(end - 1)):
            prefix = advance(prefix, stored.record, stored.sha256)
            self._check_readable(prefix.now)
        return prefix

    def _check_readable(self, now: Now) -> None:
        reason = upgrade_reason(now)
        if reason is not None:
            raise self._upgrade_required(reason)

    def _upgrade_required(self, reason: str) -> UpgradeRequiredError:
        return UpgradeRequiredError(
            f"{self._blobs.location}: {reason}", do="Upgrade weightstore on this machine."
        )


def _reason_of_a_later_format(data: bytes) -> str | None:
    """Why a record that does not parse is one of a later format, or None if it is damaged."""
    try:
        value = decode_json(data, what="log record")
    except CorruptObjectError:
        return None
    now = value.get("now") if isinstance(value, dict) else None
    if not isinstance(now, dict):
        return None
    number, features = now.get("format"), now.get("features")
    said = EMPTY_NOW.model_copy(
        update={
            "format": number if isinstance(number, int) else FORMAT_NUMBER,
            "features": tuple(str(one) for one in features) if isinstance(features, list) else (),
        }
    )
    return upgrade_reason(said)


def sha256_of(data: bytes) -> Sha256:
    """SHA-256 of stored bytes."""
    return Sha256(hashlib.sha256(data).hexdigest())
