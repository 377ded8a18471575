"""Canonical JSON: UTF-8, sorted keys, no spaces, integers only.

One value has one byte string. Bytes that are not the canonical form of what they parse
to are refused, so hashes over stored bytes and comparisons of values never disagree.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from weightstore.errors import CorruptObjectError

MAX_INTEGER = 2**53 - 1
"""Largest integer of stored JSON: every reader of JSON has all integers up to here."""

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
        CorruptObjectError: not JSON, a float, a large integer or a repeated key in it, or not
            canonical.
    """
    value = _parse(data, what)
    _check_form(value, data, what)
    return value


def decode_model(kind: type[ModelT], data: bytes, *, what: str) -> ModelT:
    """Parse stored bytes into a model that says no more and no less than they do.

    Raises:
        CorruptObjectError: not canonical, not of this model, or not what the model would be
            stored as: a field that the model would fill in is not there, or one is of
            another type (`true` for 1).
    """
    return decode_validated(kind.model_validate_json, data, what=what)


def decode_validated(validate: Callable[[bytes], ModelT], data: bytes, *, what: str) -> ModelT:
    """`decode_model` for whatever turns JSON into a model: a union of models, say.

    Raises:
        CorruptObjectError: as `decode_model`.
    """
    value = _parse(data, what)
    try:
        model = validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorruptObjectError(f"{what} is malformed at {place!r}: {first['msg']}") from error
    # One comparison proves the form of the JSON and that the model is what was stored.
    if encode_model(model) == data:
        return model
    _check_form(value, data, what)
    raise CorruptObjectError(f"{what} leaves out a field, or has one in another form")


def _parse(data: bytes, what: str) -> Json:
    try:
        value: Json = json.loads(
            data.decode("utf-8", errors="strict"),
            parse_float=_refuse_float,
            parse_constant=_refuse_float,
            parse_int=_bounded_integer,
        )
    except (ValueError, RecursionError) as error:
        raise CorruptObjectError(f"{what} is not canonical JSON: {error}") from error
    return value


def _check_form(value: Json, data: bytes, what: str) -> None:
    try:
        again = encode_json(value)
    except (ValueError, RecursionError) as error:
        raise CorruptObjectError(f"{what} is not canonical JSON: {error}") from error
    if again != data:
        raise CorruptObjectError(f"{what} is JSON, but not in canonical form")


def _bounded_integer(text: str) -> Json:
    # The digits are counted first: turning very many of them into a number takes long.
    if len(text) <= len(str(-MAX_INTEGER)) and abs(number := int(text)) <= MAX_INTEGER:
        return number
    raise ValueError(f"an integer beyond {MAX_INTEGER}")


def _refuse_float(text: str) -> Json:
    raise ValueError(f"number {text} is not an integer")
