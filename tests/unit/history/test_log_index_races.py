"""An index of the log that other processes and threads change between two looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from weightstore.history.log import Log
from weightstore.history.log_index import Addition, LogIndex, _Applied
from weightstore.ids import Sha256, Slot
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.memory_index import MemoryIndexFile
from weightstore.testing.index_lab import LIMITS, STORE_ID, VERSION_COUNT, filled_index, index_in
from weightstore.testing.toy_store import write_versions


@pytest.fixture
def blobs() -> MemoryBlobStore:
    blobs = MemoryBlobStore()
    write_versions(blobs, VERSION_COUNT)
    return blobs


@pytest.fixture
def file(blobs: MemoryBlobStore) -> MemoryIndexFile:
    return filled_index(blobs)


def hash_of(blobs: MemoryBlobStore) -> Callable[[Slot], Sha256 | None]:
    log = Log(blobs, Limits())

    def sha256_in_store(slot: Slot) -> Sha256 | None:
        stored = log.read(slot)
        return stored.sha256 if stored else None

    return sha256_in_store


class BusyFile(MemoryIndexFile):
    """An index that another process changes at some of the looks at it."""

    def __init__(self, entries: dict[bytes, bytes], busy_looks: set[int]) -> None:
        super().__init__()
        self._entries = entries
        self._busy_looks = busy_looks
        self.look_count = 0
        self.cleared_count = 0

    def get_many(self, keys: Sequence[bytes], /) -> tuple[bytes | None, ...]:
        self.look_count += 1
        if self.look_count - 1 in self._busy_looks:
            return (None,) * len(keys)
        return super().get_many(keys)

    def clear(self) -> None:
        self.cleared_count += 1
        super().clear()


@pytest.mark.parametrize("busy_look", range(4))
def test_an_index_that_is_changed_between_two_looks_is_not_damaged(
    blobs: MemoryBlobStore, file: MemoryIndexFile, busy_look: int
) -> None:
    store = hash_of(blobs)
    busy = BusyFile(dict(file._entries), {busy_look})
    for _ in range(2 * LIMITS.index_clear_count):
        busy.look_count = 0
        index = index_in(busy)
        index.body(Slot(7), store)
        index.body(Slot(8), store)
        assert index.body(Slot(7), store) is not None
    assert busy.cleared_count == 0


def test_a_handle_that_finds_its_index_busy_again_and_again_does_not_give_it_up(
    blobs: MemoryBlobStore, file: MemoryIndexFile
) -> None:
    store = hash_of(blobs)
    # Every second look, which is the one at the record, for the first so many questions.
    busy = BusyFile(dict(file._entries), set(range(1, 16, 2)))
    index = index_in(busy)
    for _ in range(8):
        assert index.top(store) is None
    assert index.top(store) == VERSION_COUNT + 1
    assert busy.cleared_count == 0


def test_a_state_that_changes_between_two_looks_is_looked_at_anew(
    blobs: MemoryBlobStore, file: MemoryIndexFile
) -> None:
    """Another process deletes the index and builds it as far as it can at once."""
    old = dict(file._entries)
    young = MemoryIndexFile()
    index_in(young).extend(lambda slot: Log(blobs, LIMITS)._additions_from(slot))
    shared = BusyFile(old, set())
    store = hash_of(blobs)

    def exchanged(slot: Slot) -> Sha256 | None:
        shared._entries = young._entries
        return store(slot)

    index = index_in(shared)
    assert index.top(exchanged) is None
    assert index.top(store) == LIMITS.index_extension_count - 1
    assert shared.cleared_count == 0


def test_a_record_that_is_gone_under_the_same_state_is_damage(
    blobs: MemoryBlobStore, file: MemoryIndexFile
) -> None:
    damaged = BusyFile(dict(file._entries), set())
    del damaged._entries[b"r" + (VERSION_COUNT + 1).to_bytes(8)]
    assert index_in(damaged).top(hash_of(blobs)) is None
    assert damaged.cleared_count == 1


def test_another_thread_may_untie_the_index_at_any_moment(
    blobs: MemoryBlobStore, file: MemoryIndexFile
) -> None:
    """At each read of the attribute that threads share, another one unties right after it."""

    class Untied(LogIndex):
        read_count = 0
        untie_after = -1

        @property
        def _tied(self) -> _Applied | None:
            value: _Applied | None = self.__dict__.get("tied")
            Untied.read_count += 1
            if Untied.read_count == Untied.untie_after:
                self.__dict__["tied"] = None
            return value

        @_tied.setter
        def _tied(self, value: _Applied | None) -> None:
            self.__dict__["tied"] = value

    store = hash_of(blobs)
    expected = index_in(file).body(Slot(7), store)
    for untie_after in range(1, 12):
        Untied.read_count, Untied.untie_after = 0, untie_after
        index = Untied(lambda: file, STORE_ID, LIMITS)
        for _ in range(3):
            assert index.top(store) in {None, VERSION_COUNT + 1}
            assert index.body(Slot(7), store) in {None, expected}
            assert index.slot_of_version(VERSION_COUNT + 1, store) is None


def test_nothing_is_read_from_the_log_for_an_extension_that_would_be_refused(
    blobs: MemoryBlobStore, file: MemoryIndexFile
) -> None:
    """A handle that found the index busy does not know how far it goes."""
    index = index_in(BusyFile(dict(file._entries), {0}))
    assert index.top(hash_of(blobs)) is None
    asked: list[Slot] = []

    def additions(slot: Slot) -> Iterator[Addition]:
        asked.append(slot)
        return Log(blobs, LIMITS)._additions_from(slot)

    index.extend(additions)
    assert asked == []
