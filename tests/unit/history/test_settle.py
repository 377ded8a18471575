"""A put of a name of one's own ends as done, as a conflict or as unknown, and never as a guess."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weightstore.errors import BlobExistsError, BlobOutcomeUnknownError
from weightstore.history.anchor_writer import put_own_stream
from weightstore.history.settle import put_settled
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Fault, LossyBlobs, Method, writes_in_turn
from weightstore.trainer.objects import put_own

KEY = "anchors/x/a"
DATA = b"abc"
LIMITS = Limits(put_try_count=3)

Put = Callable[[BlobStore], object]
WAYS: dict[str, Put] = {
    "whole": lambda blobs: put_own(blobs, KEY, DATA, LIMITS),
    "streamed": lambda blobs: put_own_stream(blobs, KEY, lambda: iter([b"ab", b"c"]), LIMITS),
}


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("other", [b"", b"ab", b"abd", b"abcd", b"Xbc"])
def test_other_bytes_are_a_conflict_and_stay(put: Put, other: bytes) -> None:
    blobs = MemoryBlobStore()
    blobs.put_if_absent(KEY, other)
    with pytest.raises(BlobExistsError, match="belongs to this attempt alone") as caught:
        put(blobs)
    assert caught.value.facts == {"key": KEY}
    assert "next attempt" in caught.value.do
    assert blobs.get(KEY, max_size_bytes=10) == other


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
def test_the_same_bytes_are_found(put: Put) -> None:
    blobs = LossyBlobs(MemoryBlobStore(), lambda _: None)
    put(blobs)
    put(blobs)
    assert blobs.calls[-1].method is Method.CONFIRM
    assert blobs.get(KEY, max_size_bytes=10) == DATA


@pytest.mark.parametrize("put", WAYS.values(), ids=WAYS)
def test_a_put_is_tried_as_often_as_the_limit_says(put: Put) -> None:
    lossy = LossyBlobs(MemoryBlobStore(), writes_in_turn(Fault.LOST_REQUEST))
    with pytest.raises(BlobOutcomeUnknownError):
        put(lossy)
    assert sum(call.method.is_write for call in lossy.calls) == LIMITS.put_try_count


def test_the_answer_says_whether_the_last_try_itself_was_answered() -> None:
    blobs = MemoryBlobStore()

    def settled(*faults: Fault | None) -> bool:
        blobs.delete(KEY)
        lossy = LossyBlobs(blobs, writes_in_turn(*faults, None))
        return put_settled(
            lossy, KEY, lambda: lossy.put_if_absent(KEY, DATA), lambda: [DATA], try_count=3
        )

    assert settled()
    assert settled(Fault.LOST_REQUEST)
    assert not settled(Fault.LOST_ANSWER)
    assert not settled(Fault.LOST_REQUEST, Fault.LOST_ANSWER)
