"""Retiring: the report is known before the first deletion, and nothing takes it away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weightstore.errors import StorageFailedError, VersionGoneError
from weightstore.format.keys import log_key
from weightstore.history.references import References
from weightstore.history.retire import Keep
from weightstore.ids import Slot
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import RetireReport
from weightstore.store.retiring import retire_and_sweep
from weightstore.testing.store_lab import LAB_SETTINGS, store_on

VERSION_COUNT = 6
# No record stays in memory, so that each look at the log is one at the store.
SETTINGS = replace(LAB_SETTINGS, limits=Limits(cached_record_count=1))


class FailingBlobs(MemoryBlobStore):
    """Fails to read one record, and from the first deletion on everything."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable_key: str | None = None
        self.is_unreadable_after_deletion = False
        self.deleted_count = 0

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        if key == self.unreadable_key or (self.is_unreadable_after_deletion and self.deleted_count):
            raise StorageFailedError(f"cannot read {key}")
        return super().get(key, max_size_bytes=max_size_bytes)

    def delete(self, key: str, /) -> None:
        self.deleted_count += 1
        super().delete(key)


@pytest.fixture
def blobs() -> FailingBlobs:
    """Six full versions; the second one has a tag."""
    blobs = FailingBlobs()
    with store_on(blobs, settings=SETTINGS) as store:
        for step in range(VERSION_COUNT):
            store.put_step(step, {"w": np.full(8, step, np.float32)}, anchor=True)
        store.tag("best", 2)
    blobs.deleted_count = 0
    return blobs


def retired(blobs: FailingBlobs, seed: int, *, dry_run: bool = False) -> RetireReport:
    store = store_on(blobs, settings=SETTINGS, seed=seed)
    references = References(blobs, store._log, SETTINGS.limits)
    return retire_and_sweep(
        store._writer(), blobs, Keep(newest_count=2), references, dry_run=dry_run
    )


def test_reads_that_fail_after_the_first_deletion_do_not_take_the_report(
    blobs: FailingBlobs,
) -> None:
    expected = retired(blobs, 1, dry_run=True)
    blobs.is_unreadable_after_deletion = True
    report = retired(blobs, 2)
    assert report == expected
    assert report.gone == (1, 3, 4)
    assert {one.version: one.reasons for one in report.kept}[2] == ("tag best",)
    assert blobs.deleted_count == report.deleted_count > 0


def test_reasons_that_cannot_be_read_stop_it_before_the_first_deletion(
    blobs: FailingBlobs,
) -> None:
    store = store_on(blobs, settings=SETTINGS, seed=1)
    blobs.unreadable_key = log_key(Slot(store.version(2).slot))
    with pytest.raises(StorageFailedError):
        store.retire(keep_newest=2)
    assert blobs.deleted_count == 0
    blobs.unreadable_key = None
    report = store.retire(keep_newest=2)
    assert blobs.deleted_count == report.deleted_count > 0
    with pytest.raises(VersionGoneError):
        store.version(1)
