"""Damage to bytes, the same for the same seed: bit flips, splices, wrong lengths, hostile JSON."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np

SIZE_FIELD_BYTES = 8
MUTATION_COUNT_MAX = 4
GROWN_SIZE_BYTES_MAX = 1 << 20
"""No input is grown beyond this by repeating parts of itself."""

DEEP = "\u2063deep\u2063"
"""Stands for a deeply nested value until the text is written."""
DEPTHS = (3, 60, 190, 210, 990, 5_000, 100_000)

NUMBERS = (
    *(-1, 0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 65_535, 65_536, 8_388_608, 8_388_609),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 - 1, 2**53, 2**62, 2**63 - 1, 2**63),
    *(2**64 - 1, 2**64, 10**30, -(10**30), -(2**63)),
)
JUNK: tuple[Any, ...] = (
    *(None, True, False, "", " ", "0", "..", "../../x", "/etc/passwd", "x" * 2_000, "a\nb"),
    *("\0", "\ud800", "\udfff\ud800", "e\u0301", "\u2028", "\U0010ffff", "$(reboot)", "__class__"),
    *([], {}, [[]], [None], {"": 0}, [0] * 300, DEEP, 1.5, 1e308, -0.0),
    *(float("nan"), float("inf"), float("-inf"), "9" * 5_000),
)


_Choice = TypeVar("_Choice")


class Form(enum.Enum):
    """What inputs look like, and so which damage goes deepest."""

    BYTES = "bytes"
    JSON = "json"
    SAFETENSORS = "safetensors"
    """The size of a JSON header in 8 bytes, the header, and data."""


class Mutator:
    """Damages one input after the other.

    Args:
        seed: The same numbers give the same damage.
    """

    def __init__(self, *seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def mutate(self, data: bytes, others: Sequence[bytes], form: Form) -> bytes:
        """An input with one to four kinds of damage.

        Args:
            data: A good input.
            others: Good inputs to take parts from.
            form: Of all of them.
        """
        if form is Form.JSON and self._chance(0.7):
            return self._mutate_json(data)
        if form is Form.SAFETENSORS and self._chance(0.7):
            return self._mutate_header(data)
        for _ in range(1 + self._below(MUTATION_COUNT_MAX)):
            data = self._pick(_DAMAGE)(self, data, others)
        return data

    # --- Any bytes ----------------------------------------------------------------------

    def _flip_bits(self, data: bytes, _: Sequence[bytes]) -> bytes:
        changed = bytearray(data)
        for _count in range(1 + self._below(3)):
            if changed:
                changed[self._below(len(changed))] ^= 1 << self._below(8)
        return bytes(changed)

    def _set_byte(self, data: bytes, _: Sequence[bytes]) -> bytes:
        changed = bytearray(data)
        if changed:
            changed[self._below(len(changed))] = self._pick((0, 1, 0x7F, 0x80, 0xFE, 0xFF, 34, 92))
        return bytes(changed)

    def _truncate(self, data: bytes, _: Sequence[bytes]) -> bytes:
        keep = self._below(len(data) + 1)
        return data[:keep] if self._chance(0.5) else data[: max(0, len(data) - self._below(9))]

    def _extend(self, data: bytes, _: Sequence[bytes]) -> bytes:
        tail = self._random.bytes(1 + self._below(16))
        return data + (tail if self._chance(0.5) else bytes(len(tail)))

    def _remove(self, data: bytes, _: Sequence[bytes]) -> bytes:
        start, end = self._range(data)
        return data[:start] + data[end:]

    def _repeat(self, data: bytes, _: Sequence[bytes]) -> bytes:
        start, end = self._range(data)
        count = 1 + self._below(3)
        if len(data) + count * (end - start) > GROWN_SIZE_BYTES_MAX:
            return data
        return data[:end] + data[start:end] * count + data[end:]

    def _zero(self, data: bytes, _: Sequence[bytes]) -> bytes:
        start, end = self._range(data)
        return data[:start] + self._pick((b"\0", b"\xff")) * (end - start) + data[end:]

    def _move(self, data: bytes, _: Sequence[bytes]) -> bytes:
        start, end = self._range(data)
        rest = data[:start] + data[end:]
        place = self._below(len(rest) + 1)
        return rest[:place] + data[start:end] + rest[place:]

    def _splice(self, data: bytes, others: Sequence[bytes]) -> bytes:
        other = self._pick(others)
        start, end = self._range(other)
        if self._chance(0.5):
            return data[:start] + other[start:end] + data[end:]
        place = self._below(len(data) + 1)
        return data[:place] + other[place:]

    def _write_number(self, data: bytes, _: Sequence[bytes]) -> bytes:
        """Write a hostile number where a length, count or offset may stand."""
        width = self._pick((1, 2, 4, 8))
        if len(data) < width:
            return data
        place = self._below(len(data) - width + 1)
        if self._chance(0.8):
            place -= place % width
        near = int.from_bytes(data[place : place + width], "little")
        number = self._pick(
            (*NUMBERS, near - 1, near + 1, near * 2, near + 2**31, len(data), len(data) - 8)
        )
        field = (number % (1 << (8 * width))).to_bytes(width, "little")
        return data[:place] + field + data[place + width :]

    # --- JSON ---------------------------------------------------------------------------

    def _mutate_header(self, data: bytes) -> bytes:
        """Hostile JSON behind a size that is right, mostly."""
        size = int.from_bytes(data[:SIZE_FIELD_BYTES], "little")
        header = self._mutate_json(data[SIZE_FIELD_BYTES : SIZE_FIELD_BYTES + size])
        said = len(header) if self._chance(0.9) else self._pick(NUMBERS) % 2**64
        rest = data[SIZE_FIELD_BYTES + size :]
        if self._chance(0.2):
            rest = rest[: self._below(len(rest) + 1)] + bytes(self._below(64))
        return said.to_bytes(SIZE_FIELD_BYTES, "little") + header + rest

    def _mutate_json(self, data: bytes) -> bytes:
        try:
            value: Any = json.loads(data)
        except ValueError:
            return self._flip_bits(data, ())
        for _ in range(1 + self._below(2)):
            value = self._changed_value(value)
        return self._written(value)

    def _changed_value(self, value: Any) -> Any:  # noqa: ANN401 -- any JSON
        """The value with one place of it changed."""
        places = [(None, None), *_places(value)]
        owner, key = places[self._below(len(places))] if self._chance(0.97) else places[0]
        if owner is None:
            return self._junk(value) if self._chance(0.1) else value
        match self._below(6):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[self._pick(("", "unknown", "kind", "\u00e9", "__metadata__"))] = self._junk(0)
            case 2:
                other, there = self._pick(places[1:])
                owner[key] = deepcopy(other[there])
            case 3 if isinstance(owner, list):
                owner.insert(self._below(len(owner) + 1), deepcopy(owner[key]))
            case _:
                owner[key] = self._junk(owner[key])
        return value

    def _junk(self, near: Any) -> Any:  # noqa: ANN401 -- any JSON
        """A hostile value, or one that is only a little off."""
        if isinstance(near, int) and self._chance(0.6):
            return self._pick(
                (*NUMBERS, near - 1, near + 1, near * 2, -near, float(near), str(near))
            )
        if isinstance(near, str) and self._chance(0.4):
            place = self._below(len(near) + 1)
            return self._pick(
                (near[:place], near + near, near.upper(), near + "\n", near[:place] + "\0", [near])
            )
        return deepcopy(self._pick(JUNK)) if self._chance(0.7) else self._pick(NUMBERS)

    def _written(self, value: Any) -> bytes:  # noqa: ANN401 -- any JSON
        """Canonical text mostly, and sometimes text that only means the same."""
        is_odd = self._chance(0.15)
        text = json.dumps(
            value,
            ensure_ascii=is_odd and self._chance(0.5),
            sort_keys=not is_odd or self._chance(0.5),
            separators=(", ", ": ") if is_odd and self._chance(0.3) else (",", ":"),
        )
        if DEEP in text or "\\u2063" in text:
            depth = self._pick(DEPTHS)
            nest = ("[" * depth + "]" * depth, '{"a":' * depth + "0" + "}" * depth)
            text = text.replace(json.dumps(DEEP, ensure_ascii=False), self._pick(nest))
        if self._chance(0.1):
            text = self._with_repeated_key(text)
        return text.encode("utf-8", "surrogatepass")

    def _with_repeated_key(self, text: str) -> str:
        start = text.find("{")
        comma = text.find(",", start)
        if start < 0 or comma < 0:
            return text
        return text[: comma + 1] + text[start + 1 : comma + 1] + text[comma + 1 :]

    # --- Chance -------------------------------------------------------------------------

    def _below(self, count: int) -> int:
        return int(self._random.integers(0, count))

    def _chance(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def _pick(self, choices: Sequence[_Choice]) -> _Choice:
        return choices[self._below(len(choices))]

    def _range(self, data: bytes) -> tuple[int, int]:
        """Part of some bytes, mostly a small one."""
        start = self._below(len(data) + 1)
        longest = len(data) - start if self._chance(0.3) else min(32, len(data) - start)
        return start, start + self._below(longest + 1)


def _places(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 -- any JSON
    """Owner and key of every value inside a value."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        owner = pending.pop()
        keys: Sequence[Any] = ()
        if isinstance(owner, dict):
            keys = list(owner)
        elif isinstance(owner, list):
            keys = range(len(owner))
        for key in keys:
            found.append((owner, key))
            pending.append(owner[key])
    return found


_DAMAGE: tuple[Callable[[Mutator, bytes, Sequence[bytes]], bytes], ...] = (
    Mutator._flip_bits,  # noqa: SLF001 -- the table of its own methods
    Mutator._set_byte,  # noqa: SLF001 -- ditto
    Mutator._truncate,  # noqa: SLF001 -- ditto
    Mutator._extend,  # noqa: SLF001 -- ditto
    Mutator._remove,  # noqa: SLF001 -- ditto
    Mutator._repeat,  # noqa: SLF001 -- ditto
    Mutator._zero,  # noqa: SLF001 -- ditto
    Mutator._move,  # noqa: SLF001 -- ditto
    Mutator._splice,  # noqa: SLF001 -- ditto
    Mutator._write_number,  # noqa: SLF001 -- ditto
    Mutator._write_number,  # noqa: SLF001 -- ditto; lengths matter most
)
