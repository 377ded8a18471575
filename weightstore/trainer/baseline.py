"""The bits of the last committed version, in one flat buffer.

Detection only reads it; it moves when the log has said that the attempt is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.layout.boxes import FlatRange, cut_flat
from weightstore.layout.bundles import Bundle
from weightstore.layout.schema import Schema, bundle_plan
from weightstore.layout.tensors import Units
from weightstore.settings import Limits

_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class BaselineLayout:
    """Where each tensor lies: bundles first, each contiguous, then the large tensors.

    Attributes:
        schema: Whose tensors these are.
        bundles: The schema's bundles of small tensors.
        bundle_of: Schema index of a small tensor to (bundle, place among its members).
        offsets: Byte offset of each tensor of the schema; of an empty one 0.
        bundle_offsets: Byte offset of each bundle.
        size_bytes: Of the whole buffer.
    """

    schema: Schema
    bundles: tuple[Bundle, ...]
    bundle_of: dict[int, tuple[int, int]]
    offsets: NDArray[np.int64]
    bundle_offsets: NDArray[np.int64]
    size_bytes: int

    def pieces(self, index: int, limits: Limits) -> Iterator[FlatRange]:
        """The flat ranges that a large tensor's pieces cover."""
        spec = self.schema.tensors[index]
        return cut_flat(spec.unit_count, limits.piece_element_count)


def plan_layout(schema: Schema) -> BaselineLayout:
    """Lay a schema out: 64-byte aligned areas, no padding inside a bundle."""
    bundles = bundle_plan(schema)
    offsets = np.zeros(len(schema.tensors), dtype=np.int64)
    bundle_offsets = np.zeros(len(bundles), dtype=np.int64)
    bundle_of: dict[int, tuple[int, int]] = {}
    end = 0
    for number, bundle in enumerate(bundles):
        start = _aligned(end)
        bundle_offsets[number] = start
        width = bundle.dtype.unit_size_bytes
        offsets[list(bundle.members)] = start + bundle.starts[:-1] * width
        bundle_of.update({index: (number, i) for i, index in enumerate(bundle.members)})
        end = start + int(bundle.starts[-1]) * width
    for index, spec in enumerate(schema.tensors):
        if index not in bundle_of and spec.unit_count:
            offsets[index] = start = _aligned(end)
            end = start + spec.size_bytes
    return BaselineLayout(schema, bundles, bundle_of, offsets, bundle_offsets, _aligned(end))


class Baseline:
    """A layout and the buffer that holds its bits."""

    def __init__(self, layout: BaselineLayout, buffer: NDArray[np.uint8]) -> None:
        self.layout = layout
        self._buffer = buffer

    def units(self, index: int, span: FlatRange | None = None) -> Units:
        """A view of a tensor's units, or of a flat range of them."""
        spec = self.layout.schema.tensors[index]
        first, count = (span.first_unit, span.unit_count) if span else (0, spec.unit_count)
        width = spec.dtype.unit_size_bytes
        start = int(self.layout.offsets[index]) + first * width
        return self._buffer[start : start + count * width].view(spec.dtype.unit_dtype)

    def bundle_units(self, number: int) -> Units:
        """A view of a bundle's units, its members one after the other."""
        bundle = self.layout.bundles[number]
        start = int(self.layout.bundle_offsets[number])
        size_bytes = int(bundle.starts[-1]) * bundle.dtype.unit_size_bytes
        return self._buffer[start : start + size_bytes].view(bundle.dtype.unit_dtype)

    def targets(self) -> dict[str, Units]:
        """Views of all tensors by name, for a checkout to fill."""
        return {spec.name: self.units(i) for i, spec in enumerate(self.layout.schema.tensors)}


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
