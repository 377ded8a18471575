"""Whatever becomes of the index, the log answers as it does without one.

Random logs, several handles on one index in LMDB files, and an index that is replaced by an
older or newer copy of itself, by another store's, by garbage, cut off, or deleted, at any
moment.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from weightstore.format.records import VersionRecord
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.log import Log
from weightstore.history.log_index import LogIndex
from weightstore.history.tags import list_tags, put_tag
from weightstore.history.versions import find_step, list_versions, record_of_version
from weightstore.ids import RunId, Slot, StoreId, TagName
from weightstore.settings import MIB, Limits
from weightstore.storage.lmdb_index import LmdbIndexFile
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore, ToyTrainer

LIMITS = Limits(
    index_miss_count=1, index_extension_count=5, cached_record_count=3, tail_step_count=2
)
RUNS = ("grpo", "base")
HANDLE_COUNT = 3
KEPT_COPY_COUNT = 6


class IndexMachine(RuleBasedStateMachine):
    """One store that grows, handles with an index, and what happens to its files."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="weightstore-index-"))
        self.copies: list[Path] = []
        self.handles: list[Log | None] = [None] * HANDLE_COUNT
        self.indexes: list[LogIndex] = []
        self.blobs = MemoryBlobStore()
        self.step = 0

    @property
    def place(self) -> Path:
        return self.folder / "index"

    @property
    def data(self) -> Path:
        return self.place / "data.mdb"

    @initialize()
    def begin(self) -> None:
        self.store_id = ToyStore(self.blobs).create()
        other = MemoryBlobStore()
        other_id = ToyStore(other, "other").create()
        _grow(ToyStore(other, "of another store"), 8)
        self._read_all(self._handle(other, other_id))
        self._keep_copy()
        self._close()
        shutil.rmtree(self.place)

    def teardown(self) -> None:
        self._close()
        shutil.rmtree(self.folder)

    @rule(run=st.sampled_from(RUNS), count=st.integers(1, 6), seed=st.integers(0, 2**32))
    def put_versions_and_tags(self, run: str, count: int, seed: int) -> None:
        trainer = ToyStore(self.blobs, seed).trainer(run, take_over=True)
        for _ in range(count):
            self.step += 1
            trainer.put(self.step, b"%d" % self.step)
            if self.step % 3 == 0:
                writer = trainer.writer
                put_tag(writer, TagName(f"t{self.step % 2}"), self.step, owner="")

    @rule(number=st.integers(0, HANDLE_COUNT - 1), how=st.sampled_from(["list", "find", "step"]))
    def read(self, number: int, how: str) -> None:
        log = self._opened(number)
        plain = Log(self.blobs, Limits())
        prefix = log.tail()
        assert prefix == plain.follow(EMPTY_PREFIX)
        if how == "list":
            assert list(list_versions(log, prefix)) == list(list_versions(plain, prefix))
            assert list_tags(log, prefix) == list_tags(plain, prefix)
        elif how == "find":
            newest = prefix.now.newest
            for version in range(1, newest.version + 1 if newest else 1):
                found = record_of_version(log, prefix, version)
                assert found == record_of_version(plain, prefix, version)
        else:
            for step in range(0, self.step + 1, 3):
                for run in RUNS:
                    found_step = find_step(log, prefix, RunId(run), step)
                    assert found_step == find_step(plain, prefix, RunId(run), step)

    @rule(number=st.integers(0, HANDLE_COUNT - 1))
    def open_anew(self, number: int) -> None:
        self.handles[number] = None

    @rule()
    def close_all(self) -> None:
        self._close()

    @precondition(lambda self: self.data.exists() and len(self.copies) < KEPT_COPY_COUNT)
    @rule()
    def keep_a_copy(self) -> None:
        self._keep_copy()

    @rule(which=st.integers(0, KEPT_COPY_COUNT - 1), in_place=st.booleans())
    def put_a_copy_back(self, which: int, *, in_place: bool) -> None:
        """An older or newer state, or another store's; as a restore does it, and as `cp` does."""
        copy = self.copies[which % len(self.copies)]
        if in_place and self.place.exists():
            for file in copy.iterdir():
                (self.place / file.name).write_bytes(file.read_bytes())
        else:
            shutil.rmtree(self.place, ignore_errors=True)
            shutil.copytree(copy, self.place)

    @precondition(lambda self: self.data.exists())
    @rule(share=st.floats(0, 1))
    def cut_off(self, share: float) -> None:
        os.truncate(self.data, int(self.data.stat().st_size * share))

    @precondition(lambda self: self.data.exists())
    @rule(share=st.floats(0, 1), garbage=st.binary(min_size=1, max_size=5000))
    def write_garbage(self, share: float, garbage: bytes) -> None:
        with self.data.open("r+b") as file:
            file.seek(int(self.data.stat().st_size * share))
            file.write(garbage)

    @rule(name=st.sampled_from(["data.mdb", "lock.mdb", "guard", ""]))
    def delete(self, name: str) -> None:
        if not name:
            shutil.rmtree(self.place, ignore_errors=True)
        elif self.place.exists():
            (self.place / name).unlink(missing_ok=True)

    @invariant()
    def the_newest_version_is_found(self) -> None:
        log = self.handles[0]
        if log is not None:
            prefix = log.tail()
            newest = prefix.now.newest
            if newest is not None:
                made = log.stored_at(newest.slot).record
                assert isinstance(made, VersionRecord)
                assert made.step == self.step

    def _opened(self, number: int) -> Log:
        log = self.handles[number]
        if log is None:
            log = self.handles[number] = self._handle(self.blobs, self.store_id)
        return log

    def _handle(self, blobs: MemoryBlobStore, store_id: StoreId) -> Log:
        index = LogIndex(
            lambda: LmdbIndexFile(self.place, size_bytes_max=64 * MIB), store_id, LIMITS
        )
        self.indexes.append(index)
        return Log(blobs, LIMITS, index)

    def _keep_copy(self) -> None:
        copy = self.folder / f"copy{len(self.copies)}"
        shutil.copytree(self.place, copy)
        self.copies.append(copy)

    def _close(self) -> None:
        for index in self.indexes:
            index.close()
        self.indexes.clear()
        self.handles = [None] * HANDLE_COUNT

    @staticmethod
    def _read_all(log: Log) -> None:
        prefix = log.tail()
        for slot in range(prefix.next_slot):
            log.stored_at(Slot(slot))
        assert log.indexed_slot_of(1) is not None


def _grow(store: ToyStore, count: int) -> None:
    trainer: ToyTrainer = store.trainer()
    for step in range(count):
        trainer.put(step)


def test_the_log_answers_as_without_an_index() -> None:
    run_state_machine_as_test(
        IndexMachine, settings=settings(max_examples=60, stateful_step_count=30)
    )
