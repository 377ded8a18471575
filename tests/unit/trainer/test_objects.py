"""An object under a name of one's own is put once, whatever becomes of the answers."""

from __future__ import annotations

import hashlib

import pytest

from weightstore.errors import BlobExistsError, BlobOutcomeUnknownError
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Fault, LossyBlobs, Method
from weightstore.trainer.objects import put_own

KEY = "manifests/run-1/1-" + "a" * 32
DATA = b"some bytes"
LIMITS = Limits()


@pytest.mark.parametrize("fault", [None, Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.REPEATED])
def test_the_object_is_there_once_and_described(fault: Fault | None) -> None:
    inner = MemoryBlobStore()
    blobs = LossyBlobs(inner, {0: fault} if fault else {})
    ref = put_own(blobs, KEY, DATA, LIMITS)
    assert inner.get(KEY, max_size_bytes=100) == DATA
    assert (ref.key, ref.size_bytes) == (KEY, len(DATA))
    assert ref.sha256 == hashlib.sha256(DATA).hexdigest()


def test_a_store_that_never_answers_leaves_it_unknown() -> None:
    blobs = LossyBlobs(
        MemoryBlobStore(), lambda call: Fault.LOST_REQUEST if call.method.is_write else None
    )
    with pytest.raises(BlobOutcomeUnknownError):
        put_own(blobs, KEY, DATA, LIMITS)
    writes = [call for call in blobs.calls if call.method.is_write]
    assert len(writes) == LIMITS.put_try_count


def test_other_bytes_under_the_name_are_a_conflict() -> None:
    blobs = MemoryBlobStore()
    for other in (b"other bytes of more than the size", b"OTHER BYTE", b""):
        blobs.delete(KEY)
        blobs.put_if_absent(KEY, other)
        with pytest.raises(BlobExistsError, match="belongs to this attempt alone"):
            put_own(blobs, KEY, DATA, LIMITS)
        assert blobs.get(KEY, max_size_bytes=100) == other


def test_every_answer_to_a_write_may_be_lost() -> None:
    inner = MemoryBlobStore()
    lossy = LossyBlobs(inner, lambda call: Fault.LOST_ANSWER if call.method.is_write else None)
    put_own(lossy, KEY, DATA, LIMITS)
    assert inner.get(KEY, max_size_bytes=100) == DATA


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_found_counts_once_it_is_durable(*, durable: bool) -> None:
    blobs = LossyBlobs(MemoryBlobStore(), {0: Fault.LOST_ANSWER})
    put_own(blobs, KEY, DATA, LIMITS, durable=durable)
    confirmed = [(call.method, call.key) for call in blobs.calls[3:]]
    assert confirmed == ([(Method.CONFIRM, "manifests/run-1/")] if durable else [])


def test_what_was_found_and_cannot_be_made_durable_is_unknown() -> None:
    schedule = {0: Fault.LOST_ANSWER, 3: Fault.LOST_ANSWER}
    with pytest.raises(BlobOutcomeUnknownError):
        put_own(LossyBlobs(MemoryBlobStore(), schedule), KEY, DATA, LIMITS)
