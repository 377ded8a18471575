"""Putting an attempt's own objects, whose names nobody else can use."""

from __future__ import annotations

import hashlib

from typing_extensions import Buffer

from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    CorruptObjectError,
)
from weightstore.format.objects import ObjectRef
from weightstore.ids import Sha256
from weightstore.storage.blobs import BlobStore

_TRY_COUNT = 4


def put_own(blobs: BlobStore, key: str, data: Buffer, *, durable: bool = True) -> ObjectRef:
    """Create an object under a key that holds a nonce of this attempt.

    Since nobody else writes the key, an answer that was lost is found by reading: the whole
    object is there, or it is sent again.

    After a crash: no object, or the whole object; nothing names it until a record does.
    Once this has returned, a durable one survives power loss.

    Raises:
        BlobOutcomeUnknownError: it could not be settled in a few tries, or it is there and
            could not be made durable.
        CorruptObjectError: the key holds other bytes.
    """
    view = memoryview(data).cast("B")
    for left in reversed(range(_TRY_COUNT)):
        try:
            blobs.put_if_absent(key, view, durable=durable)
        except (BlobOutcomeUnknownError, BlobExistsError):
            # A lost answer is not a lost write. (P11)
            if _is_there(blobs, key, view):
                if durable:
                    # What is found may still vanish with the power. (P6)
                    blobs.confirm_durable(key[: key.rfind("/") + 1])
                break
            if not left:
                raise
        else:
            break
    return ObjectRef(
        key=key, size_bytes=view.nbytes, sha256=Sha256(hashlib.sha256(view).hexdigest())
    )


def _is_there(blobs: BlobStore, key: str, data: memoryview) -> bool:
    try:
        found = blobs.get(key, max_size_bytes=data.nbytes)
    except BlobNotFoundError:
        return False
    if found != data:
        raise CorruptObjectError(
            f"{key} holds other bytes than this attempt has written",
            do="Check what else writes into the store's directory.",
            facts={"key": key},
        )
    return True
