"""Anchors that compactors write: what the log says about their ids decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weightstore.format.kept import of_versions
from weightstore.format.keys import anchor_key
from weightstore.format.records import (
    ZERO_SHA256,
    AltRecord,
    IntentRecord,
    Record,
    RetireRecord,
    VoidIntent,
    VoidRecord,
)
from weightstore.format.rules import Prefix
from weightstore.history.commit import Header
from weightstore.history.retire import Keep, retire
from weightstore.history.sweep import SweepReport, sweep
from weightstore.ids import VersionId
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore


@pytest.fixture
def store() -> ToyStore:
    """Versions 1 to 6, all of them full."""
    made = ToyStore(MemoryBlobStore(), "lab")
    made.create()
    trainer = made.trainer()
    for step in range(1, 7):
        trainer.put(step, b"x" * step, full=True)
    trainer.close()
    return made


def do(store: ToyStore) -> SweepReport:
    return sweep(store.blobs, store.log, objects_of=store.objects_of)


def anchors(store: ToyStore) -> set[str]:
    """Ids of compactors' anchors that are there."""
    names = {info.key.split("/")[1] for info in store.blobs.list("anchors/")}
    return {name for name in names if name.startswith("c-")}


def put(store: ToyStore, record_of: Callable[[Header, Prefix], Record]) -> None:
    writer = store.writer()
    commit_id = writer.new_commit_id()
    writer.put(lambda prefix: record_of(writer.header(prefix, commit_id), prefix))


def intent(store: ToyStore, anchor_id: str, version: int) -> None:
    put(
        store,
        lambda header, prefix: IntentRecord(
            **header,
            epoch=prefix.now.epoch,
            run=None,
            anchor_id=anchor_id,
            version=VersionId(version),
        ),
    )


def void(store: ToyStore, anchor_id: str) -> None:
    put(
        store,
        lambda header, prefix: VoidRecord(
            **header, epoch=prefix.now.epoch, run=None, what=VoidIntent(anchor_id=anchor_id)
        ),
    )


def alt(store: ToyStore, anchor_id: str, version: int) -> None:
    put(
        store,
        lambda header, prefix: AltRecord(
            **header,
            epoch=prefix.now.epoch,
            run=None,
            version=VersionId(version),
            form="full",
            anchor_id=anchor_id,
            manifest_size_bytes=1,
            manifest_sha256=ZERO_SHA256,
        ),
    )


def test_a_compactors_anchors_go_when_voided_or_retired_and_not_before(
    store: ToyStore,
) -> None:
    for name, version in (("open", 5), ("voided", 5), ("used", 5), ("late", 6), ("again", 5)):
        intent(store, f"c-{name}", version)
        store.blobs.put_if_absent(anchor_key(f"c-{name}", "model.safetensors"), b"a")
    void(store, "c-voided")
    void(store, "c-again")
    intent(store, "c-again", 5)
    alt(store, "c-used", 5)
    alt(store, "c-late", 6)
    do(store)
    assert anchors(store) == {"c-open", "c-used", "c-late", "c-again"}
    trainer = store.trainer()
    trainer.put(7, b"7", full=True)
    retire(
        store.writer(),
        store.blobs,
        Keep(),
        chain_of=lambda record: [record.version],
        objects_of=store.objects_of,
    )
    report = do(store)
    assert anchors(store) == {"c-open", "c-again"}
    assert report.unknown_count == 0


def test_an_anchor_id_that_is_used_again_keeps_what_any_use_of_it_needs(
    store: ToyStore,
) -> None:
    for name in ("voided", "reopened", "again"):
        intent(store, f"c-{name}", 5)
        alt(store, f"c-{name}", 5)
        intent(store, f"c-{name}", 6)
        store.blobs.put_if_absent(anchor_key(f"c-{name}", "model.safetensors"), b"a")
    void(store, "c-voided")
    alt(store, "c-again", 6)
    do(store)
    assert len(anchors(store)) == 3
    put(
        store,
        lambda header, prefix: RetireRecord(
            **header, epoch=prefix.now.epoch, run=None, kept=of_versions([6])
        ),
    )
    do(store)
    assert anchors(store) == {"c-reopened", "c-again"}
