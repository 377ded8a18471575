"""A sweep makes the deletion of manifests survive power loss before anything else goes."""

from __future__ import annotations

import pytest

from weightstore.errors import BlobOutcomeUnknownError
from weightstore.history.retire import Keep, retire
from weightstore.history.sweep import sweep
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Method, RecordingBlobs
from weightstore.testing.toy_store import ToyStore


class Unsynced(MemoryBlobStore):
    """Cannot sync the folders of manifests."""

    def confirm_durable(self, prefix: str, /) -> None:
        if prefix.startswith("manifests/"):
            raise BlobOutcomeUnknownError("fsync failed")
        super().confirm_durable(prefix)


def retired(blobs: MemoryBlobStore) -> ToyStore:
    """Versions 1 to 6 of two epochs; 1 to 3 are retired."""
    store = ToyStore(blobs)
    store.create()
    for first in (1, 4):
        trainer = store.trainer()
        for step in range(first, first + 3):
            trainer.put(step, b"x" * step, full=step == first)
        trainer.close()
    retire(store.writer(), blobs, Keep(), chain_of=store.chain_of, objects_of=store.objects_of)
    return store


def test_manifests_go_for_good_before_anything_else_goes() -> None:
    store = retired(MemoryBlobStore())
    blobs = RecordingBlobs(store.blobs)
    sweep(blobs, store.log, objects_of=store.objects_of)
    acts = [call for call in blobs.calls if call.method in {Method.DELETE, Method.CONFIRM}]
    of_manifests = [call.key.startswith("manifests/") for call in acts]
    count = of_manifests.index(False)
    assert not any(of_manifests[count:])
    deleted = [call.key for call in acts[:count] if call.method is Method.DELETE]
    synced = [call.key for call in acts[:count] if call.method is Method.CONFIRM]
    assert synced == sorted({key[: key.rfind("/") + 1] for key in deleted})
    assert all(call.method is Method.CONFIRM for call in acts[count - len(synced) : count])
    assert synced


def test_without_that_sync_nothing_else_is_deleted() -> None:
    blobs = Unsynced()
    store = retired(blobs)
    before = {info.key for info in blobs.list("packs/")}
    with pytest.raises(BlobOutcomeUnknownError):
        sweep(blobs, store.log, objects_of=store.objects_of)
    assert {info.key for info in blobs.list("packs/")} == before
