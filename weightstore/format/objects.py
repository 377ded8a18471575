"""References from one stored object to another."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from weightstore.format.canonical import MAX_INTEGER, CanonicalModel
from weightstore.ids import SHA256_PATTERN, Sha256

KEY_LENGTH_MAX = 1024


class ObjectRef(CanonicalModel):
    """A stored object by key, size and hash.

    Attributes:
        key: Where it is; its owner checks that a key of its kind stands here.
        size_bytes: Of the stored bytes.
        sha256: Over the stored bytes.
    """

    key: Annotated[str, Field(min_length=1, max_length=KEY_LENGTH_MAX)]
    size_bytes: Annotated[int, Field(ge=0, le=MAX_INTEGER)]
    sha256: Annotated[Sha256, Field(pattern=SHA256_PATTERN)]
