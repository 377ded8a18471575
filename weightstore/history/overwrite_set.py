"""What leads from one version to another as absolute values: which units, and their new bits.

A delta says how new bits come from old ones, so it is of no use over a mixture of the two.
The units that it names are the same in a mixture, and their new bits are those of the
version, made from a full form: written over anything that a cut change has left, they give
the version. Where no deltas lead from one version to the other the set is **whole**: every
unit of every tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptObjectError, ObjectMissingError
from weightstore.format.manifest import Manifest
from weightstore.format.records import VersionRecord
from weightstore.history.chain import CheckoutPlan, RecordReader, delta_form
from weightstore.history.delta_path import DeltaPath, NoDeltaPath, VersionRef, plan_delta_path
from weightstore.history.manifests import SchemaCache
from weightstore.history.tensor_bits import DeltaBits, FullBits, Group, VersionBits, groups_of
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore

PART_UNIT_COUNT = 4 * 1024 * 1024
"""Units that one part of a set has at most."""


@dataclass(frozen=True, slots=True, eq=False)
class OverwritePart:
    """New bits of some units of one tensor.

    Attributes:
        name: Of the tensor; tied names have the bits of the least of them.
        positions: Canonical unit indices, rising; int64.
        bits: The new bits of each, as unsigned units.
    """

    name: str
    positions: NDArray[np.int64]
    bits: Units


class OverwriteSet:
    """The change from one version to another as absolute values, made a few tensors at a time.

    Units that it does not name are equal in both versions. It may be iterated any number of
    times. Memory: the largest tensor (or bundle of small ones) and its positions, the piece
    indexes of the deltas, and the codec's buffers of one piece. Not for several threads.

    Attributes:
        base: The version that it leads from; the later or the earlier one.
        target: The version that it leads to.
        schema: Of the target.
        reason: Why it is whole; empty if it is not.
        read_size_bytes: Bytes of packs and of tensors in full forms that were read so far.
    """

    def __init__(
        self,
        blobs: BlobStore,
        plan: CheckoutPlan,
        base: VersionRef,
        path: DeltaPath | NoDeltaPath | None,
        *,
        limits: Limits,
        codec: PieceCodec,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Read the packs of the path.

        Args:
            blobs: The store.
            plan: Of the target.
            base: The version that it leads from.
            path: Deltas between the two, whichever is the later; None if they are equal.
            limits: Hard bounds.
            codec: Kernels to use.
            guard: Around every later read: says which errors mean something else.
        """
        self.base = base
        self.target = VersionRef.of(plan.record)
        self.schema: Schema = plan.schema
        self.reason = str(path) if isinstance(path, NoDeltaPath) else ""
        self.read_size_bytes = 0
        self._blobs = blobs
        self._plan = plan
        self._limits = limits
        self._codec = codec
        self._guard = guard
        self._worker = codec.worker()
        self._known: dict[int, DeltaBits] = {}
        self._bits: VersionBits | None = None
        self.deltas: tuple[DeltaBits, ...] = ()
        if isinstance(path, DeltaPath):
            try:
                self.deltas = self._open(path.deltas)
            except (ObjectMissingError, CorruptObjectError) as error:
                # The target may have a full form of its own, which needs none of them.
                self.reason = f"the deltas cannot be used: {error.message}"

    @property
    def is_whole(self) -> bool:
        """Whether it names every unit, since no deltas say which differ."""
        return bool(self.reason)

    def groups(self) -> list[Group]:
        """The groups of tensors that it changes, by their first tensor."""
        groups = groups_of(self.schema)
        if self.is_whole:
            keys = {group.key for group in groups.values() if group.starts[-1]}
        else:
            keys = {key for delta in self.deltas for key in delta.group_keys}
        return [groups[key] for key in sorted(keys)]

    def positions(self, group: Group) -> NDArray[np.int64]:
        """Which units of a group change, counted in the group; rising.

        Raises:
            CorruptObjectError: a piece is damaged.
        """
        if self.is_whole:
            return np.arange(int(group.starts[-1]), dtype=np.int64)
        with self._guard():
            found = [delta.positions(group, self._worker) for delta in self.deltas]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def bits(self, group: Group) -> Units:
        """All units of a group in the target, compared with its digests; not to be written.

        Raises:
            CorruptError: something stored is damaged.
        """
        with self._guard():
            if self._bits is None:
                self._bits = self._full_bits()
            units = self._bits.group(group)
        self.read_size_bytes += units.nbytes
        return units

    def __iter__(self) -> Iterator[OverwritePart]:
        """Every changed unit once, tensor by tensor, in parts of bounded size.

        Raises:
            CorruptError: something stored is damaged.
        """
        for group in self.groups():
            positions, units = self.positions(group), self.bits(group)
            bounds = np.searchsorted(positions, group.starts).tolist()
            for number, member in enumerate(group.members):
                for first in range(bounds[number], bounds[number + 1], PART_UNIT_COUNT):
                    end = min(first + PART_UNIT_COUNT, bounds[number + 1])
                    part = positions[first:end]
                    name = self.schema.tensors[member].name
                    yield OverwritePart(name, part - int(group.starts[number]), units[part])

    def _full_bits(self) -> VersionBits:
        below = FullBits(self._blobs, self._plan.full, self.schema, self._limits)
        return VersionBits(
            below,
            self._open(self._plan.deltas),
            schema=self.schema,
            table=self._plan.last_table,
            codec=self._codec,
        )

    def _open(self, manifests: Sequence[Manifest]) -> tuple[DeltaBits, ...]:
        """Deltas to read from; a path and a chain may share some."""
        for manifest in manifests:
            if manifest.version not in self._known:
                self._known[manifest.version] = DeltaBits(
                    self._blobs, manifest, self.schema, self._limits
                )
                self.read_size_bytes += delta_form(manifest).size_bytes
        return tuple(self._known[manifest.version] for manifest in manifests)


def plan_path_between(
    blobs: BlobStore,
    log: RecordReader,
    old: VersionRecord,
    new: VersionRecord,
    limits: Limits,
    *,
    cache: SchemaCache | None = None,
) -> DeltaPath | NoDeltaPath | None:
    """The deltas between two versions, whichever is the later; None if they are equal.

    Raises:
        WrongBaseError, CorruptError: as `plan_delta_path`.
    """
    earlier, later = sorted((old, new), key=lambda record: record.version)
    if earlier.version == later.version:
        return None
    return plan_delta_path(blobs, log, later, VersionRef.of(earlier), limits, cache=cache)
