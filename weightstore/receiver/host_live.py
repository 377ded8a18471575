"""Live arrays of the host as places, for receivers without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from weightstore.errors import InputRefusedError
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, Units
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.placement import (
    Boxes,
    LiveTensor,
    Placement,
    mismatch,
    name_misfits,
    plan_placement,
)


def place_arrays(
    schema: Schema, targets: Mapping[str, Units | HostTensor], boxes: Boxes
) -> Placement:
    """Plan where the tensors of a schema live. Writes nothing.

    Args:
        schema: Of the versions to come.
        targets: Name to its bits: one dimension, contiguous, writable, in row-major order of
            the tensor or of its box.
        boxes: Name to the part that the array is.

    Raises:
        SchemaMismatchError: names, sizes or dtypes differ; everything is listed.
        InputRefusedError: an array cannot be written in place, or two that are not tied
            share memory; everything is listed.
    """
    arrays = {name: _units(target) for name, target in targets.items()}
    misfits = [
        misfit
        for name, target in targets.items()
        if name in schema
        for misfit in _misfits(schema, name, target, boxes)
    ]
    misfits += name_misfits(schema, targets, boxes)
    if misfits:
        raise mismatch(misfits, _what_to_do(schema, arrays, boxes))
    live = [_live(name, units, _box(schema, name, boxes)) for name, units in arrays.items()]
    placement = plan_placement(schema, live, boxes)
    problems = (*_unwritable(arrays), *_shared(schema, arrays))
    if problems:
        raise InputRefusedError(
            "the live arrays cannot be written in place; nothing was written: "
            + "; ".join(problems),
            do="Give writable, contiguous arrays; tensors that are not tied lie apart.",
            facts={"problems": problems},
        )
    return placement


def _units(target: Units | HostTensor) -> Units:
    return target.units if isinstance(target, HostTensor) else target


def _box(schema: Schema, name: str, boxes: Boxes) -> Box:
    shape = schema.tensors[schema.index_of(name)].unit_shape
    return boxes.get(name, Box.whole(shape))


def _misfits(schema: Schema, name: str, target: Units | HostTensor, boxes: Boxes) -> Iterator[str]:
    spec = schema.tensors[schema.index_of(name)]
    if isinstance(target, HostTensor) and name not in boxes:
        if target.spec.dtype is not spec.dtype:
            yield f"dtype: {name!r} is {target.spec.dtype.value}, not {spec.dtype.value}"
        if target.spec.shape != spec.shape:
            yield f"shape: {name!r} is {target.spec.shape}, not {spec.shape}"
    units, box = _units(target), _box(schema, name, boxes)
    if units.dtype != spec.dtype.unit_dtype:
        yield f"dtype: {name!r} has units of {units.dtype}, not {spec.dtype.unit_dtype}"
    if units.shape != (box.unit_count,):
        yield f"shape: {name!r} has units of shape {units.shape}, not ({box.unit_count},)"


def _what_to_do(schema: Schema, arrays: Mapping[str, Units], boxes: Boxes) -> str:
    """Another view for arrays that are of the right size, else another model."""
    for name, units in arrays.items():
        if name not in schema or not units.flags.c_contiguous:
            continue  # flattened it would be a copy, which nobody serves
        dtype = schema.tensors[schema.index_of(name)].dtype.unit_dtype
        count = _box(schema, name, boxes).unit_count
        is_bits = (units.dtype, units.shape) == (dtype, (count,))
        if not is_bits and units.nbytes == count * dtype.itemsize:
            return (
                "Give flat arrays of bits in the same memory, such as "
                f"`array.reshape(-1).view(np.{dtype})` for {name!r}; or give torch tensors."
            )
    return "Build the model from this checkpoint's configuration, or choose another version."


def _live(name: str, units: Units, box: Box) -> LiveTensor:
    sizes = box.sizes
    strides = tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
    return LiveTensor(
        name,
        HostStorage(units),
        0,
        sizes,
        strides,
        lambda: units.ctypes.data,
    )


def _unwritable(arrays: Mapping[str, Units]) -> Iterator[str]:
    for name, units in arrays.items():
        if not (units.flags.writeable and units.flags.c_contiguous):
            yield f"read-only or not contiguous: {name!r}"


def _shared(schema: Schema, arrays: Mapping[str, Units]) -> Iterator[str]:
    spans: Sequence[tuple[int, int, int, str]] = sorted(
        (units.ctypes.data, units.ctypes.data + units.nbytes, schema.index_of(name), name)
        for name, units in arrays.items()
        if units.nbytes
    )
    for (first, end, index, before), (start, last, other, after) in pairwise(spans):
        is_same = (first, end, index) == (start, last, other)
        if start < end and not is_same:
            yield f"in the same memory: {before!r} and {after!r}"
