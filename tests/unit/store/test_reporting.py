"""What the facade says about a store: versions, manifests, the log, what was verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.errors import CorruptLogError
from weightstore.format.keys import log_key
from weightstore.format.records import Record, VersionRecord, encode_record
from weightstore.history.log import Log
from weightstore.ids import Slot, Step
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore, reporting
from weightstore.testing.log_story import LogStory
from weightstore.testing.store_lab import LAB_SETTINGS, store_on

COUNT = 70_000


def put_three(store: WeightStore) -> None:
    """A full version, a delta of seven elements, and a full version with a delta."""
    weights: dict[str, NDArray[Any]] = {
        "a": np.zeros(COUNT, np.uint16),
        "b": np.zeros(3, np.float32),
    }
    store.put_step(0, weights)
    weights["a"][[0, 5, 66_000, 69_999]] = 1
    weights["b"][:] = 1
    store.put_step(1, weights)
    weights["a"][9] = 1
    store.put_step(2, weights, anchor=True)


def test_versions_are_listed_newest_first_with_what_their_records_say() -> None:
    with store_on(MemoryBlobStore()) as store:
        put_three(store)
        listed = list(store.versions())
        record = store._find(2)[1]
        assert isinstance(record, VersionRecord)
        assert [info.version for info in listed] == [3, 2, 1]
        assert [info.base for info in listed] == [2, 1, None]
        assert listed[1] == reporting.version_info(record, kept=True)
        assert listed[1].slot == record.slot
        assert listed == [store.version(version) for version in (3, 2, 1)]


def test_details_are_what_the_manifest_says() -> None:
    with store_on(MemoryBlobStore()) as store:
        put_three(store)
        first, second, third = (store.describe(version) for version in (1, 2, 3))
    assert (second.tensor_count, second.unit_count) == (2, COUNT + 3)
    assert second.full_size_bytes == 2 * COUNT + 12
    assert (second.changed_count, second.pack_count, second.has_full_form) == (7, 1, False)
    assert (second.chain_count, second.chain_size_bytes) == (1, second.delta_size_bytes)
    assert (first.base, first.changed_count, first.delta_size_bytes) == (None, None, None)
    assert (first.has_full_form, first.chain_count) == (True, 0)
    assert (third.changed_count, third.has_full_form, third.chain_count) == (1, True, 0)
    assert len({first.schema_id, second.schema_id, third.schema_id}) == 1


def test_a_verification_counts_each_object_once(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path, create=True, settings=LAB_SETTINGS) as store:
        put_three(store)
        full, delta = store.verify(1), store.verify(2, scan=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    first = [path for path in files if path.name.startswith("1-") or "-1-1" in path.parent.name]
    # One weights file, its block hashes, a manifest, a digest table, the schema.
    assert full.object_count == len(first) - len(
        [path for path in first if "receipts" in path.as_posix()]
    )
    assert full.object_count == 5
    # And for the delta: a manifest, a digest table, a pack.
    assert delta.object_count == 8
    assert (full.scanned, delta.scanned) == (False, True)
    pack = next(path for path in files if "packs" in path.parts and path.name.startswith("2-"))
    assert delta.read_size_bytes == full.read_size_bytes + pack.stat().st_size


def test_the_state_names_the_owner_while_there_is_one() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        empty = store.state()
        assert (empty.newest, empty.owner, empty.epoch, empty.record_count) == (None, None, 0, 1)
        put_three(store)
        owned = store.state()
        assert owned.owner is not None
        assert owned.owner.startswith("run main on ")
    after = store_on(blobs, seed=1).state()
    assert (after.newest, after.owner, after.epoch, after.active) == (3, None, 1, None)
    assert after.record_count == owned.record_count + 1


def test_the_log_is_told_newest_first() -> None:
    with store_on(MemoryBlobStore()) as store:
        put_three(store)
        store.tag("best", 2)
        store.untag("best")
        store.retire()
        rows = list(store.log())
    assert [row.slot for row in rows] == list(range(len(rows) - 1, -1, -1))
    told = [(row.kind, row.what) for row in rows]
    assert told[:3] == [
        ("retire", "kept 3-3"),
        ("tag", "best: removed"),
        ("tag", "best: version 2"),
    ]
    assert told[3] == ("version", "version 3, step 2, from 2")
    assert told[5] == ("version", "version 1, step 0, without base")
    assert told[6][0] == "claim"
    assert told[6][1].startswith("open by ")
    assert told[7][1].startswith("store ")


def test_every_kind_of_record_has_a_line_for_people() -> None:
    story = LogStory().begin().claimed().published()
    records = (
        story.init(),
        story.opening().model_copy(update={"rewind_to": Step(3)}),
        story.closing(),
        story.version(),
        story.intent(),
        story.alt(),
        story.void_attempt(),
        story.void_intent(),
        story.tag(),
        story.activate(),
        story.retire(),
        story.format(),
    )
    assert {type(record) for record in records} == set(get_args(get_args(Record)[0]))
    lines = [reporting._summary(record) for record in records]
    assert len(set(lines)) == len(lines)
    assert "taken over" in lines[1]
    assert "rewound to step 3" in lines[1]


def test_a_record_that_counts_for_nothing_says_so() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        put_three(store)
        newest = store._log.tail()
        late = store._find(3)[1].model_copy(
            update={"slot": newest.next_slot, "parent_sha256": newest.tail_sha256}
        )
        blobs.put_if_absent(log_key(newest.next_slot), encode_record(late))
        row = next(store.log())
        assert (row.slot, row.kind, row.what) == (late.slot, "version", "version 3, step 2, from 2")
        assert row.void
        assert [row.void for row in store.log()][1:] == [None] * late.slot


def test_a_long_log_is_told_whole() -> None:
    with store_on(MemoryBlobStore()) as store:
        put_three(store)
        for number in range(70):
            store.tag("best", 1 + number % 3)
        rows = list(store.log())
    assert [row.slot for row in rows] == list(range(len(rows) - 1, -1, -1))
    assert [row.what for row in rows[:3]] == [f"best: version {1 + n % 3}" for n in (69, 68, 67)]
    assert all(row.void is None for row in rows)


def test_a_hole_in_the_log_is_named() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        put_three(store)
        log = Log(blobs, Limits())
        prefix = log.tail()
        blobs.delete(log_key(Slot(2)))
        with pytest.raises(CorruptLogError, match="record 2 is missing"):
            list(reporting.log_rows(log, prefix))
