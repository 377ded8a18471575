"""What differs between two versions, tensor by tensor.

Tensors whose digests agree are equal and are not read. For the others the bits of both
versions are made a group at a time; where the newer version is the older one and some
deltas, the older one's bits are made once. How many units changed between neighbours is in
the index of their packs already, so a count alone reads no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.distances import distances, has_distances
from weightstore.format.manifest import Manifest
from weightstore.history.chain import CheckoutPlan
from weightstore.history.pack_counts import changed_counts
from weightstore.history.progress import Meter, Progress, no_progress
from weightstore.history.tensor_bits import DeltaBits, FullBits, VersionBits, groups_of
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore

_PART_UNIT_COUNT = 1024 * 1024
"""So many units are compared at a time, so that what is made beside them stays small."""


class Source(Enum):
    """Where the answer comes from."""

    DIGESTS = "digests"
    """The digests of all tensors agree: nothing was read."""
    PACKS = "packs"
    """The index of the packs between two neighbours."""
    WEIGHTS = "weights"
    """The bits of both versions, compared."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """How one tensor differs.

    Attributes:
        name: Its name; tied names count once, under the least.
        dtype: As safetensors names it.
        shape: Dims in elements.
        unit_count: Elements, or bytes for packed dtypes.
        changed_count: Those whose bits differ.
        largest_ulps: Largest distance in steps between representable numbers: 1 is the next
            one, and the two zeros are 0 apart. For integers the difference, for complex
            numbers that of the part that moved further. None where it was not measured,
            and for packed dtypes.
        largest_ulps_at: Index of the element that moved so far, the first one; or None.
        largest_absolute: Largest absolute difference of two values, as a float; or None.
        nonfinite_count: Changed elements that are infinite or NaN before or after: the two
            measures leave them out. None where it was not measured.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    unit_count: int
    changed_count: int
    largest_ulps: int | None = None
    largest_ulps_at: tuple[int, ...] | None = None
    largest_absolute: float | None = None
    nonfinite_count: int | None = None

    @property
    def density(self) -> float:
        """Share of the units that changed, 0 to 1."""
        return self.changed_count / max(self.unit_count, 1)


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A name that is not the same tensor in both versions, so that no bits were compared.

    Attributes:
        name: The name.
        old: What it is in the first version, such as `"BF16 (8, 4)"`; None: not there.
        new: What it is in the second one.
    """

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class Differences:
    """Everything that differs.

    Attributes:
        tensors: Those that changed, by name.
        schema: Names that are not the same tensor, by name.
        source: Where the counts come from.
        compared_count: Tensors that both versions have, changed or not.
        compared_unit_count: Their units.
    """

    tensors: tuple[TensorChange, ...]
    schema: tuple[SchemaChange, ...]
    source: Source
    compared_count: int
    compared_unit_count: int


def diff_versions(
    blobs: BlobStore,
    old: CheckoutPlan,
    new: CheckoutPlan,
    settings: Settings,
    progress: Progress = no_progress,
    *,
    counts: bool = False,
    codec: PieceCodec | None = None,
) -> Differences:
    """Compare two versions.

    Memory: of each version the largest tensor (or bundle of small ones) and `KEPT_SIZE_BYTES`
    of others; the piece indexes of both chains; a block; and the codec's buffers of one piece.

    Args:
        blobs: The store.
        old: The version to start from; either may be the older one.
        new: The version to compare with it.
        settings: Limits.
        progress: Told the bytes of tensors that were compared, in the phase `"compare"`.
        counts: Only count what changed, and take the counts of neighbours from their packs;
            False also measures how far values moved.
        codec: Kernels to use; None makes one.

    Raises:
        ObjectMissingError: something that a version names is not there.
        CorruptObjectError: an object, block or piece is damaged, two packs change the same
            units, or counts differ from a manifest.
        DigestMismatchError: bits or counts do not fit the digests.
    """
    comparison = _Comparison.of(old, new)
    limits = settings.limits
    if not comparison.differing:
        return comparison.result((), Source.DIGESTS)
    between = _delta_between(old, new)
    if between is not None and counts:
        told = changed_counts(blobs, *between, settings)
        if told is not None:
            return comparison.result(list(_counted(comparison, told)), Source.PACKS)
    codec = codec or PieceCodec(limits=limits)
    bits = _bits(blobs, old, new, limits, codec)
    # Members of a bundle one after the other: they are made together, and not kept for long.
    groups = groups_of(new.schema)
    pairs = sorted(comparison.differing, key=lambda pair: groups[pair.new_index].key)
    changes = _compared(pairs, *bits, progress, counts=counts)
    return comparison.result(list(changes), Source.WEIGHTS)


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """A tensor of both versions: its index in either schema."""

    spec: TensorSpec
    old_index: int
    new_index: int


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """What both schemas and digest tables say before any bits are read."""

    pairs: tuple[_Pair, ...]
    differing: tuple[_Pair, ...]
    schema: tuple[SchemaChange, ...]

    @classmethod
    def of(cls, old: CheckoutPlan, new: CheckoutPlan) -> _Comparison:
        pairs = tuple(_pairs(old.schema, new.schema))
        differing = tuple(
            pair
            for pair in pairs
            if np.any(old.last_table[pair.old_index] != new.last_table[pair.new_index])
        )
        return cls(pairs, differing, tuple(_schema_changes(old.schema, new.schema)))

    def result(self, changes: Sequence[TensorChange], source: Source) -> Differences:
        return Differences(
            tensors=tuple(sorted(changes, key=lambda change: change.name)),
            schema=self.schema,
            source=source,
            compared_count=len(self.pairs),
            compared_unit_count=sum(pair.spec.unit_count for pair in self.pairs),
        )


def _pairs(old: Schema, new: Schema) -> Iterator[_Pair]:
    known = {spec: index for index, spec in enumerate(old.tensors)}
    for index, spec in enumerate(new.tensors):
        if spec in known:
            yield _Pair(spec, known[spec], index)


def _schema_changes(old: Schema, new: Schema) -> Iterator[SchemaChange]:
    if old.id == new.id:
        return
    before, after = _said(old), _said(new)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield SchemaChange(name, before.get(name), after.get(name))


def _said(schema: Schema) -> dict[str, str]:
    """What every name of a schema is, for people."""
    groups = {name: " ".join(group) for group in schema.atomic_groups for name in group}
    said = {
        spec.name: f"{spec.dtype.value} {spec.shape}"
        + (f", changes with {groups[spec.name]}" if spec.name in groups else "")
        for spec in schema.tensors
    }
    said.update((alias.name, f"tied to {alias.target}") for alias in schema.aliases)
    return said


def _delta_between(
    old: CheckoutPlan, new: CheckoutPlan
) -> tuple[Manifest, CheckoutPlan, CheckoutPlan] | None:
    """The delta that leads from one version to the other, with the older one first."""
    older, newer = sorted((old, new), key=lambda plan: plan.record.version)
    manifest, base = newer.manifest, newer.manifest.base
    if manifest.delta is None or base is None or older.schema.id != newer.schema.id:
        return None
    if (base.version, base.digest) != (older.record.version, older.record.digest):
        return None
    return manifest, older, newer


def _counted(comparison: _Comparison, counts: NDArray[np.int64]) -> Iterator[TensorChange]:
    return (_change(pair.spec, int(counts[pair.new_index])) for pair in comparison.differing)


def _bits(
    blobs: BlobStore,
    old: CheckoutPlan,
    new: CheckoutPlan,
    limits: Limits,
    codec: PieceCodec,
) -> tuple[VersionBits, VersionBits]:
    """The bits of both versions; the newer one from the older one where deltas lead there."""
    older, newer = sorted((old, new), key=lambda plan: plan.record.version)
    lower = _version_bits(blobs, older, limits, codec)
    after = _deltas_after(older, newer)
    if after is None:
        upper = _version_bits(blobs, newer, limits, codec)
    else:
        deltas = [DeltaBits(blobs, manifest, newer.schema, limits) for manifest in after]
        upper = VersionBits(lower, deltas, schema=newer.schema, table=newer.last_table, codec=codec)
    return (lower, upper) if older is old else (upper, lower)


def _deltas_after(older: CheckoutPlan, newer: CheckoutPlan) -> tuple[Manifest, ...] | None:
    """The deltas that lead from the older version to the newer one, if they do."""
    between = _delta_between(older, newer)
    if between is not None:
        return (between[0],)
    steps = (older.full.version, *(manifest.version for manifest in older.deltas))
    walked = (newer.full.version, *(manifest.version for manifest in newer.deltas))
    if walked[: len(steps)] != steps:
        return None
    return newer.deltas[len(older.deltas) :]


def _version_bits(
    blobs: BlobStore, plan: CheckoutPlan, limits: Limits, codec: PieceCodec
) -> VersionBits:
    return VersionBits(
        FullBits(blobs, plan.full, plan.schema, limits),
        [DeltaBits(blobs, manifest, plan.schema, limits) for manifest in plan.deltas],
        schema=plan.schema,
        table=plan.last_table,
        codec=codec,
    )


def _compared(
    pairs: Sequence[_Pair],
    old: VersionBits,
    new: VersionBits,
    progress: Progress,
    *,
    counts: bool,
) -> Iterator[TensorChange]:
    meter = Meter(progress, "compare", sum(pair.spec.size_bytes for pair in pairs))
    for pair in pairs:
        # No name here holds the bits: they would live on while those of the next pair are made.
        found = _compare(
            pair.spec, old.tensor(pair.old_index), new.tensor(pair.new_index), counts=counts
        )
        if found.changed_count:
            yield found
        meter.add(pair.spec.size_bytes)


def _compare(spec: TensorSpec, old: Units, new: Units, *, counts: bool) -> TensorChange:
    largest = _Largest(spec.dtype) if has_distances(spec.dtype) and not counts else None
    changed_count = 0
    for start in range(0, spec.unit_count, _PART_UNIT_COUNT):
        part = slice(start, start + _PART_UNIT_COUNT)
        places = np.flatnonzero(old[part] != new[part])
        changed_count += places.size
        if largest is not None and places.size:
            largest.add(start + places, old[part][places], new[part][places])
    if largest is None:
        return _change(spec, changed_count)
    at = None
    if largest.place is not None:
        at = tuple(int(each) for each in np.unravel_index(largest.place, spec.shape))
    return TensorChange(
        spec.name,
        spec.dtype.value,
        spec.shape,
        spec.unit_count,
        changed_count,
        largest_ulps=largest.ulps,
        largest_ulps_at=at,
        largest_absolute=largest.absolute,
        nonfinite_count=largest.nonfinite_count,
    )


class _Largest:
    """The largest changes so far."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype
        self.ulps = 0
        self.place: int | None = None
        self.absolute = 0.0
        self.nonfinite_count = 0

    def add(self, places: NDArray[np.int64], old: Units, new: Units) -> None:
        found = distances(self._dtype, old, new)
        self.nonfinite_count += int(found.is_finite.size - np.count_nonzero(found.is_finite))
        self.absolute = max(self.absolute, float(found.absolutes.max()))
        first = int(found.ulps.argmax())
        if int(found.ulps[first]) > self.ulps:
            self.ulps, self.place = int(found.ulps[first]), int(places[first])


def _change(spec: TensorSpec, changed_count: int) -> TensorChange:
    return TensorChange(spec.name, spec.dtype.value, spec.shape, spec.unit_count, changed_count)
