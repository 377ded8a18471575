"""The check of histories: it accepts a true one, and finds every kind of untruth."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from weightstore.errors import CorruptError
from weightstore.format.keys import HEAD_KEY, log_key
from weightstore.format.records import Record, TagRecord, VersionRecord, encode_record
from weightstore.format.rules import EMPTY_PREFIX, Prefix, Valid
from weightstore.history.log import Log
from weightstore.history.references import References
from weightstore.ids import Slot, VersionId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.history_check import (
    Acknowledged,
    History,
    HistoryViolation,
    Read,
    Rule,
    bits_sha256_of,
    check_history,
)
from weightstore.testing.store_lab import store_on
from weightstore.testing.toy_store import ToyStore
from weightstore.testing.trainer_lab import TrainerLab, Weights, bits_of, changed, small_weights

STEP_COUNT = 4


@dataclass
class World:
    """A store and what was told of it; mutations change either."""

    blobs: dict[str, bytes]
    history: History

    def stored(self) -> MemoryBlobStore:
        """The blobs as a store."""
        store = MemoryBlobStore()
        for key, data in self.blobs.items():
            store.overwrite(key, data) if key == HEAD_KEY else store.put_if_absent(key, data)
        return store

    def check(self, *, deep: bool = False) -> Prefix:
        """Check the world."""
        return check_history(self.stored(), self.history, deep=deep)

    def prefix(self) -> Prefix:
        """The log as it is."""
        return Log(self.stored(), Limits()).follow(EMPTY_PREFIX)

    def record(self, kind: str) -> Record:
        """The newest record of a kind."""
        log = Log(self.stored(), Limits())
        steps = [one.stored.record for one in log.steps(EMPTY_PREFIX)]
        return [record for record in steps if record.kind == kind][-1]

    def append(self, record: Record) -> None:
        """Put a record at the end of the log, valid or not."""
        self.blobs[log_key(record.slot)] = encode_record(record)

    def change_told(self, index: int, **fields: object) -> None:
        """Change what was told of one acknowledged record."""
        told = list(self.history.acknowledged)
        told[index] = replace(told[index], **fields)  # type: ignore[arg-type]
        self.history = replace(self.history, acknowledged=tuple(told))

    def change_read(self, index: int, **fields: object) -> None:
        """Change one read."""
        reads = list(self.history.reads)
        reads[index] = replace(reads[index], **fields)  # type: ignore[arg-type]
        self.history = replace(self.history, reads=tuple(reads))

    def object_of(self, version: int, kind: str) -> str:
        """Key of an object that a version names."""
        store = self.stored()
        log = Log(store, Limits())
        for step in log.steps(EMPTY_PREFIX):
            record = step.stored.record
            if isinstance(record, VersionRecord) and record.version == version:
                infos = References(store, log, Limits()).objects_of(record)
                return next(info.key for info in infos if info.key.startswith(kind))
        raise AssertionError(version)


def true_world() -> World:
    """Four versions, a tag, the first two retired, and two readers."""
    blobs = MemoryBlobStore()
    lab = TrainerLab(blobs, "lab").create()
    states: list[Weights] = [small_weights()]
    told: list[Acknowledged] = []
    reads: list[Read] = []
    with lab.trainer() as trainer:
        for step in range(STEP_COUNT):
            version = trainer.put_step(step, states[-1], anchor=step == 2).result()
            bits = bits_sha256_of(bits_of(states[-1]))
            # What a user of the facade knows, who holds no record.
            told.append(Acknowledged(version=version, run="run", step=step, bits_sha256=bits))
            prefix = lab.log.tail()
            assert prefix.now.newest is not None
            reads.extend(
                Read(
                    reader=reader,
                    order=step,
                    version=version,
                    digest=prefix.now.newest.digest,
                    bits_sha256=bits,
                    next_slot=prefix.next_slot,
                )
                for reader in ("one", "two")
            )
            states.append(changed(states[-1], step + 1))
    store = store_on(blobs, seed="user")
    store.tag("best", 3)
    store.retire(keep_newest=2)
    records = (one.stored.record for one in lab.log.steps(EMPTY_PREFIX))
    told.extend(Acknowledged.of_record(record) for record in records)
    reads.append(Read(reader="one", order=99, version=3, is_latest=False))
    keys = [info.key for info in blobs.list("")]
    contents = {key: blobs.get(key, max_size_bytes=1 << 24) for key in keys}
    return World(contents, History(acknowledged=tuple(told), reads=tuple(reads)))


@pytest.fixture(scope="module")
def truth() -> World:
    return true_world()


@pytest.fixture
def world(truth: World) -> World:
    return World(dict(truth.blobs), truth.history)


@pytest.mark.parametrize("deep", [False, True])
def test_a_true_history_is_accepted(world: World, *, deep: bool) -> None:
    prefix = world.check(deep=deep)
    assert [(one.first, one.last) for one in prefix.now.kept] == [(3, 4)]
    assert len(world.history.acknowledged) == STEP_COUNT + prefix.next_slot


def step_back_after_a_read_that_told_no_slot(world: World) -> None:
    reads = list(world.history.reads)
    index = max(number for number, one in enumerate(reads) if one.reader == "two")
    newest = reads[index]
    silent = replace(newest, order=50, next_slot=None)
    committed = next(
        one for one in world.history.acknowledged if one.version == newest.version and one.slot
    )
    assert committed.slot is not None
    # The version is there for both, so that nothing but the step back is wrong.
    late = replace(newest, order=49, next_slot=committed.slot + 2)
    back = replace(newest, order=51, next_slot=committed.slot + 1)
    world.history = replace(world.history, reads=(*reads, late, silent, back))


def garble_a_record(world: World) -> None:
    world.blobs[log_key(Slot(3))] = b"\0" * 512


def lose_the_last_record(world: World) -> None:
    del world.blobs[log_key(Slot(world.prefix().next_slot - 1))]


def lose_a_middle_record(world: World) -> None:
    del world.blobs[log_key(Slot(3))]


def leave_a_record_beyond_a_gap(world: World) -> None:
    prefix = world.prefix()
    body = world.blobs[log_key(Slot(prefix.next_slot - 1))]
    world.blobs[log_key(Slot(prefix.next_slot + 1))] = body


def break_the_hash_chain(world: World) -> None:
    prefix = world.prefix()
    record = world.record("tag").model_copy(
        update={"slot": prefix.next_slot, "now": prefix.now, "parent_sha256": "1" * 64}
    )
    world.append(record)


def change_a_committed_record(world: World) -> None:
    """Other bytes in the same slot: the record after it names the old ones."""
    record = world.record("tag")
    world.append(record.model_copy(update={"owner": "another"}))


def commit_one_nonce_twice(world: World) -> None:
    prefix = world.prefix()
    record = world.record("tag")
    assert isinstance(record, TagRecord)
    world.append(
        record.model_copy(
            update={
                "slot": prefix.next_slot,
                "now": prefix.now,
                "parent_sha256": prefix.tail_sha256,
            }
        )
    )


def skip_a_version(world: World) -> None:
    prefix = world.prefix()
    record = world.record("version")
    world.append(
        record.model_copy(
            update={
                "slot": prefix.next_slot,
                "now": prefix.now,
                "parent_sha256": prefix.tail_sha256,
                "version": VersionId(9),
            }
        )
    )


def tell_one_slot_to_two(world: World) -> None:
    last = world.history.acknowledged[-1]
    other = replace(last, commit_id="d" * 32)
    told = (*world.history.acknowledged, other)
    world.history = replace(world.history, acknowledged=told)


def flip_a_byte_of(kind: str, version: int) -> Callable[[World], None]:
    def flip(world: World) -> None:
        key = world.object_of(version, kind)
        data = bytearray(world.blobs[key])
        data[-1] ^= 1
        world.blobs[key] = bytes(data)

    flip.__name__ = f"flip_a_byte_of_{kind.strip('/')}"
    return flip


def lose_an_object_of(kind: str, version: int) -> Callable[[World], None]:
    def lose(world: World) -> None:
        del world.blobs[world.object_of(version, kind)]

    lose.__name__ = f"lose_{kind.strip('/')}"
    return lose


def cut_an_object(world: World) -> None:
    key = world.object_of(4, "packs/")
    world.blobs[key] = world.blobs[key][:-1]


def told(index: int, **fields: object) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.change_told(index, **fields)

    change.__name__ = "told_another_" + "_".join(fields)
    return change


def read(index: int, **fields: object) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.change_read(index, **fields)

    change.__name__ = f"read_{index}_another_" + "_".join(fields)
    return change


INIT = STEP_COUNT  # the first of the records that were told as their writers hold them

MUTATIONS: list[tuple[Callable[[World], None], Rule, bool]] = [
    (garble_a_record, Rule.LOG_READABLE, False),
    (lose_a_middle_record, Rule.LOG_GAPLESS, False),
    (leave_a_record_beyond_a_gap, Rule.LOG_GAPLESS, False),
    (break_the_hash_chain, Rule.LOG_CHAIN, False),
    (change_a_committed_record, Rule.LOG_CHAIN, False),
    (skip_a_version, Rule.LOG_CHAIN, False),
    (lose_the_last_record, Rule.ACKNOWLEDGED_PRESENT, False),
    (commit_one_nonce_twice, Rule.ACKNOWLEDGED_PRESENT, False),
    (told(INIT, commit_id="f" * 32), Rule.ACKNOWLEDGED_PRESENT, False),
    (told(3, version=7), Rule.ACKNOWLEDGED_PRESENT, False),
    (tell_one_slot_to_two, Rule.ONE_WINNER, False),
    (told(INIT + 1, slot=7), Rule.ONE_WINNER, False),
    (told(3, step=9), Rule.ACKNOWLEDGED_SAME, False),
    (told(3, run="other"), Rule.ACKNOWLEDGED_SAME, False),
    (told(3, digest="0" * 64), Rule.ACKNOWLEDGED_SAME, False),
    (told(INIT, kind="tag"), Rule.ACKNOWLEDGED_SAME, False),
    (read(0, version=8), Rule.READ_COMMITTED, False),
    (read(0, next_slot=2), Rule.READ_COMMITTED, False),
    (read(7, next_slot=99), Rule.READ_COMMITTED, False),
    (read(0, digest="0" * 64), Rule.READ_SAME, False),
    (read(6, version=1, digest=None, bits_sha256=None), Rule.READ_FORWARD, False),
    (read(6, next_slot=4), Rule.READ_FORWARD, False),
    (read(8, is_latest=True), Rule.READ_FORWARD, False),
    (step_back_after_a_read_that_told_no_slot, Rule.READ_FORWARD, False),
    (lose_an_object_of("manifests/", 3), Rule.OBJECTS_WHOLE, False),
    (lose_an_object_of("packs/", 4), Rule.OBJECTS_WHOLE, False),
    (lose_an_object_of("anchors/", 3), Rule.OBJECTS_WHOLE, False),
    (cut_an_object, Rule.OBJECTS_WHOLE, False),
    (flip_a_byte_of("manifests/", 3), Rule.OBJECTS_WHOLE, False),
    (flip_a_byte_of("packs/", 4), Rule.OBJECTS_WHOLE, True),
    (flip_a_byte_of("anchors/", 3), Rule.OBJECTS_WHOLE, True),
    (told(3, bits_sha256="0" * 64), Rule.BITS_SAME, True),
    (read(6, bits_sha256="0" * 64), Rule.BITS_SAME, True),
]


@pytest.mark.parametrize(
    ("mutate", "rule", "deep"), MUTATIONS, ids=lambda one: getattr(one, "__name__", None)
)
def test_every_untruth_is_found(
    world: World, mutate: Callable[[World], None], rule: Rule, *, deep: bool
) -> None:
    mutate(world)
    with pytest.raises(HistoryViolation) as caught:
        world.check(deep=deep)
    assert rule in {one.rule for one in caught.value.violations}
    assert f"{rule.name}: " in str(caught.value)


def test_every_rule_but_what_the_log_itself_proves_has_a_mutation() -> None:
    """A log that breaks these two breaks LOG_CHAIN or the product's own search for the tail."""
    proven_elsewhere = {Rule.VERSIONS_GAPLESS, Rule.LOG_TAIL}
    assert {rule for _, rule, _ in MUTATIONS} == set(Rule) - proven_elsewhere


def test_a_quick_tail_that_disagrees_and_a_skipped_version_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both need rules or a reader with a bug, so the bug is put in."""
    monkeypatch.setattr(Log, "tail", lambda _log: EMPTY_PREFIX)
    monkeypatch.setattr("weightstore.history.log.validate", lambda *_: Valid())
    skip_a_version(world)
    with pytest.raises(HistoryViolation) as caught:
        world.check()
    assert {Rule.VERSIONS_GAPLESS, Rule.LOG_TAIL} <= {one.rule for one in caught.value.violations}


def test_all_violations_are_listed_not_only_the_first(world: World) -> None:
    world.change_told(3, step=9)
    world.change_read(0, digest="0" * 64)
    lose_an_object_of("packs/", 4)(world)
    with pytest.raises(HistoryViolation) as caught:
        world.check()
    rules = [one.rule for one in caught.value.violations]
    assert rules == [Rule.ACKNOWLEDGED_SAME, Rule.READ_SAME, Rule.OBJECTS_WHOLE]


def test_what_a_test_did_on_purpose_is_no_violation(world: World) -> None:
    flip_a_byte_of("packs/", 4)(world)
    break_the_hash_chain(world)
    end = world.prefix().next_slot
    world.history = replace(
        world.history, damaged_versions=frozenset({4}), rogue_slots=frozenset({end - 1})
    )
    assert world.check(deep=True).next_slot == end


def test_stores_of_another_kind_bring_their_own_check() -> None:
    blobs = MemoryBlobStore()
    store = ToyStore(blobs, "toy")
    store.create()
    trainer = store.trainer()
    record = trainer.put(1, b"text")
    bits = hashlib.sha256(b"text").hexdigest()

    def check(_: BlobStore, log: Log, found: VersionRecord, /, *, deep: bool) -> str | None:
        assert deep
        assert log.read(found.slot) is not None
        text = store.read(found)
        return hashlib.sha256(text).hexdigest()

    def check_damaged(_: BlobStore, __: Log, found: VersionRecord, /, *, deep: bool) -> str | None:
        raise CorruptError(f"{found.version} {deep}")

    history = History(acknowledged=(Acknowledged.of_record(record, bits_sha256=bits),))
    assert check_history(blobs, history, deep=True, check_version=check).next_slot == 3
    with pytest.raises(HistoryViolation, match="OBJECTS_WHOLE: version 1: 1 True"):
        check_history(blobs, history, deep=True, check_version=check_damaged)


def test_bits_are_told_apart_by_name_and_place() -> None:
    assert bits_sha256_of({"a": b"12", "b": b"3"}) == bits_sha256_of({"b": b"3", "a": b"12"})
    different = [{"a": b"123"}, {"a": b"12", "b": b"3"}, {"a": b"1", "b": b"23"}, {"ab": b"123"}]
    assert len({bits_sha256_of(one) for one in different}) == len(different)
