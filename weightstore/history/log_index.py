"""The index of a log: what its records said, kept where they are found without the store.

It holds the stored bytes of the records of slots 0 to `applied`, without gaps, the slot of
each version, and whose they are. Everything in it can be rebuilt from the log, and it
decides nothing. The newest record of each kind needs no table of its own: each record's
`now` says it.

**Why its records may be used.** Each record holds the hash of the one before, and entries are
added only in the order of the log, each tied to the one before by that hash. So when the
store's record at `applied` has the hash that the index has there, all records below are the
store's too. This is asked of the store before the first use, and again whenever `applied` has
moved; each record's own hash is computed at each use. An index that fails a check is deleted.

Records are added by readers only, after so many reads that it could not answer: a put pays
nothing for it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weightstore.errors import CorruptObjectError, LimitError, WeightStoreError
from weightstore.format.canonical import MAX_INTEGER, decode_json, encode_json
from weightstore.format.records import Record, VersionRecord, encode_record
from weightstore.ids import Sha256, Slot, StoreId
from weightstore.settings import Limits
from weightstore.storage.index_file import Expected, IndexFile

INDEX_FORMAT_NUMBER = 1
_STATE = b"state"
_HASH_SIZE_BYTES = 32

StoreHash = Callable[[Slot], Sha256 | None]
"""Hash of the store's own record at a slot; None past the end of the log."""


@dataclass(frozen=True, slots=True)
class Addition:
    """A record as it stands in the log, and whether it counts."""

    record: Record
    sha256: Sha256
    is_valid: bool


@dataclass(frozen=True, slots=True)
class _Applied:
    """The newest record in the index."""

    slot: Slot
    sha256: Sha256


class LogIndex:
    """The index of one log. Safe to use from several threads.

    No method raises for what happens to the index: it answers None, and the log goes on
    with the store alone.

    Args:
        open_file: Gives the file that holds it, at the first use; None if there is no place
            for one.
        store_id: Of the store; an index of another one is deleted.
        limits: Hard bounds.
    """

    def __init__(
        self, open_file: Callable[[], IndexFile | None], store_id: StoreId, limits: Limits
    ) -> None:
        self._open_file = open_file
        self._store_id = store_id
        self._limits = limits
        self._file: IndexFile | None = None
        self._is_opened = False
        self._is_given_up = False
        self._is_full = False
        self._cleared_count = 0
        self._missed_count = 0
        self._tied: _Applied | None = None
        self._opening = threading.Lock()
        self._extending = threading.Lock()

    def top(self, sha256_in_store: StoreHash) -> Slot | None:
        """The newest slot that the index answers for, after a look at the store's record there."""
        values = self._read([_STATE])
        state = values[0] if values else None
        if state is None:
            self._tied = None
            return None
        applied = self._parsed(state)
        if applied is None:
            self._clear()
            return None
        # Answered from what is known here: another thread may untie at any moment.
        is_tied = applied == self._tied or self._tie(applied, state, sha256_in_store)
        return applied.slot if is_tied else None

    def body(self, slot: Slot, sha256_in_store: StoreHash) -> bytes | None:
        """The stored bytes of the record at a slot; None if the store has to be asked."""
        value = self._tied_value(_record_key(slot), slot, sha256_in_store)
        if value is None:
            return None
        body = value[_HASH_SIZE_BYTES:]
        if hashlib.sha256(body).digest() != value[:_HASH_SIZE_BYTES]:
            self._clear()
            return None
        return body

    def slot_of_version(self, version: int, sha256_in_store: StoreHash) -> Slot | None:
        """Where the record of a version should be; to be checked by whoever asks."""
        value = self._tied_value(_version_key(version), None, sha256_in_store)
        return None if value is None else Slot(int.from_bytes(value))

    def clear(self) -> None:
        """Delete what is there: something in it was not what it should be."""
        self._clear()

    def note_miss(self) -> bool:
        """Count a read that the index could not answer; whether it is time to extend it."""
        self._missed_count += 1
        is_over = self._is_given_up or self._is_full
        if is_over or self._missed_count < self._limits.index_miss_count:
            return False
        self._missed_count = 0
        return True

    def extend(self, additions_from: Callable[[Slot], Iterable[Addition]]) -> None:
        """Add the records that follow, if nobody else is at it.

        Args:
            additions_from: The records from a slot on; no more than that many are taken as
                `limits.index_extension_count` says. A slot above 0 is above `top`.

        After a crash: the index as it was, extended, or empty.
        """
        if not self._extending.acquire(blocking=False):
            return
        try:
            self._extend(additions_from)
        except LimitError:
            self._is_full = True
        except WeightStoreError:
            # The log cannot be read here, or the disk is full; whoever needs what cannot be
            # read will be told. Reads go to the store from now on.
            self._give_up()
        finally:
            self._extending.release()

    def close(self) -> None:
        """Let go of the file; later questions go to the store."""
        self._give_up()

    def _extend(self, additions_from: Callable[[Slot], Iterable[Addition]]) -> None:
        tied, file = self._tied, self._opened()
        if file is None:
            return
        old = None if tied is None else self._encoded(tied)
        values = self._read([_STATE])
        if values is None or values[0] != old:
            # Extended by another process, or not looked at since it was busy: the put would be
            # refused, after so many records were read for nothing.
            return
        first = Slot(0) if tied is None else Slot(tied.slot + 1)
        additions = _upto_last_valid(additions_from(first))
        if not additions:
            return
        last = additions[-1]
        applied = _Applied(last.record.slot, last.sha256)
        entries = {_STATE: self._encoded(applied)}
        for addition in additions:
            entries.update(_entries(addition))
        try:
            file.put_many(entries, expected=Expected(_STATE, old))
        except CorruptObjectError:
            self._clear()
        # Not tied to what was just written: the next look at the state does that, and finds
        # out alike whether this process or another one has extended the index.

    def _tied_value(
        self, key: bytes, slot: Slot | None, sha256_in_store: StoreHash
    ) -> bytes | None:
        """The value of a key in a snapshot that is an extension of what is tied."""
        tied = self._tied
        if (tied is None or slot is None or slot > tied.slot) and self.top(sha256_in_store) is None:
            return None
        tied = self._tied
        if tied is None or (slot is not None and slot > tied.slot):
            return None
        values = self._read([_record_key(tied.slot), key])
        if values is None or not _has_hash(values[0], tied.sha256):
            # Another process has made it anew, or it is busy: ask the store this time.
            self._tied = None
            return None
        if values[1] is None and slot is not None:
            self._clear()
        return values[1]

    def _tie(self, applied: _Applied, state: bytes, sha256_in_store: StoreHash) -> bool:
        """Whether the store has the record that a state names; then the index may be used."""
        self._tied = None
        try:
            found = sha256_in_store(applied.slot)
        except WeightStoreError:
            return False
        # One snapshot: while another process changes the index it answers like an empty one,
        # and that a record is missing there says nothing about the state that was read before.
        values = self._read([_STATE, _record_key(applied.slot)])
        if values is None or values[0] != state:
            return False
        # Ahead of the log, of another history, or without what it says it has.
        if found != applied.sha256 or not _has_hash(values[1], applied.sha256):
            self._clear()
            return False
        self._tied = applied
        return True

    def _read(self, keys: Sequence[bytes]) -> tuple[bytes | None, ...] | None:
        file = self._opened()
        if file is None:
            return None
        try:
            return file.get_many(keys)
        except CorruptObjectError:
            self._clear()
        except WeightStoreError:
            self._give_up()
        return None

    def _opened(self) -> IndexFile | None:
        if self._is_given_up:
            return None
        if self._is_opened:
            return self._file
        # Nobody waits: in a forked child the thread that holds the lock may not exist.
        if not self._opening.acquire(blocking=False):
            return None
        try:
            if not self._is_opened:
                self._file = self._open_file()
                self._is_opened = True
        except WeightStoreError:
            self._is_given_up = True
        finally:
            self._opening.release()
        return self._file

    def _clear(self) -> None:
        """Delete the index; one that is damaged again and again is not used any more."""
        self._tied = None
        self._cleared_count += 1
        if self._file is None or self._is_given_up:
            return
        try:
            self._file.clear()
        except WeightStoreError:
            self._give_up()
        if self._cleared_count >= self._limits.index_clear_count:
            self._give_up()

    def _give_up(self) -> None:
        self._is_given_up = True
        self._tied = None
        if self._file is not None:
            self._file.close()

    def _encoded(self, applied: _Applied) -> bytes:
        return encode_json(
            {
                "format": INDEX_FORMAT_NUMBER,
                "sha256": applied.sha256,
                "slot": applied.slot,
                "store_id": self._store_id,
            }
        )

    def _parsed(self, state: bytes) -> _Applied | None:
        """What the state says, or None if it is damaged, of another format or store."""
        try:
            value = decode_json(state, what="state of the index")
        except CorruptObjectError:
            return None
        if not isinstance(value, dict):
            return None
        slot, sha256 = value.get("slot"), value.get("sha256")
        if type(slot) is not int or type(sha256) is not str or not 0 <= slot <= MAX_INTEGER:
            return None
        applied = _Applied(Slot(slot), Sha256(sha256))
        # Also says no to another format, another store and further fields.
        return applied if self._encoded(applied) == state else None


def _upto_last_valid(additions: Iterable[Addition]) -> Sequence[Addition]:
    """Additions up to the last valid one: an invalid one need not hold its parent's hash."""
    taken = list(additions)
    while taken and not taken[-1].is_valid:
        taken.pop()
    return taken


def _entries(addition: Addition) -> dict[bytes, bytes]:
    record = addition.record
    # Records are canonical: these are the bytes that were read.
    body = encode_record(record)
    digest = bytes.fromhex(addition.sha256)
    if hashlib.sha256(body).digest() != digest:
        raise CorruptObjectError(f"log record {record.slot} is not what its hash says")
    entries = {_record_key(record.slot): digest + body}
    if addition.is_valid and isinstance(record, VersionRecord):
        entries[_version_key(record.version)] = record.slot.to_bytes(8)
    return entries


def _record_key(slot: Slot) -> bytes:
    return b"r" + slot.to_bytes(8)


def _version_key(version: int) -> bytes:
    return b"v" + version.to_bytes(8)


def _has_hash(value: bytes | None, sha256: Sha256) -> bool:
    return value is not None and value[:_HASH_SIZE_BYTES].hex() == sha256
