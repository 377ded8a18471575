"""Canonical JSON: UTF-8, sorted keys, no spaces, integers only.

One value has one byte string. Bytes that are not the canonical form of what they parse
to are refused, so hashes over stored bytes and comparisons of values never disagree.
"""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from weightstore.errors import CorruptObjectError

Json = None | bool | int | str | list["Json"] | dict[str, "Json"]


class CanonicalModel(BaseModel):
    """A strict, frozen value that is stored as canonical JSON.

    Unknown fields of a known feature level are kept: they survive parsing and writing.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


ModelT = TypeVar("ModelT", bound=CanonicalModel)


def encode_json(value: object) -> bytes:
    """Canonical bytes of a JSON value without floats."""
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode("utf-8")


def encode_model(model: CanonicalModel) -> bytes:
    """Canonical bytes of a model."""
    return encode_json(model.model_dump(mode="json"))


def decode_json(data: bytes, *, what: str) -> Json:
    """Parse canonical JSON.

    Raises:
        CorruptObjectError: not JSON, a float or a repeated key in it, or not canonical.
    """
    try:
        value: Json = json.loads(
            data.decode("utf-8", errors="strict"),
            parse_float=_refuse_float,
            parse_constant=_refuse_float,
        )
        again = encode_json(value)
    except (ValueError, RecursionError) as error:
        raise CorruptObjectError(f"{what} is not canonical JSON: {error}") from error
    if again != data:
        raise CorruptObjectError(f"{what} is JSON, but not in canonical form")
    return value


def decode_model(kind: type[ModelT], data: bytes, *, what: str) -> ModelT:
    """Parse canonical JSON into a model.

    Raises:
        CorruptObjectError: not canonical, or not of this model.
    """
    decode_json(data, what=what)
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorruptObjectError(f"{what} is malformed at {place!r}: {first['msg']}") from error


def _refuse_float(text: str) -> Json:
    raise ValueError(f"number {text} is not an integer")
