"""Every operation on the log, cut or left without an answer at every storage call.

After each cut the store is whole as it stands; a new process that repeats the operation
ends where one without a cut ends; and so does one that is cut again while it repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import pytest

from weightstore.errors import TagNotFoundError, UnavailableError, UnknownOutcomeError
from weightstore.format.kept import iterate
from weightstore.format.keys import LOG_PREFIX
from weightstore.format.records import ClaimRecord, VersionRecord
from weightstore.format.rules import EMPTY_PREFIX, Prefix, Valid
from weightstore.history.log import Log
from weightstore.history.publish import void_attempt
from weightstore.history.retire import Keep, retire
from weightstore.history.store_format import open_store
from weightstore.history.sweep import SweepReport, sweep
from weightstore.history.tags import list_tags, put_tag, remove_tag
from weightstore.ids import Attempt, CommitId, Slot, TagName, VersionId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Fault, LossyBlobs, Method, When, cuts
from weightstore.testing.toy_store import ToyStore

A, B = "a" * 32, "b" * 32
ATTEMPT_COMMIT_ID = CommitId("c" * 32)
DATA_FOLDERS = ("manifests/", "packs/", "anchors/", "layouts/", "receipts/")


@dataclass(frozen=True)
class Operation:
    """What is cut, what was there before, and what must be there in the end.

    Attributes:
        before: Builds the state that it starts from.
        run: The operation as a process of its own does it; repeating it is the recovery.
        check: What holds once it has run to its end, however often it was cut.
    """

    before: Callable[[ToyStore], object]
    run: Callable[[ToyStore], object]
    check: Callable[[View], None]


@dataclass(frozen=True)
class View:
    """What a fresh reader finds."""

    blobs: BlobStore
    log: Log
    prefix: Prefix
    versions: dict[int, VersionRecord] = field(default_factory=dict)

    @property
    def kept(self) -> list[int]:
        return [int(version) for version in iterate(self.prefix.now.kept)]

    def steps(self) -> list[tuple[int, int]]:
        return [(version, record.step) for version, record in sorted(self.versions.items())]

    def count(self, kind: str) -> int:
        records = self.log.iterate(EMPTY_PREFIX.next_slot, _last(self.prefix))
        return sum(stored.record.kind == kind for stored in records)


def _last(prefix: Prefix) -> Slot:
    return Slot(prefix.next_slot - 1)


def look(blobs: BlobStore) -> View:
    """Read everything that a reader may read, and check that it fits together."""
    log = Log(blobs, Limits())
    versions: dict[int, VersionRecord] = {}
    for step in log.steps(EMPTY_PREFIX):
        assert isinstance(step.verdict, Valid), step.verdict
        if isinstance(step.stored.record, VersionRecord):
            versions[step.stored.record.version] = step.stored.record
    prefix = log.follow(EMPTY_PREFIX)
    assert Log(blobs, Limits()).tail() == prefix
    assert sorted(versions) == list(range(1, len(versions) + 1))
    view = View(blobs, log, prefix, versions)
    reader = ToyStore(blobs, "reader")
    for version in view.kept:
        reader.read(versions[version])
        assert set(reader.chain_of(versions[version])) <= set(view.kept)
    return view


def copy_of(blobs: BlobStore) -> MemoryBlobStore:
    copied = MemoryBlobStore()
    for info in blobs.list(""):
        data = blobs.get(info.key, max_size_bytes=1 << 20)
        if info.key == "head":
            copied.overwrite(info.key, data)
        else:
            copied.put_if_absent(info.key, data)
    return copied


def nothing(_store: ToyStore) -> None:
    """An empty place."""


def two_versions(store: ToyStore) -> None:
    """A store that nobody owns, with versions 1 and 2."""
    store.create()
    trainer = store.trainer()
    trainer.put(1, b"first")
    trainer.put(2, b"second")
    trainer.close()


def owned(store: ToyStore) -> None:
    """The same, owned by session A, which has an attempt under way."""
    two_versions(store)
    trainer = store.trainer(session=A)
    trainer.draft(store.log.tail(), 3, b"third", full=True)


def six_versions(store: ToyStore) -> None:
    """Full versions 1 and 4, deltas, one tag, and an attempt under way."""
    store.create()
    trainer = store.trainer()
    for step in range(1, 7):
        trainer.put(step, b"x" * step, full=step in {1, 4})
    put_tag(store.writer(), TagName("best"), 2, owner="me")
    trainer.draft(store.log.tail(), 7, b"seventh", full=True)


def retired(store: ToyStore) -> None:
    """The same, and versions 3 is retired, but nothing deleted."""
    six_versions(store)
    retire_most(store)


def retire_most(store: ToyStore) -> None:
    retire(
        store.writer(),
        store.blobs,
        Keep(),
        chain_of=store.chain_of,
        objects_of=store.objects_of,
    )


def sweep_all(store: ToyStore) -> SweepReport:
    return sweep(store.blobs, store.log, objects_of=store.objects_of)


def void(store: ToyStore) -> None:
    trainer = store.trainer(session=A)
    void_attempt(
        trainer.writer,
        trainer.claim,
        version=VersionId(3),
        attempt=Attempt(1),
        attempt_commit_id=ATTEMPT_COMMIT_ID,
    )


def untag(store: ToyStore) -> None:
    with suppress(TagNotFoundError):  # an earlier try has removed it
        remove_tag(store.writer(), TagName("best"), owner="me")


def made(view: View) -> None:
    assert open_store(view.blobs, view.log)
    assert {info.key for info in view.blobs.list("")} - {"head"} == {
        "FORMAT",
        f"log/{0:020d}",
    }


def claimed_once(view: View) -> None:
    claim = view.prefix.now.claim
    assert claim is not None
    assert (claim.session, claim.last_step) == (B, 2)
    sessions = [
        str(stored.record.session) for stored in view.log.records_of_kind(view.prefix, "claim")
    ]
    assert sessions.count(B) == 1


def rewound_once(view: View) -> None:
    record = view.log.stored_at(view.prefix.now.last_slots["claim"]).record
    assert isinstance(record, ClaimRecord)
    assert (record.session, record.rewind_to, record.last_step) == (B, 1, 1)
    assert view.count("claim") == 3


def third_once(view: View) -> None:
    assert view.steps() == [(1, 1), (2, 2), (3, 3)]
    assert ToyStore(view.blobs, "r").read(view.versions[3]) == b"third"


def third_once_after_a_rewind(view: View) -> None:
    assert view.steps() == [(1, 1), (2, 2), (3, 2)]
    assert ToyStore(view.blobs, "r").read(view.versions[3]) == b"other"


def closed(view: View) -> None:
    assert view.prefix.now.claim is None


def voided_once(view: View) -> None:
    assert view.prefix.now.lowest_open_attempt == 2
    assert view.count("void") == 1
    assert view.steps() == [(1, 1), (2, 2)]


def tagged(view: View) -> None:
    assert {tag.name: tag.version for tag in list_tags(view.log, view.prefix)} == {"x": 2}


def untagged(view: View) -> None:
    assert list_tags(view.log, view.prefix) == ()
    assert view.count("tag") == 2


def most_retired(view: View) -> None:
    assert view.kept == [1, 2, 4, 5, 6]
    assert view.count("retire") == 1


def swept(view: View) -> None:
    reader = ToyStore(view.blobs, "r")
    needed = {
        info.key for version in view.kept for info in reader.objects_of(view.versions[version])
    }
    left = {info.key for folder in DATA_FOLDERS for info in view.blobs.list(folder)}
    # What is not needed is the attempt under way: a manifest, a pack and an anchor.
    assert left >= needed
    assert len(left - needed) == 3
    assert all("7-" in key or "-7-" in key for key in left - needed)


OPERATIONS = {
    "create": Operation(nothing, lambda store: store.create(), made),
    "claim": Operation(two_versions, lambda store: store.trainer(session=B), claimed_once),
    "take over": Operation(
        owned, lambda store: store.trainer(session=B, take_over=True), claimed_once
    ),
    "rewind": Operation(
        two_versions, lambda store: store.trainer(session=B, rewind_to=1), rewound_once
    ),
    "put": Operation(
        two_versions, lambda store: store.trainer(take_over=True).put(3, b"third"), third_once
    ),
    "put in one session": Operation(
        two_versions,
        lambda store: store.trainer(session=B).put(3, b"third", full=True),
        third_once,
    ),
    "put again after a rewind": Operation(
        two_versions,
        lambda store: store.trainer(session=B, rewind_to=1).put(2, b"other"),
        third_once_after_a_rewind,
    ),
    "close": Operation(owned, lambda store: store.trainer(session=A).close(), closed),
    "void": Operation(owned, void, voided_once),
    "tag": Operation(
        two_versions, lambda store: put_tag(store.writer(), TagName("x"), 2, owner="me"), tagged
    ),
    "untag": Operation(six_versions, untag, untagged),
    "retire": Operation(six_versions, retire_most, most_retired),
    "sweep": Operation(retired, sweep_all, swept),
}


def prepared(operation: Operation) -> MemoryBlobStore:
    blobs = MemoryBlobStore()
    operation.before(ToyStore(blobs, "before"))
    return blobs


def finish(operation: Operation, blobs: BlobStore, seed: str) -> None:
    """Repeat the operation twice, each time as a new process, and check the end."""
    for number in range(2):
        operation.run(ToyStore(blobs, f"{seed}/{number}"))
        operation.check(look(blobs))


def unchanged(before: View, after: View) -> None:
    """Versions never change, whatever happens later. (P2)"""
    assert before.versions.items() <= after.versions.items()


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_cut_at_any_call_is_healed_by_repeating(name: str) -> None:
    operation = OPERATIONS[name]
    start = prepared(operation)
    before = look(start)
    cut_counts = dict.fromkeys(When, 0)
    for cut in cuts(lambda: copy_of(start), lambda blobs: operation.run(ToyStore(blobs, "dying"))):
        cut_counts[cut.when] += 1
        unchanged(before, look(cut.blobs))
        finish(operation, cut.blobs, "recovery")
        unchanged(before, look(cut.blobs))
    assert cut_counts[When.BEFORE] == cut_counts[When.AFTER] > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_recovery_that_is_cut_itself_is_healed_by_repeating(name: str) -> None:
    operation = OPERATIONS[name]
    start = prepared(operation)
    for cut in cuts(lambda: copy_of(start), lambda blobs: operation.run(ToyStore(blobs, "dying"))):
        if cut.when is When.BEFORE and not cut.call.method.is_write:
            continue  # the same state as the cut before it
        left = cut.blobs
        for again in cuts(
            lambda left=left: copy_of(left),  # type: ignore[misc]
            lambda blobs: operation.run(ToyStore(blobs, "recovery")),
        ):
            if again.when is When.AFTER and not again.call.method.is_write:
                continue
            finish(operation, again.blobs, "second recovery")


def lossy_runs(operation: Operation, fault: Fault) -> Iterator[tuple[LossyBlobs, int]]:
    """One store for each call of the operation that the fault can meet."""
    start = prepared(operation)
    for index in count():
        blobs = LossyBlobs(copy_of(start), {index: fault})
        yield blobs, index
        if len(blobs.calls) <= index:
            return


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_lost_request_or_answer_at_any_call_ends_in_one_outcome(name: str, fault: Fault) -> None:
    operation = OPERATIONS[name]
    for blobs, index in lossy_runs(operation, fault):
        failed: Exception | None = None
        try:
            operation.run(ToyStore(blobs, "lossy"))
        except (UnknownOutcomeError, UnavailableError) as error:
            failed = error
        met = blobs.calls[index] if index < len(blobs.calls) else None
        blobs.deliver_all()
        view = look(blobs.inner)
        if failed is None:
            operation.check(view)
        # A write whose answer is lost is resolved by reading, and reported as what it is.
        is_commit = met is not None and met.method is Method.PUT and met.key.startswith(LOG_PREFIX)
        assert failed is None or not is_commit, (met, failed)
        finish(operation, blobs.inner, "recovery")


def test_every_answer_lost_and_every_commit_still_counts_once() -> None:
    blobs = LossyBlobs(
        MemoryBlobStore(), lambda call: Fault.LOST_ANSWER if call.method is Method.PUT else None
    )
    store = ToyStore(blobs, "lossy")
    store.create()
    trainer = store.trainer()
    for step in range(1, 6):
        trainer.put(step, b"x" * step)
        put_tag(store.writer(), TagName("last"), step, owner="me")
    trainer.close()
    view = look(blobs.inner)
    assert view.steps() == [(step, step) for step in range(1, 6)]
    assert view.prefix.next_slot == 1 + 1 + 5 + 5 + 1
