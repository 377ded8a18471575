"""Putting an object under a name that one attempt alone writes, until its outcome is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from typing_extensions import Buffer

from weightstore.errors import BlobExistsError, BlobNotFoundError, BlobOutcomeUnknownError
from weightstore.storage.blobs import BlobStore
from weightstore.storage.buffers import byte_view

Chunks = Callable[[], Iterable[Buffer]]
"""Starts the bytes of an object anew."""


def put_settled(
    blobs: BlobStore,
    key: str,
    put: Callable[[], None],
    chunks: Chunks,
    *,
    try_count: int,
    durable: bool = True,
) -> bool:
    """Run a put of a key that only this attempt writes until it is known to have landed.

    A lost answer is not a lost write, and what is below may have sent a request twice: the
    stored bytes say what happened. (P11)

    Other bytes under the key are a conflict and no damage: no record names them, so no
    reader is concerned. They are there because the name was used before (by an earlier
    process of the same session, say) or because somebody else writes into the store. What
    helps is another name, and the next attempt has one.

    After a crash: no blob, or the whole blob.

    Args:
        blobs: The store.
        key: What is put.
        put: Puts it.
        chunks: The bytes that it must hold.
        try_count: How often it is put, at least once.
        durable: Whether it must survive power loss: what is found is then synced before it
            counts. (P6)

    Returns:
        Whether the last try itself was answered with success.

    Raises:
        BlobExistsError: the key holds other bytes; nothing was written.
        BlobOutcomeUnknownError: it could not be settled in so many tries, or what was found
            could not be synced.
    """
    for left in reversed(range(try_count)):
        try:
            put()
        except (BlobExistsError, BlobOutcomeUnknownError) as error:
            found = _holds(blobs, key, chunks)
            if found:
                if durable:
                    # The try that wrote it may not have come to its fsync of the name.
                    blobs.confirm_durable(key[: key.rfind("/") + 1])
                return False
            if found is None and left:
                continue
            if found is None:
                raise
            raise BlobExistsError(
                f"{key} holds other bytes, although its name belongs to this attempt alone",
                do="Put again: the next attempt has names of its own.",
                facts={"key": key},
            ) from error
        else:
            return True
    raise AssertionError("the last try returns or raises")


def _holds(blobs: BlobStore, key: str, chunks: Chunks) -> bool | None:
    """Whether a blob has exactly these bytes; None if there is no blob."""
    try:
        size_bytes = blobs.size(key)
    except BlobNotFoundError:
        return None
    offset = 0
    for chunk in chunks():
        expected = byte_view(chunk)
        found = bytearray(min(expected.nbytes, size_bytes - offset))
        blobs.read_into(key, offset, found)
        if found != expected:
            return False
        offset += expected.nbytes
    return offset == size_bytes
