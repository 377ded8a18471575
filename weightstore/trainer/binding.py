"""Inputs under a schema: which tensor is which, what must be cast, what is missing.

A mapping is compared as a whole before anything is written; a stream is compared tensor
by tensor, and its put fails before anything becomes visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from weightstore.errors import DTypeRefusedError, SchemaMismatchError
from weightstore.layout.schema import Alias, Schema, schema_differences
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.trainer.benches import Bench
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.inputs import Inputs, InputTensor, MappedInputs

Missing: TypeAlias = Literal["refuse", "unchanged"]
_LISTED_COUNT = 50


@dataclass(frozen=True, slots=True, eq=False)
class BoundTensor:
    """An input and its place in the schema.

    Attributes:
        index: Of the tensor in the schema, for an alias that of its target.
        spec: As published.
        found: As given.
        repeats: The tensor's bits were already taken from another of its tied names, so
            this one is only compared.
    """

    index: int
    spec: TensorSpec
    found: InputTensor
    repeats: bool

    def read(self, first_unit: int, unit_count: int, bench: Bench) -> Units:
        """Published units of a flat range: a view where nothing is cast, else on the bench."""
        units = self.found.read(first_unit, unit_count)
        if self.found.spec.dtype is self.spec.dtype:
            return units
        return bench.cast(units, self.found.spec.dtype, self.spec.dtype)


@dataclass(frozen=True, slots=True)
class _Given:
    """What is remembered of a tensor that was given; never its memory."""

    spec: TensorSpec
    storage: tuple[object, ...] | None


class Binding:
    """Matches inputs with a schema, once; iterate `tensors`, then ask for `unmentioned`."""

    def __init__(
        self, schema: Schema, inputs: Inputs, casts: CastRules, *, missing: Missing = "refuse"
    ) -> None:
        self.schema = schema
        self.is_mapped = isinstance(inputs, MappedInputs)
        self._targets = {alias.name: alias.target for alias in schema.aliases}
        self._casts = casts
        self._missing = missing
        self._content: dict[int, _Given] = {}
        self._given: Iterable[InputTensor]
        if isinstance(inputs, MappedInputs):
            mapped = list(inputs.tensors.values())
            self._check(mapped)
            self._given = self._in_schema_order(mapped)
        else:
            self._given = inputs.tensors

    def tensors(self) -> Iterator[BoundTensor]:
        """The inputs: a mapping's in schema order, then its tied names; a stream's as they come.

        Raises:
            SchemaMismatchError: a stream's tensor does not fit, or at its end one is missing.
            DTypeRefusedError: a stream's tensor would need a cast that was not declared.
        """
        for found in self._given:
            if not self.is_mapped:
                self._check_one(found)
            index = self.schema.index_of(found.spec.name)
            first = self._content.get(index)
            if first is None:
                self._content[index] = _Given(found.spec, self._tie(found))
            elif first.storage is not None and first.storage == found.storage:
                continue
            yield BoundTensor(index, self.schema.tensors[index], found, first is not None)
        if not self.is_mapped and self.unmentioned() and self._missing == "refuse":
            self._refuse([given.spec for given in self._content.values()], complete=True)

    def unmentioned(self) -> tuple[int, ...]:
        """Schema indices that no input named; known once `tensors` is at its end."""
        return tuple(i for i in range(len(self.schema.tensors)) if i not in self._content)

    def _tie(self, found: InputTensor) -> tuple[object, ...] | None:
        # A stream's memory may be freed and used again, so its address says nothing.
        return found.storage if self.is_mapped and self._targets else None

    def _canonical(self, name: str) -> str:
        return self._targets.get(name, name)

    def _in_schema_order(self, given: list[InputTensor]) -> list[InputTensor]:
        """One name of each tensor in schema order, its own where given; then all tied ones."""
        index_of = self.schema.index_of
        ranked = sorted(
            given,
            key=lambda found: (index_of(found.spec.name), found.spec.name in self._targets),
        )
        firsts: dict[int, InputTensor] = {}
        for found in ranked:
            firsts.setdefault(index_of(found.spec.name), found)
        rest = [found for found in ranked if firsts[index_of(found.spec.name)] is not found]
        return [*firsts.values(), *rest]

    def _published(self, spec: TensorSpec) -> TensorSpec:
        dtype = self._casts.published(spec.name, spec.dtype)
        return spec if dtype is spec.dtype else TensorSpec(spec.name, dtype, spec.shape)

    def _fits(self, found: TensorSpec, expected: TensorSpec | None) -> bool:
        if expected is None or found.shape != expected.shape:
            return False
        return found.dtype is expected.dtype or self._published(found).dtype is expected.dtype

    def _lacks_cast(self, found: TensorSpec, expected: TensorSpec) -> bool:
        castable = self._casts.could_cast(found.dtype, expected.dtype)
        return castable and found.shape == expected.shape

    def _check(self, given: list[InputTensor]) -> None:
        specs = [found.spec for found in given]
        named = {self._canonical(spec.name) for spec in specs}
        fits = all(self._fits(spec, self._expected(spec.name)) for spec in specs)
        complete = self._missing == "unchanged" or len(named) == len(self.schema.tensors)
        if not (fits and complete):
            self._refuse(specs, complete=self._missing == "refuse")

    def _check_one(self, found: InputTensor) -> None:
        if not self._fits(found.spec, self._expected(found.spec.name)):
            self._refuse([found.spec], complete=False)

    def _expected(self, name: str) -> TensorSpec | None:
        if name not in self.schema:
            return None
        return self.schema.tensors[self.schema.index_of(name)]

    def _refuse(self, given: list[TensorSpec], *, complete: bool) -> None:
        """Raise the error that lists every difference.

        Args:
            given: Tensors as found.
            complete: Whether tensors that are not given count as missing.
        """
        undeclared: dict[str, tuple[TensorSpec, TensorSpec]] = {}
        found: dict[str, TensorSpec] = {} if complete else {s.name: s for s in self.schema.tensors}
        for spec in given:
            name = self._canonical(spec.name)
            expected = self._expected(name)
            if expected is not None and self._fits(spec, expected):
                found.setdefault(name, expected)
                continue
            found[name] = TensorSpec(name, self._published(spec).dtype, spec.shape)
            if expected is not None and self._lacks_cast(spec, expected):
                undeclared[name] = (spec, expected)
        schema = Schema.build(
            found.values(), aliases=self.schema.aliases, atomic_groups=self.schema.atomic_groups
        )
        differences = schema_differences(self.schema, schema)
        if undeclared and len(undeclared) == len(differences):
            raise _undeclared_casts(list(undeclared.values()))
        raise _mismatch(self.schema, [str(difference) for difference in differences])


def derive_schema(inputs: MappedInputs, casts: CastRules) -> Schema:
    """Schema of a first version: published dtypes after declared casts, tied names as aliases.

    Of names that are the same memory read the same way the least is stored.

    Raises:
        LimitError: a bound on names, shapes or counts is passed.
    """
    stored: dict[tuple[object, ...], str] = {}
    specs: list[TensorSpec] = []
    aliases: list[Alias] = []
    for name in sorted(inputs.tensors, key=lambda text: text.encode()):
        found = inputs.tensors[name]
        spec = TensorSpec(name, casts.published(name, found.spec.dtype), found.spec.shape)
        storage = found.storage
        tie = None if storage is None else (*storage, spec.dtype)
        if tie is not None and tie in stored:
            aliases.append(Alias(name, stored[tie]))
            continue
        if tie is not None:
            stored[tie] = name
        specs.append(spec)
    return Schema.build(specs, aliases=aliases)


def refuse_untied(bound: BoundTensor) -> SchemaMismatchError:
    """The error for tied names that were given with different bits."""
    alias, target = bound.found.spec.name, bound.spec.name
    return SchemaMismatchError(
        f"{alias!r} and {target!r} are tied in the schema, but hold different values",
        do="Tie them again, or put a full version with `new_schema=True`.",
        facts={"alias": alias, "tensor": target},
    )


def _undeclared_casts(undeclared: list[tuple[TensorSpec, TensorSpec]]) -> DTypeRefusedError:
    lines = [
        f"{found.name}: found {found.dtype.value}, expected {expected.dtype.value}"
        for found, expected in undeclared[:_LISTED_COUNT]
    ]
    target = undeclared[0][1].dtype.value.lower()
    return DTypeRefusedError(
        f"{len(undeclared)} tensors would need a cast that was not declared:\n  "
        + "\n  ".join(_shortened(lines, len(undeclared))),
        do=f'Open with `cast={{"*": "{target}"}}` to round to nearest even, or cast them first.',
        facts={"tensors": tuple(found.name for found, _ in undeclared[:_LISTED_COUNT])},
    )


def _mismatch(schema: Schema, lines: list[str]) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{len(lines)} differences from the schema {schema.id[:12]}:\n  "
        + "\n  ".join(_shortened(lines, len(lines))),
        do="Give the schema's tensors, or put a full version with `new_schema=True`"
        " (missing ones that did not change: `missing='unchanged'`).",
        facts={"differences": tuple(lines)},
    )


def _shortened(lines: list[str], count: int) -> list[str]:
    shown = lines[:_LISTED_COUNT]
    return shown if count <= len(shown) else [*shown, f"... and {count - len(shown)} more"]
