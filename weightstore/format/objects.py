"""References from one stored object to another, and parsing what they lead to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import CanonicalModel, ModelT, decode_model, encode_model
from weightstore.format.records import MAX_INTEGER
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


def decode_stored(kind: type[ModelT], data: bytes, *, what: str) -> ModelT:
    """Parse an object's bytes into a model that says no more and no less than they do.

    Raises:
        CorruptObjectError: not canonical, not of this model, or a field is not there that
            the model would fill in.
    """
    model = decode_model(kind, data, what=what)
    if encode_model(model) != data:
        raise CorruptObjectError(f"{what} leaves out a field, or has one in another form")
    return model
