"""An index of the log answers what the log says, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import pytest

from weightstore.errors import (
    CorruptObjectError,
    LimitError,
    StorageFailedError,
    StorageFullError,
    WeightStoreError,
)
from weightstore.format.canonical import encode_json
from weightstore.format.keys import log_key
from weightstore.format.records import VersionRecord
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.log import Log
from weightstore.history.log_index import Addition, LogIndex
from weightstore.history.versions import find_version, list_versions
from weightstore.ids import Sha256, Slot
from weightstore.settings import Limits
from weightstore.storage.index_file import Expected
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.memory_index import MemoryIndexFile
from weightstore.testing.index_lab import LIMITS, STORE_ID, VERSION_COUNT, filled_index, index_in
from weightstore.testing.toy_store import write_versions

STATE = b"state"


class CountingBlobs(MemoryBlobStore):
    """Says how often each record was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_keys: list[str] = []

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self.read_keys.append(key)
        return super().get(key, max_size_bytes=max_size_bytes)


class FailingFile(MemoryIndexFile):
    """An index that fails from some call on."""

    def __init__(self, error: WeightStoreError, *, from_call: int, on_put: bool = False) -> None:
        super().__init__()
        self._error = error
        self._left_count = from_call
        self._on_put = on_put
        self.cleared_count = 0

    def get_many(self, keys: Sequence[bytes], /) -> tuple[bytes | None, ...]:
        if not self._on_put:
            self._fail()
        return super().get_many(keys)

    def put_many(self, entries: Mapping[bytes, bytes], /, *, expected: Expected) -> bool:
        if self._on_put:
            self._fail()
        return super().put_many(entries, expected=expected)

    def clear(self) -> None:
        self.cleared_count += 1
        super().clear()

    def _fail(self) -> None:
        self._left_count -= 1
        if self._left_count < 0:
            raise self._error


@pytest.fixture
def blobs() -> CountingBlobs:
    blobs = CountingBlobs()
    write_versions(blobs, VERSION_COUNT)
    return blobs


@pytest.fixture
def file(blobs: CountingBlobs) -> MemoryIndexFile:
    file = filled_index(blobs)
    assert top_of(file) == Log(blobs, LIMITS).tail().next_slot - 1
    return file


def indexed(blobs: MemoryBlobStore, file: MemoryIndexFile, limits: Limits = LIMITS) -> Log:
    return Log(blobs, limits, index_in(file, limits))


def top_of(file: MemoryIndexFile) -> int | None:
    state = file._entries.get(STATE)
    return None if state is None else int(state.split(b'"slot":')[1].split(b",")[0])


def everything(log: Log) -> list[VersionRecord]:
    prefix = log.tail()
    listed = [one.record for one in list_versions(log, prefix)]
    found = [find_version(log, prefix, number) for number in range(VERSION_COUNT, 0, -1)]
    assert listed == found
    return found


def hash_of(blobs: MemoryBlobStore) -> Callable[[Slot], Sha256 | None]:
    log = Log(blobs, Limits())

    def sha256_in_store(slot: Slot) -> Sha256 | None:
        stored = log.read(slot)
        return stored.sha256 if stored else None

    return sha256_in_store


def test_without_an_index_nothing_is_different(blobs: CountingBlobs) -> None:
    assert everything(Log(blobs, LIMITS)) == everything(indexed(blobs, MemoryIndexFile()))
    assert everything(Log(blobs, LIMITS, LogIndex(lambda: None, STORE_ID, LIMITS)))


def test_an_index_that_is_current_answers_for_the_log(
    blobs: CountingBlobs, file: MemoryIndexFile
) -> None:
    expected = everything(Log(blobs, LIMITS))
    blobs.read_keys.clear()
    log = indexed(blobs, file)
    assert everything(log) == expected
    newest = [log_key(Slot(VERSION_COUNT + number)) for number in (0, 1)]
    # Also the newest records, however often they leave the memory of the handle.
    assert blobs.read_keys[:3] == ["head", *newest]
    assert set(blobs.read_keys[3:]) <= {newest[1]}


def test_it_is_extended_by_reads_and_only_after_some(blobs: CountingBlobs) -> None:
    file = MemoryIndexFile()
    log = indexed(blobs, file)
    prefix = log.tail()
    assert top_of(file) is None
    list(islice(list_versions(log, prefix), 4))
    assert top_of(file) == LIMITS.index_extension_count - 1
    for _ in range(10):
        list(list_versions(log, prefix))
    assert top_of(file) == prefix.next_slot - 1
    entries = dict(file._entries)
    list(list_versions(log, prefix))
    assert file._entries == entries


def test_appending_to_the_log_reads_and_writes_no_index(blobs: CountingBlobs) -> None:
    """A tail that moves is followed record by record, beside the index."""
    file = FailingFile(StorageFailedError("asked"), from_call=0)
    log = indexed(blobs, file)
    prefix = log.tail()
    assert log.tail() == prefix
    assert log.follow(prefix) == prefix
    assert not file._entries


def test_only_the_store_tells_where_the_log_ends(
    blobs: CountingBlobs, file: MemoryIndexFile
) -> None:
    blobs.delete(log_key(Slot(VERSION_COUNT + 1)))
    log = indexed(blobs, file)
    prefix = log.tail()
    assert prefix.next_slot == VERSION_COUNT + 1
    assert find_version(log, prefix, "latest").version == VERSION_COUNT - 1
    assert len(list(list_versions(log, prefix))) == VERSION_COUNT - 1
    assert (top_of(file) or 0) <= VERSION_COUNT, "ahead of the log: deleted and begun again"


def test_an_index_of_another_history_is_deleted(file: MemoryIndexFile) -> None:
    other = MemoryBlobStore()
    write_versions(other, VERSION_COUNT, run="other")
    log = indexed(other, file)
    assert {record.run for record in everything(log)} == {"other"}
    assert everything(log) == everything(Log(other, LIMITS))


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        encode_json({"format": 1, "sha256": "0" * 64, "slot": 3, "store_id": STORE_ID}),
        encode_json({"format": 1, "sha256": "0" * 64, "slot": -1, "store_id": STORE_ID}),
        encode_json({"format": 1, "sha256": "0" * 64, "slot": 2**60, "store_id": STORE_ID}),
        encode_json({"format": 1, "sha256": "0" * 64, "slot": True, "store_id": STORE_ID}),
        encode_json({"format": 1, "sha256": 5, "slot": 3, "store_id": STORE_ID}),
        b" " + encode_json({"format": 1, "sha256": "0" * 64, "slot": 3, "store_id": STORE_ID}),
    ],
)
def test_a_state_that_is_not_the_logs_deletes_the_index(
    blobs: CountingBlobs, file: MemoryIndexFile, state: bytes
) -> None:
    file._entries[STATE] = state
    expected = everything(Log(blobs, LIMITS))
    index = index_in(file)
    assert index.top(hash_of(blobs)) is None
    assert not file._entries
    assert everything(Log(blobs, LIMITS, index)) == expected


@pytest.mark.parametrize(("old", "new"), [(b'"format":1', b'"format":2'), (b"aaaa", b"aaab")])
def test_another_format_or_store_deletes_the_index(
    blobs: CountingBlobs, file: MemoryIndexFile, old: bytes, new: bytes
) -> None:
    state = file._entries[STATE]
    assert old in state
    file._entries[STATE] = state.replace(old, new)
    assert index_in(file).top(hash_of(blobs)) is None
    assert not file._entries


@pytest.mark.parametrize("part", ["hash", "body", "cut", "gone", "foreign"])
@pytest.mark.parametrize("slot", [0, 20, VERSION_COUNT + 1])
def test_a_damaged_record_deletes_the_index(
    blobs: CountingBlobs, file: MemoryIndexFile, part: str, slot: int
) -> None:
    key = b"r" + slot.to_bytes(8)
    value = file._entries[key]
    damaged = {
        "hash": bytes([value[0] ^ 1]) + value[1:],
        "body": value[:-1] + b" ",
        "cut": value[:10],
        "foreign": file._entries[b"r" + (7).to_bytes(8)],
    }
    if part == "gone":
        del file._entries[key]
    else:
        file._entries[key] = damaged[part]
    before = dict(file._entries)
    expected = everything(Log(blobs, LIMITS))
    log = indexed(blobs, file)
    assert everything(log) == expected
    assert log.stored_at(Slot(slot)) == Log(blobs, LIMITS).stored_at(Slot(slot))
    if slot:  # nobody needs the first record
        assert file._entries != before


def test_a_version_table_that_lies_decides_nothing(
    blobs: CountingBlobs, file: MemoryIndexFile
) -> None:
    expected = everything(Log(blobs, LIMITS))
    versions = [key for key in file._entries if key.startswith(b"v")]
    for key, other in zip(versions, versions[1:] + versions[:1], strict=True):
        file._entries[key] = file._entries[other]
    file._entries[versions[0]] = (2**40).to_bytes(8)
    assert everything(indexed(blobs, file)) == expected


@pytest.mark.parametrize("error", [CorruptObjectError, StorageFailedError])
@pytest.mark.parametrize("from_call", range(12))
def test_no_failure_of_the_index_reaches_the_reader(
    blobs: CountingBlobs, error: type[WeightStoreError], from_call: int
) -> None:
    expected = everything(Log(blobs, LIMITS))
    file = FailingFile(error("failed"), from_call=from_call)
    assert everything(indexed(blobs, file)) == expected
    assert file.cleared_count <= LIMITS.index_clear_count


@pytest.mark.parametrize("error", [CorruptObjectError, StorageFullError, LimitError])
@pytest.mark.parametrize("from_call", range(4))
def test_a_put_into_the_index_that_fails_is_nobodys_failure(
    blobs: CountingBlobs, error: type[WeightStoreError], from_call: int
) -> None:
    expected = everything(Log(blobs, LIMITS))
    file = FailingFile(error("full"), from_call=from_call, on_put=True)
    assert everything(indexed(blobs, file)) == expected


def test_at_its_bound_an_index_goes_on_answering(blobs: CountingBlobs) -> None:
    file = FailingFile(LimitError("full"), from_call=1, on_put=True)
    log = indexed(blobs, file)
    everything(log)
    assert top_of(file) == LIMITS.index_extension_count - 1
    blobs.read_keys.clear()
    fresh = indexed(blobs, file)
    assert fresh.stored_at(Slot(3)).record.slot == 3
    assert log_key(Slot(3)) not in blobs.read_keys


def test_a_file_that_cannot_be_opened_is_no_index(blobs: CountingBlobs) -> None:
    def fail() -> MemoryIndexFile:
        raise StorageFailedError("no place")

    log = Log(blobs, LIMITS, LogIndex(fail, STORE_ID, LIMITS))
    assert everything(log) == everything(Log(blobs, LIMITS))


def test_a_closed_index_leaves_the_log_to_the_store(
    blobs: CountingBlobs, file: MemoryIndexFile
) -> None:
    index = index_in(file)
    log = Log(blobs, LIMITS, index)
    prefix = log.tail()
    walk = list_versions(log, prefix)
    next(walk)
    index.close()
    index.close()
    assert len(list(walk)) == VERSION_COUNT - 1


def test_an_unopened_index_can_be_closed() -> None:
    def fail() -> MemoryIndexFile:
        raise AssertionError("nobody asked")

    LogIndex(fail, STORE_ID, LIMITS).close()


def test_two_handles_extend_one_index_once(blobs: CountingBlobs) -> None:
    file = MemoryIndexFile()
    one, two = index_in(file), index_in(file)
    store = hash_of(blobs)

    def additions(slot: Slot) -> Iterator[Addition]:
        return Log(blobs, LIMITS)._additions_from(slot)

    assert one.top(store) is two.top(store) is None
    one.extend(additions)
    two.extend(additions)  # began from what is no more
    assert top_of(file) == 15
    assert one.top(store) == two.top(store) == 15
    one.extend(additions)
    assert two.top(store) == 31
    assert two.body(Slot(31), store) is not None


def test_an_index_that_is_exchanged_under_its_user_is_looked_at_anew(
    blobs: CountingBlobs, file: MemoryIndexFile
) -> None:
    other_blobs, other = MemoryBlobStore(), MemoryIndexFile()
    write_versions(other_blobs, VERSION_COUNT, run="other")
    for _ in range(6):
        everything(indexed(other_blobs, other))
    assert top_of(other) == top_of(file)
    index, store = index_in(file), hash_of(blobs)
    assert index.body(Slot(7), store) is not None
    file._entries = other._entries
    assert index.body(Slot(7), store) is None
    assert index.slot_of_version(6, store) is None


def test_only_valid_records_end_the_index(blobs: CountingBlobs) -> None:
    """An invalid record need not hold its parent's hash, so nothing may rest on it."""
    file = MemoryIndexFile()
    index = index_in(file)
    steps = list(islice(Log(blobs, LIMITS).steps(EMPTY_PREFIX), 6))

    def additions(slot: Slot) -> Iterator[Addition]:
        return (
            Addition(step.stored.record, step.stored.sha256, step.stored.record.slot < 4)
            for step in steps[slot:]
        )

    index.extend(additions)
    assert top_of(file) == 3
    assert index.top(hash_of(blobs)) == 3
    index.extend(additions)
    assert top_of(file) == 3


def test_what_cannot_be_read_from_the_log_stops_the_extension_alone(
    blobs: CountingBlobs,
) -> None:
    key = log_key(Slot(5))
    blobs.delete(key)
    blobs.put_if_absent(key, b"damaged")
    file = MemoryIndexFile()
    log = indexed(blobs, file)
    prefix = log.tail()
    assert len(list(islice(list_versions(log, prefix), 30))) == 30
    assert top_of(file) is None
