"""Which casts the caller has declared: a lossy one that was not declared is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from weightstore.codec.cast import CASTS
from weightstore.errors import DTypeRefusedError
from weightstore.layout.dtypes import TORCH_NAMES, DType

_BY_NAME = {name: dtype for dtype, name in TORCH_NAMES.items()} | {
    "fp32": DType.F32,
    "fp16": DType.F16,
}


@dataclass(frozen=True, slots=True)
class CastRules:
    """Glob patterns on canonical names, each with the dtype to publish; the last match wins.

    Only floats are cast, and only to narrower ones: a rule for `*` leaves integers, bools,
    quantised types and what is narrow already as they are.
    """

    rules: tuple[tuple[str, DType], ...] = ()

    @classmethod
    def parse(cls, cast: Mapping[str, str]) -> Self:
        """Read rules like `{"*": "bf16", "*.router.*": "float32"}`.

        Raises:
            DTypeRefusedError: a name is no dtype, or no cast to it exists.
        """
        return cls(tuple((pattern, _target(text)) for pattern, text in cast.items()))

    def published(self, name: str, found: DType) -> DType:
        """The dtype under which a tensor that was given as `found` is published."""
        for pattern, target in reversed(self.rules):
            if fnmatchcase(name, pattern):
                return target if (found, target) in CASTS else found
        return found

    @staticmethod
    def could_cast(found: DType, expected: DType) -> bool:
        """Whether a rule could turn one dtype into the other."""
        return (found, expected) in CASTS


def _target(text: str) -> DType:
    dtype = _BY_NAME.get(text) or DType.parse(text.upper())
    targets = sorted({target.value for _, target in CASTS})
    if dtype.value not in targets:
        raise DTypeRefusedError(
            f"there is no cast to {dtype.value}",
            do=f"Cast to {', '.join(targets)}, or give the tensors in the published dtype.",
            facts={"dtype": dtype.value},
        )
    return dtype
