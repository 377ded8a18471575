"""One decoder of stored bytes as a fuzzer sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weightstore.testing.fuzz.mutating import Form


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """Something that takes stored bytes.

    Attributes:
        name: Unique.
        seeds: Good inputs, made by the real encoders.
        decode: Takes an input: returns if it is what it should be, raises a
            `WeightStoreError` if it is refused, and an `AssertionError` if what was decoded
            is not what the bytes say.
        form: Of the inputs.
        covers: Functions that are reached, as `module:qualified_name` below `weightstore.`
        share: How many inputs it gets; dear ones get fewer.
        is_hint: Whether nothing that stands there is an error.
    """

    name: str
    seeds: tuple[bytes, ...]
    decode: Callable[[bytes], None]
    form: Form
    covers: tuple[str, ...]
    share: float = 1.0
    is_hint: bool = False
