"""A store that ignores the condition of a put is found out before the first write."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from typing_extensions import Buffer

from weightstore.clock import SystemEntropy
from weightstore.errors import BackendUnsuitableError, BlobExistsError, UnknownOutcomeError
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.probe import probe_conditional_put
from weightstore.testing.faults import Fault, LossyBlobs, Method, RecordingBlobs, every

WAIT_S = 60.0


class _Unconditional(RecordingBlobs):
    """A backend that accepts the condition and ignores it: the last writer wins."""

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        self.inner.delete(key)
        super().put_if_absent(key, data, durable=durable)


class _ChecksAndThenWrites(RecordingBlobs):
    """A backend that looks first and writes later, so that two who race both win."""

    def __init__(self, inner: BlobStore) -> None:
        super().__init__(inner)
        self._both_looked = threading.Barrier(2, timeout=WAIT_S)
        self._caller = threading.get_ident()

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        if self._is_race(key):
            self.inner.delete(key)
        super().put_if_absent(key, data, durable=durable)

    def _is_race(self, key: str) -> bool:
        """Whether two look at a free key at the same time: those that are not the caller do."""
        if threading.get_ident() == self._caller:
            return False
        is_free = not list(self.inner.list(key))
        self._both_looked.wait()
        return is_free


class _ReplacesAndRefuses(RecordingBlobs):
    """A backend that answers the second put with no, after it has replaced the first."""

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        try:
            super().put_if_absent(key, data, durable=durable)
        finally:
            self.inner.delete(key)
            self.inner.put_if_absent(key, data)


class _SaysYesToEverybody(RecordingBlobs):
    """A backend that keeps the first blob and tells every writer that it was first."""

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        with suppress(BlobExistsError):
            super().put_if_absent(key, data, durable=durable)


class _SaysYesToRacers(_ChecksAndThenWrites):
    """A backend that settles races by itself and tells both writers that they were first."""

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        if not self._is_race(key) or bytes(data) < b"p":
            RecordingBlobs.put_if_absent(self, key, data, durable=durable)


@pytest.mark.parametrize(
    "broken",
    [
        _Unconditional,
        _ChecksAndThenWrites,
        _ReplacesAndRefuses,
        _SaysYesToEverybody,
        _SaysYesToRacers,
    ],
)
def test_a_store_that_ignores_the_condition_is_refused(broken: type[RecordingBlobs]) -> None:
    inner = MemoryBlobStore()
    inner.put_if_absent("FORMAT", b"x")
    with pytest.raises(BackendUnsuitableError, match="ignores the condition"):
        probe_conditional_put(broken(inner), SystemEntropy())
    assert [info.key for info in inner.list("")] == ["FORMAT"]


def test_a_good_store_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    for blobs in (MemoryBlobStore(), LocalBlobStore(tmp_path)):
        blobs.put_if_absent("FORMAT", b"x")
        recording = RecordingBlobs(blobs)
        probe_conditional_put(recording, SystemEntropy())
        assert [info.key for info in blobs.list("")] == ["FORMAT"]
        assert len(recording.calls) <= 24
        touched = {call.key.partition("/")[0] for call in recording.calls}
        assert touched == {"probe"}


def test_every_probe_uses_keys_of_its_own() -> None:
    recording = RecordingBlobs(MemoryBlobStore())
    for _ in range(3):
        probe_conditional_put(recording, SystemEntropy())
    deleted = [call.key for call in recording.calls if call.method is Method.DELETE]
    assert len(set(deleted)) == len(deleted)


def test_a_repeated_put_is_no_sign_of_a_bad_store() -> None:
    """A library below may send a put twice and report the second answer."""
    lossy = LossyBlobs(
        MemoryBlobStore(),
        lambda call: Fault.REPEATED if call.method is Method.PUT else None,
    )
    probe_conditional_put(lossy, SystemEntropy())


def test_a_few_lost_answers_are_outlived_and_many_are_unknown() -> None:
    inner = MemoryBlobStore()
    probe_conditional_put(LossyBlobs(inner, {0: Fault.LOST_ANSWER}), SystemEntropy())
    with pytest.raises(UnknownOutcomeError):
        probe_conditional_put(LossyBlobs(inner, every(Fault.LOST_ANSWER, 1)), SystemEntropy())
