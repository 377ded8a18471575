"""What a log makes of each state that a loss of power may leave of its index.

A state is written into the file in place, since the seal follows from its inode. Reading a
file that LMDB trusts and that is wrong may end the process: run this as a program, with the
number of a commit, an order and how many torn states to draw.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import assert_never
from unittest import mock

from weightstore.errors import CorruptObjectError
from weightstore.format.keys import LOG_PREFIX
from weightstore.history.log import Log, StoredRecord
from weightstore.history.log_index import LogIndex
from weightstore.history.tags import list_tags, put_tag
from weightstore.history.versions import find_step, list_versions, record_of_version
from weightstore.ids import RunId, Slot, StoreId, TagName
from weightstore.settings import KIB, MIB, Limits
from weightstore.storage import lmdb_environment, lmdb_index
from weightstore.storage.index_file import Expected, IndexFile
from weightstore.storage.lmdb_index import LmdbIndexFile
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.index_crash_states import (
    Beside,
    IndexCommit,
    IndexState,
    states,
    unsynced_states,
)
from weightstore.testing.toy_store import ToyStore

FIRST_MAP_SIZE_BYTES = 32 * KIB
"""So small that some commits double the map."""
LIMITS = Limits(index_miss_count=1, index_extension_count=1000)
FORGETFUL_LIMITS = replace(LIMITS, cached_record_count=1)
"""Of logs that ask the index for nearly every record."""
RUN = RunId("grpo")
_known: dict[frozenset[tuple[str, bytes]], tuple[tuple[object, ...], list[StoredRecord]]] = {}


class Order(StrEnum):
    """In which order the pages of a commit reach the disk."""

    SYNCED = "synced"
    """Data before meta, as LMDB sees to it."""
    UNSYNCED = "unsynced"
    """Meta before data, as it would be without LMDB's sync between them."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A commit of the index that is to be recorded.

    Attributes:
        name: What is special about it.
        put_count: Versions that are put into the store before it.
        is_replaced: All entries are put again, instead of new ones.
        is_cleared: The index is deleted before.
    """

    name: str
    put_count: int = 0
    is_replaced: bool = False
    is_cleared: bool = False


PHASES = (
    Phase("made", 3),
    Phase("one record", 1),
    Phase("grown", 14),
    Phase("replaced", is_replaced=True),
    Phase("one more", 1),
    Phase("replaced into free pages", is_replaced=True),
    Phase("into free pages", 1),
    Phase("few into free pages", 3),
    Phase("cleared and made", 1, is_cleared=True),
)


class CopiedBlobs(MemoryBlobStore):
    """A store in memory that begins with the blobs of another."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        super().__init__()
        self._blobs = dict(blobs)

    def copied(self) -> dict[str, bytes]:
        """All blobs."""
        return dict(self._blobs)


class WatchedIndex:
    """An index file that notes what is done to it.

    Attributes:
        clear_count: How often it was found to be damaged, or without its seal.
        entries: All that were put since it was cleared.
    """

    def __init__(self, inner: IndexFile) -> None:
        self.inner = inner
        self.clear_count = 0
        self.entries: dict[bytes, bytes] = {}

    @property
    def location(self) -> str:
        """Of the file."""
        return self.inner.location

    def get_many(self, keys: Sequence[bytes], /) -> tuple[bytes | None, ...]:
        """Of the file."""
        return self.inner.get_many(keys)

    def put_many(self, entries: Mapping[bytes, bytes], /, *, expected: Expected) -> bool:
        """Of the file.

        After a crash: as `IndexFile.put_many`.
        """
        is_done = self.inner.put_many(entries, expected=expected)
        if is_done:
            self.entries.update(entries)
        return is_done

    def clear(self) -> None:
        """Of the file.

        After a crash: as `IndexFile.clear`.
        """
        self.clear_count += 1
        self.entries.clear()
        self.inner.clear()

    def close(self) -> None:
        """Of the file."""
        self.inner.close()


def record(folder: Path) -> list[IndexCommit]:
    """Run a log with an index through all phases, one commit each.

    After a crash: a folder to be thrown away.
    """
    place = folder / "index"
    blobs = CopiedBlobs({})
    store_id = ToyStore(blobs).create()
    trainer = ToyStore(blobs).trainer(RUN)
    commits = []
    step = 0
    small = partial(lmdb_environment.Environment, first_map_size_bytes=FIRST_MAP_SIZE_BYTES)
    with mock.patch.object(lmdb_environment, "Environment", small):
        file = WatchedIndex(LmdbIndexFile(place, size_bytes_max=MIB))
        for phase in PHASES:
            for _ in range(phase.put_count):
                step += 1
                trainer.put(step, b"%d" % step)
            if phase.put_count > 1:
                put_tag(trainer.writer, TagName("t"), step, owner="")
            if phase.is_cleared:
                file.clear()
            before = _bytes_of(place)
            if phase.is_replaced:
                file.put_many(
                    dict(file.entries), expected=Expected(b"state", file.entries[b"state"])
                )
            else:
                answers(_log(blobs, file, store_id, FORGETFUL_LIMITS))
            lock = (place / lmdb_index.LOCK_NAME).read_bytes()
            after = _bytes_of(place)
            commits.append(IndexCommit(phase.name, before, after, lock, blobs.copied(), store_id))
        file.close()
    return commits


def answers(log: Log) -> tuple[object, ...]:
    """What a log says of everything in it."""
    prefix = log.tail()
    listed = list(list_versions(log, prefix))
    newest = prefix.now.newest
    last = newest.version if newest else 0
    numbers = sorted({1, last // 2 or 1, last}) if last else []
    return (
        prefix,
        listed,
        list_tags(log, prefix),
        [record_of_version(log, prefix, number) for number in numbers],
        [find_step(log, prefix, RUN, step) for step in (0, 1, last // 2, last)],
    )


def put_state(place: Path, commit: IndexCommit, state: IndexState) -> bool:
    """Write a state into the files of an index that nobody has open.

    After a crash: a folder to be thrown away.

    Returns:
        Whether the index may be used at once: all files are there, the data file has its
        seal and is as long as its pages.
    """
    place.mkdir(exist_ok=True)
    lock, data = place / lmdb_index.LOCK_NAME, place / lmdb_index.DATA_NAME
    _put_file(lock, _lock_left(commit.lock, state.beside))
    _put_file(place / lmdb_index.GUARD_NAME, None if state.beside is Beside.GUARD_GONE else b"")
    seal_ns = None
    with data.open("wb") as file:
        if state.sealed_size_bytes is not None:
            file.truncate(state.sealed_size_bytes)
            seal_ns = lmdb_index._seal_ns(os.fstat(file.fileno()))  # noqa: SLF001 -- as the product
            file.truncate(0)
        file.write(state.data)
    if seal_ns is not None:
        os.utime(data, ns=(seal_ns, seal_ns))
    if state.beside in {Beside.LOCK_GONE, Beside.GUARD_GONE}:
        return False
    if not lmdb_index._is_sealed(data.stat()):  # noqa: SLF001 -- as the product
        return False
    try:
        lmdb_environment._check_length(data)  # noqa: SLF001 -- ditto
    except CorruptObjectError:
        return False
    return True


def check_state(place: Path, commit: IndexCommit, state: IndexState) -> tuple[bool, list[str]]:
    """Open a log with what is left, read all, put a version, and read all again.

    After a crash: a folder to be thrown away.

    Returns:
        Whether the index was used as it was, and everything that is wrong.
    """
    wrong = []
    is_usable = put_state(place, commit, state)
    blobs = CopiedBlobs(commit.blobs)
    file = _opened(place)
    log = _log(blobs, file, commit.store_id, LIMITS)
    log.tail()
    is_used = log.indexed_slot_of(1) is not None
    if answers(log) != _plain(blobs)[0]:
        wrong.append("wrong answers")
    if is_used != is_usable:
        wrong.append(f"used: {is_used}, usable: {is_usable}")
    if is_usable and file.clear_count:
        wrong.append("damage below a seal")
    store = ToyStore(blobs, "after the loss of power")
    store.log = log
    made = store.trainer(RUN, take_over=True).put(10_000, b"after")
    if store.read(made) != b"after":
        wrong.append("a new version reads as another")
    if answers(log) != _plain(blobs)[0]:
        wrong.append("wrong answers after a new version")
    file.close()
    wrong += _not_healed(place, blobs, commit.store_id, made.version)
    return is_used, wrong


def _not_healed(place: Path, blobs: CopiedBlobs, store_id: StoreId, version: int) -> list[str]:
    """What is wrong with the index after every record was read once more."""
    wrong = []
    file = _opened(place)
    log = _log(blobs, file, store_id, FORGETFUL_LIMITS)
    last = Slot(log.tail().next_slot - 1)
    if list(log.iterate(Slot(0), last)) != _plain(blobs)[1]:
        wrong.append("wrong records after a new version")
    log = _log(blobs, file, store_id, LIMITS)
    log.tail()
    if log.indexed_slot_of(version) is None:
        wrong.append("the index is not healed")
    if file.clear_count:
        wrong.append("the index was damaged after it was used")
    file.close()
    return wrong


def _plain(blobs: CopiedBlobs) -> tuple[tuple[object, ...], list[StoredRecord]]:
    """Answers and records without an index; kept: all states of a commit have the same logs."""
    mark = frozenset(pair for pair in blobs.copied().items() if pair[0].startswith(LOG_PREFIX))
    if mark not in _known:
        log = Log(blobs, Limits())
        last = Slot(log.tail().next_slot - 1)
        _known[mark] = (answers(log), list(log.iterate(Slot(0), last)))
    return _known[mark]


def _log(blobs: MemoryBlobStore, file: IndexFile, store_id: StoreId, limits: Limits) -> Log:
    return Log(blobs, limits, LogIndex(lambda: file, store_id, limits))


def _opened(place: Path) -> WatchedIndex:
    return WatchedIndex(LmdbIndexFile(place, size_bytes_max=64 * MIB))


def _lock_left(lock: bytes, beside: Beside) -> bytes | None:
    """What is left of the lock file; None: nothing."""
    match beside:
        case Beside.KEPT | Beside.GUARD_GONE:
            return lock
        case Beside.LOCK_OF_ZEROS:
            return bytes(len(lock))
        case Beside.LOCK_EMPTY:
            return b""
        case Beside.LOCK_GONE:
            return None
        case _:
            assert_never(beside)


def _put_file(path: Path, data: bytes | None) -> None:
    """A file as it is to be; None: not there."""
    if data is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(data)


def _bytes_of(place: Path) -> bytes:
    path = place / lmdb_index.DATA_NAME
    return path.read_bytes() if path.exists() else b""


def main(number: int, order: Order, torn_count: int) -> None:
    """Check the states of one commit; say each before it is tried, and what is wrong with it."""
    memory = Path("/dev/shm")  # noqa: S108 -- a folder of its own in it
    is_there = os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if is_there else None) as made:
        commit = record(Path(made) / "recorded")[number]
        found = states(commit, torn_count) if order is Order.SYNCED else unsynced_states(commit)
        for state in found:
            _say(f"state {state.number} {state.name}")
            is_used, wrong = check_state(Path(made) / "index", commit, state)
            if is_used:
                _say("used")
            for what in wrong:
                _say(f"wrong {state.name}: {what}")
        _say("end")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), Order(sys.argv[2]), int(sys.argv[3]))
