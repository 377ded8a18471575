"""The schema of a version: which tensors it has, which names are tied, what belongs together.

The order of `Schema.tensors` is the order of everything binary: digest tables, piece
indices and bundles name a tensor by its index there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import (
    CorruptObjectError,
    LimitError,
    NameRefusedError,
    RefusedError,
)
from weightstore.ids import Sha256
from weightstore.layout.bundles import Bundle, plan_bundles
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import TensorSpec, check_tensor_name
from weightstore.settings import Limits

SCHEMA_FORMAT = 1
GROUP_SIZE_MIN = 2


@dataclass(frozen=True, slots=True, order=True)
class Alias:
    """A name that shares storage with a stored tensor.

    Attributes:
        name: The tied name; greater than `target`, since the least name is stored.
        target: Name of a tensor of the schema.
    """

    name: str
    target: str


@dataclass(frozen=True, eq=False)
class Schema:
    """Tensors, aliases and atomic groups; equal when their canonical bytes are.

    Use `Schema.build`, which sorts; the constructor refuses what is not sorted.

    Attributes:
        tensors: Sorted by the UTF-8 bytes of their names.
        aliases: Sorted by name.
        atomic_groups: Names that change together (a weight with its scales); each group
            sorted and of two or more, groups disjoint and sorted.

    Raises:
        NameRefusedError: a name twice, an alias or group of a tensor that is not there.
        RefusedError: not in order.
        LimitError: too many tensors.
    """

    tensors: tuple[TensorSpec, ...]
    aliases: tuple[Alias, ...] = ()
    atomic_groups: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.tensors) + len(self.aliases) > Limits().tensor_count:
            raise LimitError(
                f"{len(self.tensors)} tensors and {len(self.aliases)} aliases are above"
                f" {Limits().tensor_count}",
                do="Merge small tensors.",
            )
        _check_rising([spec.name for spec in self.tensors], "tensor")
        _check_rising([alias.name for alias in self.aliases], "alias")
        for alias in self.aliases:
            self._check_alias(alias)
        self._check_groups()

    @classmethod
    def build(
        cls,
        specs: Iterable[TensorSpec],
        *,
        aliases: Iterable[Alias] = (),
        atomic_groups: Iterable[Iterable[str]] = (),
    ) -> Schema:
        """Sort and check.

        Raises:
            NameRefusedError: a name twice, an alias or group of a tensor that is not there.
            LimitError: too many tensors.
        """
        groups = sorted(tuple(sorted(group)) for group in atomic_groups)
        return cls(
            # Code points sort as their UTF-8 bytes do, lone surrogates apart (refused).
            tensors=tuple(sorted(specs, key=lambda spec: spec.name)),
            aliases=tuple(sorted(aliases)),
            atomic_groups=tuple(groups),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @cached_property
    def id(self) -> Sha256:
        """SHA-256 of the canonical bytes."""
        return Sha256(hashlib.sha256(self._bytes).hexdigest())

    @cached_property
    def unit_counts(self) -> NDArray[np.int64]:
        """Units of each tensor; int64, read-only."""
        return _frozen(np.array([spec.unit_count for spec in self.tensors], np.int64))

    @cached_property
    def unit_sizes_bytes(self) -> NDArray[np.uint8]:
        """Bytes of one unit of each tensor; uint8, read-only."""
        return _frozen(np.array([spec.dtype.unit_size_bytes for spec in self.tensors], np.uint8))

    @property
    def unit_count(self) -> int:
        """Units of all tensors together; aliases count nothing."""
        return sum(spec.unit_count for spec in self.tensors)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors together; aliases count nothing."""
        return sum(spec.size_bytes for spec in self.tensors)

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """The bundles of small tensors; a function of the schema alone."""
        return plan_bundles(self.tensors)

    def index_of(self, name: str) -> int:
        """Index of a tensor by its name, or by the name of an alias of it.

        Raises:
            NameRefusedError: the schema has no such name.
        """
        index = self._indices.get(name)
        if index is None:
            raise NameRefusedError(
                f"the schema has no tensor {name!r}",
                do="Compare the names with those of the schema.",
                facts={"tensor": name},
            )
        return index

    def __contains__(self, name: object) -> bool:
        return name in self._indices

    def to_bytes(self) -> bytes:
        """Canonical JSON: the bytes that `id` is the hash of and that are stored."""
        return self._bytes

    @classmethod
    def from_bytes(cls, data: bytes, *, limits: Limits | None = None) -> Schema:
        """Parse stored bytes.

        Raises:
            CorruptObjectError: too large, not canonical, or no valid schema.
        """
        size_max_bytes = (limits or Limits()).schema_size_bytes
        if len(data) > size_max_bytes:
            raise CorruptObjectError(f"a schema of {len(data)} bytes is above {size_max_bytes}")
        try:
            value = json.loads(data.decode("utf-8"), parse_float=_refuse, parse_constant=_refuse)
            found = _parse(value)
        except (ValueError, RecursionError) as error:
            raise CorruptObjectError(f"schema is malformed: {error}") from error
        except RefusedError as error:
            raise CorruptObjectError(f"schema is malformed: {error.message}") from error
        if found.to_bytes() != data:
            raise CorruptObjectError("schema is JSON, but not in canonical form")
        return found

    @cached_property
    def _bytes(self) -> bytes:
        value = {
            "aliases": [[alias.name, alias.target] for alias in self.aliases],
            "atomic_groups": self.atomic_groups,
            "format": SCHEMA_FORMAT,
            "tensors": [[spec.name, spec.dtype.value, spec.shape] for spec in self.tensors],
        }
        # Canonical as in format.canonical, which this layer lies below.
        return json.dumps(
            value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode("utf-8")

    @cached_property
    def _indices(self) -> dict[str, int]:
        found = {spec.name: index for index, spec in enumerate(self.tensors)}
        found.update((alias.name, found[alias.target]) for alias in self.aliases)
        return found

    def _check_alias(self, alias: Alias) -> None:
        check_tensor_name(alias.name)
        names = self._tensor_names
        if alias.name in names:
            raise _refused(f"{alias.name!r} is both a tensor and an alias", alias.name)
        if alias.target not in names:
            raise _refused(f"alias {alias.name!r} is of the missing {alias.target!r}", alias.name)
        if alias.name < alias.target:
            raise _refused(
                f"alias {alias.name!r} is less than its target {alias.target!r}; of tied names"
                " the least is stored",
                alias.name,
            )

    def _check_groups(self) -> None:
        seen: set[str] = set()
        for group in self.atomic_groups:
            _check_rising(group, "member of an atomic group")
            if len(group) < GROUP_SIZE_MIN:
                raise _refused(f"atomic group {group} has fewer than two members", "")
            for name in group:
                if name in seen or name not in self._tensor_names:
                    raise _refused(
                        f"{name!r} is in two atomic groups, or no tensor of the schema", name
                    )
            seen.update(group)
        _check_rising([group[0] for group in self.atomic_groups], "atomic group")

    @cached_property
    def _tensor_names(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.tensors)


def bundle_plan(schema: Schema) -> tuple[Bundle, ...]:
    """The bundles of a schema's small tensors, in the order that piece indices number them."""
    return schema.bundles


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which two schemas differ.

    Attributes:
        name: Tensor, alias or first member of an atomic group.
        what: `"tensor"`, `"dtype"`, `"shape"`, `"alias"` or `"atomic group"`.
        expected: As the expected schema has it; None where it has nothing.
        found: As the other one has it; None where it has nothing.
    """

    name: str
    what: str
    expected: str | None
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.what} {self.name!r} is missing (expected {self.expected})"
        if self.expected is None:
            return f"{self.what} {self.name!r} is not in the schema (found {self.found})"
        return f"{self.what} of {self.name!r}: expected {self.expected}, found {self.found}"


def schema_differences(expected: Schema, found: Schema) -> tuple[Difference, ...]:
    """Every tensor, dtype, shape, alias and atomic group that differs, sorted by name."""
    return tuple(sorted(_differences(expected, found), key=lambda one: (one.name, one.what)))


def _differences(expected: Schema, found: Schema) -> Iterator[Difference]:
    old = {spec.name: spec for spec in expected.tensors}
    new = {spec.name: spec for spec in found.tensors}
    for name in old.keys() | new.keys():
        yield from _tensor_differences(name, old.get(name), new.get(name))
    yield from _named_differences(
        "alias",
        {alias.name: f"an alias of {alias.target!r}" for alias in expected.aliases},
        {alias.name: f"an alias of {alias.target!r}" for alias in found.aliases},
    )
    yield from _named_differences(
        "atomic group",
        {group[0]: str(group) for group in expected.atomic_groups},
        {group[0]: str(group) for group in found.atomic_groups},
    )


def _tensor_differences(
    name: str, old: TensorSpec | None, new: TensorSpec | None
) -> Iterator[Difference]:
    if old is None or new is None:
        yield Difference(name, "tensor", _shown(old), _shown(new))
        return
    if old.dtype is not new.dtype:
        yield Difference(name, "dtype", old.dtype.value, new.dtype.value)
    if old.shape != new.shape:
        yield Difference(name, "shape", str(old.shape), str(new.shape))


def _named_differences(what: str, old: dict[str, str], new: dict[str, str]) -> Iterator[Difference]:
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            yield Difference(name, what, old.get(name), new.get(name))


def _shown(spec: TensorSpec | None) -> str | None:
    return None if spec is None else f"{spec.dtype.value} {spec.shape}"


def _parse(value: Any) -> Schema:  # noqa: ANN401 -- any JSON
    if not isinstance(value, dict) or value.keys() != {
        "aliases",
        "atomic_groups",
        "format",
        "tensors",
    }:
        raise ValueError("not an object of aliases, atomic_groups, format and tensors")
    if value["format"] != SCHEMA_FORMAT or type(value["format"]) is not int:
        raise ValueError(f"schema format {value['format']!r} is unknown")
    tensors = _list(value["tensors"])
    if len(tensors) > Limits().tensor_count:
        raise ValueError(f"{len(tensors)} tensors are above {Limits().tensor_count}")
    return Schema(
        tensors=tuple(map(_parse_tensor, tensors)),
        aliases=tuple(Alias(*_names(pair, 2)) for pair in _list(value["aliases"])),
        atomic_groups=tuple(_names(group) for group in _list(value["atomic_groups"])),
    )


def _parse_tensor(value: Any) -> TensorSpec:  # noqa: ANN401 -- any JSON
    if not (
        isinstance(value, list)
        and len(value) == 3  # noqa: PLR2004 -- name, dtype, shape
        and isinstance(value[0], str)
        and isinstance(value[1], str)
        and isinstance(value[2], list)
    ):
        raise ValueError("a tensor is not [name, dtype, shape]")
    return TensorSpec(value[0], DType.parse(value[1]), tuple(value[2]))


def _names(value: Any, count: int | None = None) -> tuple[str, ...]:  # noqa: ANN401 -- any JSON
    names = _list(value)
    if not all(isinstance(name, str) for name in names) or count not in {None, len(names)}:
        raise ValueError(f"expected {count or 'some'} names")
    return tuple(names)


def _list(value: Any) -> list[Any]:  # noqa: ANN401 -- any JSON
    if not isinstance(value, list):
        raise ValueError("expected a list")  # noqa: TRY004 -- becomes CorruptObjectError
    return value


def _check_rising(names: Sequence[str], what: str) -> None:
    for before, name in pairwise(names):
        if before == name:
            raise _refused(f"{what} {name!r} is given twice", name)
        if before > name:
            raise RefusedError(
                f"{what} {name!r} is out of order", do="Use Schema.build.", facts={"tensor": name}
            )


def _refused(message: str, name: str) -> NameRefusedError:
    return NameRefusedError(message, do="Give each name one place.", facts={"tensor": name})


def _refuse(text: str) -> object:
    raise ValueError(f"number {text} is not an integer")


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
