"""Putting an attempt's own objects, whose names nobody else can use."""

from __future__ import annotations

import hashlib

from typing_extensions import Buffer

from weightstore.format.objects import ObjectRef
from weightstore.history.settle import put_settled
from weightstore.ids import Sha256
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore


def put_own(
    blobs: BlobStore, key: str, data: Buffer, limits: Limits, *, durable: bool = True
) -> ObjectRef:
    """Create an object under a key that holds a nonce of this attempt.

    After a crash: no object, or the whole object; nothing names it until a record does.
    Once this has returned, a durable one survives power loss.

    Raises:
        BlobExistsError: the key holds other bytes; nothing was written.
        BlobOutcomeUnknownError: it could not be settled in `limits.put_try_count` tries, or
            it is there and could not be made durable.
    """
    view = memoryview(data).cast("B")

    def put() -> None:
        blobs.put_if_absent(key, view, durable=durable)

    put_settled(blobs, key, put, lambda: [view], try_count=limits.put_try_count, durable=durable)
    return ObjectRef(
        key=key, size_bytes=view.nbytes, sha256=Sha256(hashlib.sha256(view).hexdigest())
    )
