"""A test of the one condition that commits rest on, made before the first write.

Some object stores, gateways and file systems accept a conditional put and ignore the
condition. On those two trainers would both believe to have committed.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from weightstore.clock import Entropy
from weightstore.errors import (
    BackendUnsuitableError,
    BlobExistsError,
    UnknownOutcomeError,
    WeightStoreError,
)
from weightstore.storage.blobs import BlobStore

PROBE_PREFIX = "probe/"
RACE_COUNT = 4
TRY_COUNT = 3
_SIZE_BYTES = 32


def probe_conditional_put(blobs: BlobStore, entropy: Entropy) -> None:
    """Refuse a store that lets a second writer of a key win.

    Puts a key twice, then lets two threads race for one. Nothing else is touched. Readers
    need none of this; a writer makes it once per store.

    After a crash: a small blob under `probe/` may stay; nothing reads it.

    Raises:
        BackendUnsuitableError: the condition is ignored.
        UnknownOutcomeError: no try got its answers.
    """
    for _ in range(TRY_COUNT - 1):
        with suppress(UnknownOutcomeError):
            _probe(blobs, entropy)
            return
    _probe(blobs, entropy)


def _probe(blobs: BlobStore, entropy: Entropy) -> None:
    key = PROBE_PREFIX + entropy.hex128()
    try:
        _put_twice(blobs, key)
    finally:
        _remove(blobs, key)
    for _ in range(RACE_COUNT):
        key = PROBE_PREFIX + entropy.hex128()
        try:
            _race(blobs, key)
        finally:
            _remove(blobs, key)


def _put_twice(blobs: BlobStore, key: str) -> None:
    first, second = b"first", b"second"
    with suppress(BlobExistsError):
        # Nobody else has this key: a library below has repeated a put that had landed.
        blobs.put_if_absent(key, first, durable=False)
    try:
        blobs.put_if_absent(key, second, durable=False)
    except BlobExistsError:
        pass
    else:
        raise _unsuitable(blobs, "a second put of a key succeeded")
    if blobs.get(key, max_size_bytes=_SIZE_BYTES) != first:
        raise _unsuitable(blobs, "a second put of a key was refused, and replaced the first")


def _race(blobs: BlobStore, key: str) -> None:
    bodies = (b"one", b"two")
    start = threading.Barrier(len(bodies))

    def is_first(body: bytes) -> bool:
        start.wait()
        try:
            blobs.put_if_absent(key, body, durable=False)
        except BlobExistsError:
            return False
        return True

    with ThreadPoolExecutor(len(bodies)) as pool:
        firsts = list(pool.map(is_first, bodies))
    if all(firsts):
        raise _unsuitable(blobs, "two writers of a key were both told that they were first")
    found = blobs.get(key, max_size_bytes=_SIZE_BYTES)
    if any(firsts) and found != bodies[firsts.index(True)]:
        raise _unsuitable(blobs, "the bytes of a key are not those of the writer who was first")


def _remove(blobs: BlobStore, key: str) -> None:
    with suppress(WeightStoreError):
        blobs.delete(key)


def _unsuitable(blobs: BlobStore, what: str) -> BackendUnsuitableError:
    return BackendUnsuitableError(
        f"{blobs.location} ignores the condition of a put: {what}",
        do="Use a storage with conditional writes; commits cannot be made safe on this one.",
        facts={"location": blobs.location},
    )
