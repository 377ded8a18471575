"""Making a store and recognising one.

A store begins in two steps: `FORMAT`, which says whose it will be, then the `init` record.
Whoever comes after a cut between the two finishes with the id that stands in `FORMAT`, so
two creators at once end with one store.
"""

from __future__ import annotations

from weightstore.clock import Clock, Entropy
from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    CorruptLogError,
    CorruptObjectError,
    InputRefusedError,
    NotAStoreError,
)
from weightstore.format.format_file import FormatFile, decode_format_file, encode_format_file
from weightstore.format.keys import FORMAT_KEY
from weightstore.format.records import FORMAT_NUMBER, InitRecord, Record
from weightstore.format.rules import Prefix
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log, StoredRecord
from weightstore.ids import Epoch, SessionId, Slot, StoreId
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.probe import PROBE_PREFIX


def create_store(
    blobs: BlobStore, log: Log, *, clock: Clock, entropy: Entropy, settings: Settings
) -> StoreId:
    """Make a store in an empty place, or finish one whose making was cut.

    After a crash: an empty place, a `FORMAT` alone, or the store; repeating ends in one
    store. A place that holds a store is left as it is.

    Raises:
        InputRefusedError: the place is not empty and no store; nothing was written.
        NotAStoreError: its `FORMAT` is of something else.
        UpgradeRequiredError: it holds a store of a newer format.
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    store_id = check_place(blobs, log) or _put_format(blobs, log, entropy)
    # Perhaps found, not written: it must survive power loss before a log rests on it. (P6)
    blobs.confirm_durable("")
    writer = LogWriter(
        blobs,
        log,
        clock=clock,
        entropy=entropy,
        settings=settings,
        session=SessionId(entropy.hex128()),
    )
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record | StoredRecord:
        if prefix.next_slot > 0:
            return log.stored_at(Slot(0))
        return InitRecord(
            **writer.header(prefix, commit_id),
            epoch=Epoch(0),
            run=None,
            store_id=store_id,
            format=FORMAT_NUMBER,
            features=(),
        )

    _check_init(blobs, writer.put(build), store_id)
    return store_id


def check_place(blobs: BlobStore, log: Log) -> StoreId | None:
    """The id of the store at a place, or None if one can be made there; writes nothing.

    What a cut probe of the storage left behind does not count.

    Raises:
        InputRefusedError: the place is not empty and no store.
        NotAStoreError: its `FORMAT` is of something else.
        UpgradeRequiredError: it holds a store of a newer format.
    """
    made = _read_store_id(blobs, log)
    if made is not None:
        return made
    foreign = (info.key for info in blobs.list("") if not info.key.startswith(PROBE_PREFIX))
    other = next(foreign, None)
    if other is None:
        return None
    # Somebody may have made a store here since FORMAT was looked for.
    made = _read_store_id(blobs, log)
    if made is None:
        raise InputRefusedError(
            f"{blobs.location} is no store and not empty: it holds {other}",
            do="Give a new or empty place for the store.",
            facts={"location": blobs.location, "found": other},
        )
    return made


def open_store(blobs: BlobStore, log: Log) -> StoreId:
    """Recognise a store; writes nothing.

    Raises:
        NotAStoreError: there is none here, or its making was cut.
        UpgradeRequiredError: it has a newer format.
        CorruptLogError: its log is of another store.
    """
    store_id = _read_store_id(blobs, log)
    if store_id is None:
        raise NotAStoreError(
            f"{blobs.location} is no weightstore: it has no {FORMAT_KEY}",
            do="Give the place of a store, or make one with `weightstore init`.",
            facts={"location": blobs.location},
        )
    first = log.read(Slot(0))
    if first is None:
        raise NotAStoreError(
            f"{blobs.location}: the making of this store was cut before its first record",
            do="Repeat `weightstore init`, which finishes it.",
            facts={"location": blobs.location},
        )
    _check_init(blobs, first, store_id)
    return store_id


def _put_format(blobs: BlobStore, log: Log, entropy: Entropy) -> StoreId:
    """Put `FORMAT` where nothing is; the id that stands there afterwards, ours or not."""
    body = encode_format_file(FormatFile(store_id=StoreId(entropy.hex128())))
    try_count = log.limits.put_try_count
    for count in range(1, try_count + 1):
        try:
            blobs.put_if_absent(FORMAT_KEY, body)
        except BlobExistsError:
            pass
        except BlobOutcomeUnknownError:
            if count == try_count:
                raise
        made = _read_store_id(blobs, log)
        if made is not None:
            return made
    raise AssertionError("the last try raises or finds a FORMAT")


def _read_store_id(blobs: BlobStore, log: Log) -> StoreId | None:
    try:
        data = blobs.get(FORMAT_KEY, max_size_bytes=log.limits.small_object_size_bytes)
    except BlobNotFoundError:
        return None
    except CorruptObjectError as error:
        raise NotAStoreError(
            f"{blobs.location} is no weightstore: {error.message}",
            do="Give the place of a store, or a new or empty one.",
            facts={"location": blobs.location},
        ) from error
    return decode_format_file(data, location=blobs.location).store_id


def _check_init(blobs: BlobStore, first: StoredRecord, store_id: StoreId) -> None:
    record = first.record
    if not isinstance(record, InitRecord) or record.store_id != store_id:
        raise CorruptLogError(
            f"{blobs.location}: the log does not begin with this store's init record",
            do="Restore FORMAT and log/ from one copy of the store.",
            facts={"location": blobs.location, "store_id": store_id},
        )
