"""Every selector finds its version in O(log n) reads, or says why there is none."""

from __future__ import annotations

import math

import pytest

from weightstore.errors import (
    CorruptLogError,
    NameRefusedError,
    SelectorError,
    TagNotFoundError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.format.kept import of_versions
from weightstore.format.keys import log_key
from weightstore.format.records import RetireRecord, VersionRecord
from weightstore.format.rules import EMPTY_PREFIX, Prefix
from weightstore.history.log import Log
from weightstore.history.tags import put_tag
from weightstore.history.versions import (
    find_step,
    find_version,
    latest,
    list_versions,
    record_of_version,
    records_of,
)
from weightstore.ids import Epoch, RunId, Slot, TagName
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore, write_versions


class CountingBlobs(MemoryBlobStore):
    def __init__(self) -> None:
        super().__init__()
        self.read_count = 0

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self.read_count += 1
        return super().get(key, max_size_bytes=max_size_bytes)


def keep_only(store: ToyStore, versions: list[int]) -> None:
    """Retire by record alone, whatever a plan would say."""
    writer = store.writer()
    commit_id = writer.new_commit_id()
    writer.put(
        lambda prefix: RetireRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            kept=of_versions(versions),
        )
    )


def history() -> ToyStore:
    """Four claims of two runs, a rewind in between, other records among the versions.

    v1 base@0; v2..v5 grpo@2,4,6,8; then rewound to 4: v6, v7 grpo@6,8 anew; v8 base@1.
    """
    blobs = MemoryBlobStore()
    store = ToyStore(blobs, "h")
    store.create()
    plan = [
        ("base", None, [0]),
        ("grpo", None, [2, 4, 6, 8]),
        ("grpo", 4, [6, 8]),
        ("base", 0, [1]),
    ]
    for number, (run, rewind_to, steps) in enumerate(plan):
        trainer = ToyStore(blobs, number).trainer(run, rewind_to=rewind_to)
        if number:
            # Between a claim and its first version the newest one is another claim's.
            put_tag(store.writer(), TagName("claimed"), 1, owner="h")
        for step in steps:
            made = trainer.put(step, f"{number}/{step}".encode())
            put_tag(store.writer(), TagName(f"t{made.version}"), made.version, owner="h")
        trainer.close()
    return store


@pytest.fixture(scope="module")
def store() -> ToyStore:
    return history()


def tail(store: ToyStore) -> tuple[Log, Prefix]:
    log = Log(store.blobs, Limits())
    return log, log.tail()


def audited(store: ToyStore) -> dict[int, VersionRecord]:
    log = Log(store.blobs, Limits())
    records = [step.stored.record for step in log.steps(EMPTY_PREFIX)]
    return {record.version: record for record in records if isinstance(record, VersionRecord)}


def test_numbers_find_the_records_that_an_audit_finds(store: ToyStore) -> None:
    log, prefix = tail(store)
    expected = audited(store)
    assert sorted(expected) == [1, 2, 3, 4, 5, 6, 7, 8]
    for version, record in expected.items():
        assert record_of_version(log, prefix, version) == record
        assert find_version(log, prefix, version) == record
        assert find_version(log, prefix, str(version)) == record
        assert find_version(log, prefix, f"tag:t{version}") == record
    assert latest(log, prefix) == find_version(log, prefix, "latest") == expected[8]


def test_listing_goes_newest_first_and_says_what_is_kept() -> None:
    store = history()
    keep_only(store, [1, 3, 4, 8])
    log, prefix = tail(store)
    listed = [(each.record.version, each.kept) for each in list_versions(log, prefix)]
    assert [version for version, _ in listed] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert [version for version, kept in listed if kept] == [8, 4, 3, 1]
    found = [record.version for record in records_of(log, prefix, of_versions([1, 3, 4, 8]))]
    assert found == [8, 4, 3, 1]


@pytest.mark.parametrize(
    ("selector", "version"),
    [
        ("base@0", 1),
        ("grpo@2", 2),
        ("grpo@4", 3),
        ("grpo@6", 6),
        ("grpo@8", 7),
        ("base@1", 8),
    ],
)
def test_a_step_names_its_newest_version(store: ToyStore, selector: str, version: int) -> None:
    log, prefix = tail(store)
    assert find_version(log, prefix, selector).version == version


@pytest.mark.parametrize(
    "selector",
    ["base@2", "grpo@0", "grpo@3", "grpo@5", "grpo@7", "grpo@9", "sft@1", "0", "9", -3, 10],
)
def test_what_was_never_committed_is_not_found(store: ToyStore, selector: str | int) -> None:
    log, prefix = tail(store)
    with pytest.raises(VersionNotFoundError):
        find_version(log, prefix, selector)


def test_a_step_can_be_looked_for_in_one_epoch(store: ToyStore) -> None:
    log, prefix = tail(store)
    run = RunId("grpo")
    found = [find_step(log, prefix, run, 6, epoch=Epoch(epoch)) for epoch in range(6)]
    assert [each.version if each else None for each in found] == [None, None, 4, 6, None, None]


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        ("", SelectorError),
        ("newest", SelectorError),
        ("-1", SelectorError),
        ("01", SelectorError),
        ("1.0", SelectorError),
        ("\u0661", SelectorError),
        ("grpo@", SelectorError),
        ("grpo@x", SelectorError),
        ("grpo@01", SelectorError),
        ("@1", NameRefusedError),
        ("a@b@1", NameRefusedError),
        ("GRPO@1", NameRefusedError),
        ("tag:", NameRefusedError),
        ("tag:a/b", NameRefusedError),
        ("tag:none", TagNotFoundError),
    ],
)
def test_selectors_that_name_nothing_are_refused(
    store: ToyStore, selector: str, kind: type[Exception]
) -> None:
    log, prefix = tail(store)
    with pytest.raises(kind):
        find_version(log, prefix, selector)


def test_retired_versions_are_gone_under_every_name() -> None:
    store = history()
    keep_only(store, [8])
    log, prefix = tail(store)
    for selector in (6, "6", "grpo@6", "tag:t6"):
        with pytest.raises(VersionGoneError) as caught:
            find_version(log, prefix, selector)
        assert caught.value.facts == {"version": 6, "newest_kept": 8}
    assert find_version(log, prefix, "latest").version == 8
    assert record_of_version(log, prefix, 6).version == 6, "its record stays for ever"


def test_an_empty_store_says_that_it_is_empty() -> None:
    store = ToyStore(MemoryBlobStore())
    store.create()
    log, prefix = tail(store)
    with pytest.raises(VersionNotFoundError, match="empty"):
        find_version(log, prefix, "latest")
    with pytest.raises(VersionNotFoundError):
        find_version(log, prefix, "grpo@1")
    assert list(list_versions(log, prefix)) == []
    assert list(records_of(log, prefix, ())) == []


@pytest.mark.parametrize("pattern", ["vvvv", "vvttttvvv", "vtvvtttttttvvvvt", "vvtvtvvtttttv"])
def test_versions_are_found_however_other_records_lie_between(pattern: str) -> None:
    store = ToyStore(MemoryBlobStore())
    store.create()
    trainer = store.trainer()
    for number, letter in enumerate(pattern):
        if letter == "v":
            trainer.put(number)
        else:
            put_tag(store.writer(), TagName("x"), 1, owner="me")
    log, prefix = tail(store)
    for version, record in audited(store).items():
        assert record_of_version(log, prefix, version) == record
        assert find_version(log, prefix, f"grpo@{record.step}") == record


@pytest.mark.parametrize("version_count", [10, 1_000, 10_000])
def test_any_version_costs_logarithmically_many_reads(version_count: int) -> None:
    blobs = CountingBlobs()
    prefix = write_versions(blobs, version_count)
    # Tags after the last version, so that a version's slot cannot be guessed from its number.
    store = ToyStore(blobs, "t")
    for number in range(20):
        put_tag(store.writer(), TagName(f"t{number}"), 1, owner="me")
    prefix = store.log.tail()
    for version in (1, 2, version_count // 3, version_count // 2, version_count):
        for selector in (version, f"grpo@{version + 1}"):
            log = Log(blobs, Limits())
            blobs.read_count = 0
            assert find_version(log, prefix, selector).version == version
            assert blobs.read_count <= 2 * math.log2(version_count) + 12, (version, selector)


def test_a_log_that_contradicts_its_tail_is_refused() -> None:
    blobs = MemoryBlobStore()
    prefix = write_versions(blobs, 9)
    newest = prefix.now.newest
    assert newest is not None
    moved = newest.model_copy(update={"slot": newest.slot - 1})
    now = prefix.now.model_copy(update={"newest": moved})
    log = Log(blobs, Limits())
    with pytest.raises(CorruptLogError):
        latest(log, Prefix(prefix.next_slot, prefix.tail_sha256, now))
    blobs.delete(log_key(Slot(5)))
    with pytest.raises(CorruptLogError):
        find_version(log, prefix, 4)
