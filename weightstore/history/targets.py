"""Where a checkout writes: memory of its own, or arrays that the caller holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError, SchemaMismatchError
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units

Target = Units | HostTensor
"""A caller's array: bare units, or units that say which dtype and shape they are."""

ALIGNMENT_BYTES = 64
_LISTED_COUNT = 50


@dataclass(frozen=True, slots=True, eq=False)
class Slab:
    """One allocation for all tensors.

    Attributes:
        data: Its bytes.
        offsets: First byte of each tensor in it, in schema order; int64.
    """

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """The units of every tensor of a schema, by schema index.

    Attributes:
        schema: Whose tensors these are.
        arrays: One 1-D contiguous writable array per tensor, in schema order.
        copies: Pairs of schema index and array: tied names that the caller holds as memory
            of their own, to be filled at the end.
        slab: The allocation behind `arrays`, where it is one of ours.
    """

    schema: Schema
    arrays: tuple[Units, ...]
    copies: tuple[tuple[int, Units], ...] = ()
    slab: Slab | None = None

    @classmethod
    def allocate(cls, schema: Schema) -> Memory:
        """Private memory in one allocation, the members of a bundle side by side.

        Raises:
            MemoryError: there is not enough.
        """
        offsets, size_bytes = _plan_slab(schema)
        data = np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8)
        data = data[-data.ctypes.data % ALIGNMENT_BYTES :]
        arrays = tuple(
            data[offset : offset + spec.size_bytes].view(spec.dtype.unit_dtype)
            for offset, spec in zip(offsets.tolist(), schema.tensors, strict=True)
        )
        return cls(schema, arrays, slab=Slab(data, offsets))

    @classmethod
    def given(cls, schema: Schema, targets: Mapping[str, Target]) -> Memory:
        """The caller's arrays, after everything that is wrong with them was looked for.

        A tied name may be missing, share memory with its tensor, or be memory of its own.

        Raises:
            SchemaMismatchError: names, dtypes, shapes or sizes differ; all are listed.
            InputRefusedError: an array cannot be written in place, or two tensors that are
                not tied share memory; all are listed.
        """
        problems = tuple(_mismatches(schema, targets))
        if problems:
            raise SchemaMismatchError(
                f"the targets do not fit the version; nothing was written:{_listed(problems)}",
                do="Build the targets from this version's schema, or choose another version.",
                facts={"problems": problems},
            )
        held: dict[int, Units] = {}
        copies: list[tuple[int, Units]] = []
        for name, target in targets.items():
            index, units = schema.index_of(name), _units(target)
            if not _is_same(held.setdefault(index, units), units):
                copies.append((index, units))
        problems = (*_unwritable(targets), *_overlaps(schema, held, copies))
        if problems:
            raise InputRefusedError(
                f"the targets cannot be written in place; nothing was written:{_listed(problems)}",
                do="Give writable, contiguous arrays; tensors that are not tied lie apart.",
                facts={"problems": problems},
            )
        return cls(schema, tuple(held[index] for index in range(len(held))), tuple(copies))

    def bytes_of(self, index: int) -> NDArray[np.uint8]:
        """The bytes of one tensor, sharing its memory."""
        return self.arrays[index].view(np.uint8)

    def joined(self, members: Sequence[int]) -> Units | None:
        """Several tensors as one run of units, sharing their memory; None if they lie apart."""
        if self.slab is None:
            return None
        first, last = members[0], members[-1]
        places = self.slab.offsets[list(members)]
        sizes = self.schema.unit_counts[list(members)] * self.arrays[first].itemsize
        if np.any(places[:-1] + sizes[:-1] != places[1:]):
            return None
        end = int(self.slab.offsets[last]) + self.arrays[last].nbytes
        return self.slab.data[int(places[0]) : end].view(self.arrays[first].dtype)

    def fill_copies(self) -> None:
        """Give tied names that are memory of their own the bits of their tensors."""
        for index, units in self.copies:
            units[:] = self.arrays[index]

    def tensors(self) -> dict[str, HostTensor]:
        """Every name, aliases included, to its tensor; tied names share one array."""
        schema = self.schema
        found = {
            spec.name: HostTensor(spec, units)
            for spec, units in zip(schema.tensors, self.arrays, strict=True)
        }
        for alias in schema.aliases:
            stored = found[alias.target]
            spec = TensorSpec(alias.name, stored.spec.dtype, stored.spec.shape)
            found[alias.name] = HostTensor(spec, stored.units)
        return found


def _plan_slab(schema: Schema) -> tuple[NDArray[np.int64], int]:
    offsets = np.full(len(schema.tensors), -1, np.int64)
    end = 0
    for bundle in schema.bundles:
        width = bundle.dtype.unit_size_bytes
        offsets[list(bundle.members)] = end + bundle.starts[:-1] * width
        end = _aligned(end + bundle.unit_count * width)
    for index, spec in enumerate(schema.tensors):
        if offsets[index] < 0:
            offsets[index] = end
            end = _aligned(end + spec.size_bytes)
    return offsets, end


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _mismatches(schema: Schema, targets: Mapping[str, Target]) -> Iterator[str]:
    held = {schema.index_of(name) for name in targets if name in schema}
    for index, spec in enumerate(schema.tensors):
        if index not in held:
            yield f"missing: {spec.name!r} ({spec.dtype.value} {spec.shape})"
    for name, target in targets.items():
        if name in schema:
            yield from _differences(name, target, schema.tensors[schema.index_of(name)])
        else:
            yield f"not in the version: {name!r}"


def _differences(name: str, target: Target, spec: TensorSpec) -> Iterator[str]:
    if isinstance(target, HostTensor):
        if target.spec.dtype is not spec.dtype:
            yield f"dtype: {name!r} is {target.spec.dtype.value}, not {spec.dtype.value}"
        if target.spec.shape != spec.shape:
            yield f"shape: {name!r} is {target.spec.shape}, not {spec.shape}"
    elif target.dtype != spec.dtype.unit_dtype:
        yield f"dtype: {name!r} has units of {target.dtype}, not {spec.dtype.unit_dtype}"
    elif target.shape != (spec.unit_count,):
        yield f"shape: {name!r} has units of shape {target.shape}, not ({spec.unit_count},)"


def _unwritable(targets: Mapping[str, Target]) -> Iterator[str]:
    for name, target in targets.items():
        flags = _units(target).flags
        if not flags.writeable:
            yield f"read-only: {name!r}"
        elif not (flags.c_contiguous and flags.aligned):
            yield f"not contiguous or not aligned: {name!r}"


def _overlaps(
    schema: Schema, held: Mapping[int, Units], copies: Sequence[tuple[int, Units]]
) -> Iterator[str]:
    """Two tensors in one place would each spoil the other, and only after the first write."""
    spans = sorted(
        (_address(units), _address(units) + units.nbytes, schema.tensors[index].name)
        for index, units in (*held.items(), *copies)
        if units.nbytes
    )
    for (_, end, before), (start, _, after) in pairwise(spans):
        if start < end:
            yield f"in the same memory: {before!r} and {after!r}"


def _units(target: Target) -> Units:
    return target.units if isinstance(target, HostTensor) else target


def _is_same(left: Units, right: Units) -> bool:
    return left is right or (_address(left) == _address(right) and left.nbytes == right.nbytes)


def _address(units: Units) -> int:
    return units.ctypes.data


def _listed(problems: Sequence[str]) -> str:
    more = len(problems) - _LISTED_COUNT
    lines = "".join(f"\n  {line}" for line in problems[:_LISTED_COUNT])
    return lines + (f"\n  and {more} more" if more > 0 else "")
