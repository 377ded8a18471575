"""Putting one record: validate, put if absent, and resolve every doubt in the log.

There is one way to commit and this is it. A writer that has no clean answer looks at the
slot: its own `commit_id` there means done, another record means that its request can
never land and that it must decide again, an absent record means sending the same body
again until the deadline. (P11)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from weightstore.clock import Clock, Entropy
from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    CommitUnknownError,
    ConflictError,
    CorruptLogError,
    CorruptObjectError,
    LimitError,
    RecordRefusedError,
    StorageFailedError,
    UnavailableError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.keys import log_key
from weightstore.format.records import Now, Record, encode_record
from weightstore.format.rules import Invalid, Prefix, accept, validate
from weightstore.history.log import Log, StoredRecord, sha256_of
from weightstore.ids import CommitId, SessionId, Sha256, Slot
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0
_DOUBLING_COUNT_MAX = 8

Build = Callable[[Prefix], Record | StoredRecord]
"""Decides what to put after a prefix: a record for its next slot, with the same
`commit_id` every time, or a stored record that already says it. Raises what the caller
of the operation is to see if the prefix does not allow it."""


class Header(TypedDict):
    """The fields of a record that do not depend on its kind."""

    slot: Slot
    parent_sha256: Sha256
    session: SessionId
    commit_id: CommitId
    written_unix_ms: int
    now: Now


@dataclass(frozen=True, slots=True)
class _Sealed:
    """A record ready for one slot: the same bytes are sent every time."""

    stored: StoredRecord
    body: bytes

    @property
    def slot(self) -> Slot:
        return self.stored.record.slot


class LogWriter:
    """Puts records on behalf of one session (a launch of a trainer, or one open handle).

    Args:
        blobs: Where the log is.
        log: The reader of the same log.
        clock: For deadlines and pauses.
        entropy: For commit ids.
        settings: `commit_timeout_s` bounds each put.
        session: Nonce that stands in every record.
    """

    def __init__(
        self,
        blobs: BlobStore,
        log: Log,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: Settings,
        session: SessionId,
    ) -> None:
        self.log = log
        self.session = session
        self._blobs = blobs
        self._clock = clock
        self._entropy = entropy
        self._settings = settings

    def new_commit_id(self) -> CommitId:
        """A nonce for one attempt to put one record."""
        return CommitId(self._entropy.hex128())

    def header(self, prefix: Prefix, commit_id: CommitId) -> Header:
        """Fields of a record for the next slot of a prefix."""
        return Header(
            slot=prefix.next_slot,
            parent_sha256=prefix.tail_sha256,
            session=self.session,
            commit_id=commit_id,
            written_unix_ms=self._clock.unix_ms(),
            now=prefix.now,
        )

    def put(self, build: Build, *, after: Prefix | None = None) -> StoredRecord:
        """Put the record that `build` decides on, and return it as it is in the log.

        Args:
            build: Decides, and again whenever another writer took the slot.
            after: A prefix that is proven, from which the log is followed record by record;
                without it the tail is found.

        After a crash: no record, or the whole record; calling again with a `build` that
        recognises what is done already ends in one record. What was returned survives
        power loss.

        Raises:
            RecordRefusedError: the rules of the log do not allow the record; it was not sent.
            CommitUnknownError: no answer until the deadline; it may still appear.
            ConflictError: other writers took every slot until the deadline; nothing was put.
            UpgradeRequiredError: the log holds what this release does not know.
            CorruptLogError: the log holds what does not parse, or lacks the record below the
                next slot as this handle knows it; nothing was put.
        """
        deadline_s = self._clock.monotonic_s() + self._settings.commit_timeout_s
        prefix = self.log.tail() if after is None else self.log.follow(after)
        while True:
            built = build(prefix)
            if isinstance(built, StoredRecord):
                return built
            sealed = self._seal(prefix, built)
            self._check_stands_on(prefix)
            landed = _Delivery(self._blobs, self.log, self._clock, prefix, sealed, deadline_s).run()
            if landed is not None:
                self.log.write_hint(landed.record.slot)
                return landed
            # The slot is another's, so nothing of ours is under way: decide afresh.
            if self._clock.monotonic_s() >= deadline_s:
                raise ConflictError(
                    f"{self._blobs.location}: other writers took every slot of the log for"
                    f" {self._settings.commit_timeout_s} s; nothing was committed",
                    do="Repeat the call.",
                )
            prefix = self.log.follow(prefix)

    def _check_stands_on(self, prefix: Prefix) -> None:
        """Check that the newest record is in the store, not only in this handle's memory.

        Put past a hole, a record would be acknowledged here and found by nobody else.
        """
        if prefix.next_slot == 0:
            return
        slot = Slot(prefix.next_slot - 1)
        limit = self._settings.limits.record_size_bytes
        try:
            found = sha256_of(self._blobs.get(log_key(slot), max_size_bytes=limit))
        except (BlobNotFoundError, CorruptObjectError) as error:
            raise _lost(slot, error.message) from error
        if found != prefix.tail_sha256:
            raise _lost(slot, "another record stands there than the one that was read")

    def _seal(self, prefix: Prefix, record: Record) -> _Sealed:
        verdict = validate(prefix, record)
        if isinstance(verdict, Invalid):
            raise RecordRefusedError(
                f"a {record.kind} record is not allowed here: {verdict.reason}",
                facts={"kind": record.kind, "slot": record.slot, "rule": verdict.rule.value},
            )
        body = encode_record(record)
        limit = self._settings.limits.record_size_bytes
        if len(body) > limit:
            raise LimitError(
                f"a {record.kind} record of {len(body)} bytes is above the limit of {limit}",
                facts={"kind": record.kind, "size_bytes": len(body)},
            )
        return _Sealed(StoredRecord(record, sha256_of(body)), body)


def _lost(slot: Slot, why: str) -> CorruptLogError:
    return CorruptLogError(
        f"log record {slot}, which this handle has seen, is not there any more: {why};"
        " nothing was put",
        do="Restore log/ from a copy; do not write to this store.",
        facts={"slot": slot},
    )


class _Delivery:
    """Sends one body to one slot until the slot is taken, by it or by another record."""

    def __init__(
        self,
        blobs: BlobStore,
        log: Log,
        clock: Clock,
        prefix: Prefix,
        sealed: _Sealed,
        deadline_s: float,
    ) -> None:
        self._blobs = blobs
        self._log = log
        self._clock = clock
        self._prefix = prefix
        self._sealed = sealed
        self._deadline_s = deadline_s

    def run(self) -> StoredRecord | None:
        """The record as stored, or None if the slot holds another one.

        Raises:
            CommitUnknownError: neither is known at the deadline.
            UnavailableError: the storage refuses, and nothing of this is under way.
        """
        failures: list[WeightStoreError] = []
        while True:
            failure = self._send()
            if failure is None:
                return self._sealed.stored
            failures.append(failure)
            try:
                found = self._log.read(self._sealed.slot)
                if found is not None:
                    return self._own(found)
            except (UnavailableError, BlobOutcomeUnknownError) as error:
                if isinstance(error, UpgradeRequiredError):
                    raise
                failures.append(error)
            self._wait_or_give_up(failures)

    def _send(self) -> WeightStoreError | None:
        """Send the body; None after a clean success, else why there is none."""
        try:
            self._blobs.put_if_absent(log_key(self._sealed.slot), self._sealed.body)
        except (BlobExistsError, BlobOutcomeUnknownError, UnavailableError) as error:
            return error
        stored = self._sealed.stored
        self._log.note_durable(accept(self._prefix, stored.record, stored.sha256))
        return None

    def _own(self, found: StoredRecord) -> StoredRecord | None:
        if found.record.commit_id != self._sealed.stored.record.commit_id:
            return None
        # Found, not written: it counts after our own fsync alone. (P6)
        self._log.confirm(accept(self._prefix, found.record, found.sha256))
        return found

    def _wait_or_give_up(self, failures: list[WeightStoreError]) -> None:
        if self._is_worth_repeating(failures):
            pause_s = self._pause_s(len(failures))
            if self._clock.monotonic_s() + pause_s < self._deadline_s:
                self._clock.sleep(pause_s)
                return
        refusals = [error for error in failures if isinstance(error, UnavailableError)]
        if len(refusals) == len(failures):
            raise refusals[0]
        record = self._sealed.stored.record
        raise CommitUnknownError(
            f"{self._blobs.location}: no answer for the {record.kind} record of slot"
            f" {record.slot}: it may or may not be in the log",
            do="Open the store again and repeat the call: the log decides.",
            facts={"slot": record.slot, "kind": record.kind, "commit_id": record.commit_id},
        ) from failures[-1]

    def _is_worth_repeating(self, failures: list[WeightStoreError]) -> bool:
        """Whether sending again may help: not to a dead handle, nor to a full disk.

        A storage that fails is tried a few times; only what may be under way is worth all
        the time until the deadline.
        """
        if not isinstance(failures[-1], UnavailableError):
            return True
        is_failing = isinstance(failures[-1], StorageFailedError)
        is_undecided = any(not isinstance(error, UnavailableError) for error in failures)
        return is_failing and (is_undecided or len(failures) < self._log.limits.failed_send_count)

    def _pause_s(self, sent_count: int) -> float:
        """Doubling, bounded, and spread by the commit id, so that writers do not march in step."""
        longest_s = min(PAUSE_FIRST_S * 2.0 ** min(sent_count, _DOUBLING_COUNT_MAX), PAUSE_MAX_S)
        seed = f"{self._sealed.stored.record.commit_id}{sent_count}".encode("ascii")
        share = int.from_bytes(hashlib.sha256(seed).digest()[:4]) / 2**32
        return longest_s * (0.5 + 0.5 * share)
