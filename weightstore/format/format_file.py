"""The `FORMAT` object: how a place is known to hold a store, and of which format."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from weightstore.errors import CorruptObjectError, NotAStoreError, UpgradeRequiredError
from weightstore.format.canonical import (
    MAX_INTEGER,
    CanonicalModel,
    decode_json,
    decode_model,
    encode_model,
)
from weightstore.format.records import FORMAT_NUMBER
from weightstore.ids import HEX128_PATTERN, StoreId

FORMAT_MAGIC: Literal["weightstore"] = "weightstore"


class FormatFile(CanonicalModel):
    """Written once, when a store is made.

    Attributes:
        magic: Always `"weightstore"`.
        format: Format that the store began with; the log says which one it has now.
        store_id: Nonce of the store.
    """

    magic: Literal["weightstore"] = FORMAT_MAGIC
    format: Annotated[int, Field(ge=1, le=MAX_INTEGER)] = FORMAT_NUMBER
    store_id: Annotated[StoreId, Field(pattern=HEX128_PATTERN)]


def encode_format_file(file: FormatFile) -> bytes:
    """Canonical bytes of the object."""
    return encode_model(file)


def decode_format_file(data: bytes, *, location: str) -> FormatFile:
    """Parse the object.

    Args:
        data: Stored bytes.
        location: Where the store is, for messages.

    Raises:
        NotAStoreError: the bytes are of something else, or damaged.
        UpgradeRequiredError: the store has a newer format.
    """
    try:
        value = decode_json(data, what="FORMAT")
        if isinstance(value, dict) and value.get("magic") == FORMAT_MAGIC:
            _check_format(value.get("format"), location)
        return decode_model(FormatFile, data, what="FORMAT")
    except CorruptObjectError as error:
        raise NotAStoreError(
            f"{location} is no weightstore: {error.message}",
            do="Give the directory of a store, or make one with `weightstore init`.",
            facts={"location": location},
        ) from error


def _check_format(number: object, location: str) -> None:
    if type(number) is int and number > FORMAT_NUMBER:
        raise UpgradeRequiredError(
            f"{location} has format {number}, this release knows {FORMAT_NUMBER}",
            do="Upgrade weightstore on this machine.",
            facts={"location": location, "expected": FORMAT_NUMBER, "found": number},
        )
