"""The bits of a version a few tensors at a time, all verified, in bounded memory.

A checkout holds the whole version. Here a **group** is made at a time: one large tensor, or
a bundle of small ones. What stays in memory between groups are the piece indexes of the
chain, the headers of the full form, the newest group, and small ones that were made before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.digest import member_lanes
from weightstore.codec.piece import Piece
from weightstore.errors import (
    BlobNotFoundError,
    CorruptError,
    CorruptObjectError,
    DigestMismatchError,
)
from weightstore.format.blocks import BLOCK_SIZE_BYTES, blocks_of_range
from weightstore.format.manifest import Manifest, PackRef
from weightstore.format.pack_map import PackMap
from weightstore.format.piece_index import BundlePlace, PiecePlace, TensorPlace
from weightstore.history.anchors import Bytes, StoredFile, check_size, open_files, read_header
from weightstore.history.chain import delta_form
from weightstore.history.extents import DeltaExtents
from weightstore.history.ledger import DeltaCounts
from weightstore.history.manifests import missing_object
from weightstore.history.pack_jobs import explained, read_pack
from weightstore.history.replay import first_unit_of
from weightstore.ids import VersionId
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import MIB, Limits
from weightstore.storage.blobs import BlobStore

KEPT_SIZE_BYTES = 8 * MIB
"""Beside the newest group, which always stays, older ones stay up to this size: bundles, whose
members are asked for between large tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Tensors that are made together.

    Attributes:
        members: Schema indices, ascending.
        starts: First unit of each in the group, then the group's unit count; int64.
    """

    members: tuple[int, ...]
    starts: NDArray[np.int64]

    @property
    def key(self) -> int:
        """What tells groups of one schema apart."""
        return self.members[0]


class Bits(Protocol):
    """Something that the bits of groups come from."""

    @property
    def version(self) -> VersionId:
        """Whose bits they are."""
        ...

    def group(self, group: Group, /) -> Units:
        """The units of a group; the caller must not write them."""
        ...


def groups_of(schema: Schema) -> dict[int, Group]:
    """The group of every tensor, by its schema index."""
    found: dict[int, Group] = {}
    for bundle in schema.bundles:
        group = Group(bundle.members, bundle.starts)
        found.update((index, group) for index in bundle.members)
    for index, spec in enumerate(schema.tensors):
        if index not in found:
            found[index] = Group((index,), np.array([0, spec.unit_count], np.int64))
    return found


class FullBits:
    """Reads groups out of the full form of a version, by verified blocks.

    Args:
        blobs: The store.
        manifest: Has a full form.
        schema: Of the version.
        limits: Hard bounds.

    Raises:
        ObjectMissingError: the block hashes or a file are not there.
        CorruptObjectError: one of them is damaged, or lacks a tensor of the schema.
    """

    def __init__(
        self, blobs: BlobStore, manifest: Manifest, schema: Schema, limits: Limits
    ) -> None:
        self.version = manifest.version
        self._schema = schema
        self._places: dict[int, tuple[StoredFile, int]] = {}
        self._block = np.empty(0, np.uint8)
        self._block_of: tuple[str, int] | None = None
        for file, stored in open_files(blobs, manifest, limits):
            if file.role == "weights":
                check_size(blobs, stored.key, stored.size_bytes, stored.version)
                self._note_tensors(stored, limits)
        lacking = len(schema.tensors) - len(self._places)
        if lacking:
            raise CorruptObjectError(
                f"version {manifest.version}: the files of its full form lack {lacking} tensors",
                do="Compare other versions; report the store as damaged.",
                facts={"version": manifest.version},
            )

    def group(self, group: Group, /) -> Units:
        """The units of a group, in memory of its own."""
        dtype = self._schema.tensors[group.members[0]].dtype.unit_dtype
        units: Units = np.empty(int(group.starts[-1]), dtype)
        starts = dict(zip(group.members, group.starts.tolist(), strict=False))
        # In the order of the files, so that members side by side share the read of a block.
        for index in sorted(group.members, key=self._order):
            count = self._schema.tensors[index].unit_count
            part = units[starts[index] : starts[index] + count]
            stored, offset = self._places[index]
            self._read(stored, offset, part.view(np.uint8))
        return units

    def _order(self, index: int) -> tuple[str, int]:
        stored, offset = self._places[index]
        return stored.key, offset

    def _note_tensors(self, stored: StoredFile, limits: Limits) -> None:
        schema = self._schema
        for found in read_header(stored, limits)[1].tensors:
            name = found.spec.name
            index = schema.index_of(name) if name in schema else None
            expected = None if index is None else schema.tensors[index]
            if index is None or expected is None or expected.name != name:
                continue  # a tied name is there as a copy for other readers
            if (expected.dtype, expected.shape) != (found.spec.dtype, found.spec.shape):
                raise CorruptObjectError(
                    f"version {stored.version}: {stored.key} holds {name!r} with another dtype "
                    "or shape than the schema",
                    do="Compare other versions; report the store as damaged.",
                    facts={"version": stored.version, "key": stored.key, "tensor": name},
                )
            self._places[index] = (stored, found.file_offset)

    def _read(self, stored: StoredFile, offset: int, target: Bytes) -> None:
        """Fill a buffer from a range of a file, block by block."""
        for block in blocks_of_range(offset, target.size):
            start, end = stored.block_bounds(block)
            first, last = max(start, offset), min(end, offset + target.size)
            part = target[first - offset : last - offset]
            if (first, last) == (start, end):
                stored.read_block(block, [part])
            else:
                part[:] = self._read_block(stored, block)[first - start : last - start]

    def _read_block(self, stored: StoredFile, block: int) -> Bytes:
        """A whole block; the last one stays, since its neighbours are asked for next."""
        start, end = stored.block_bounds(block)
        if self._block_of != (stored.key, block):
            self._block_of = None
            if not self._block.size:
                self._block = np.empty(BLOCK_SIZE_BYTES, np.uint8)
            stored.read_block(block, [self._block[: end - start]])
            self._block_of = (stored.key, block)
        return self._block[: end - start]


@dataclass(frozen=True, slots=True, eq=False)
class _Pack:
    """A verified pack whose pieces are read one by one, and what its errors name."""

    manifest: Manifest
    pack: PackRef
    map: PackMap
    schema: Schema


class DeltaBits:
    """Reads the pieces of one delta that change a group.

    First every pack is verified, the packs are compared with each other, and their counts
    with the manifest.

    Args:
        blobs: The store.
        manifest: Has a delta.
        schema: Of the version.
        limits: Hard bounds.

    Raises:
        ObjectMissingError: a pack is not there.
        CorruptObjectError: a pack is damaged, two packs change the same units, or counts
            differ from the manifest; names version and packs.
    """

    def __init__(
        self, blobs: BlobStore, manifest: Manifest, schema: Schema, limits: Limits
    ) -> None:
        self.version = manifest.version
        self._blobs = blobs
        self._pieces: dict[int, list[tuple[_Pack, int]]] = {}
        extents = DeltaExtents(schema, manifest.version, limits)
        counts = DeltaCounts(manifest)
        for ref in delta_form(manifest).packs:
            pack_map = read_pack(blobs, schema, manifest, ref, limits, parse=PackMap)
            extents.add(ref.key, pack_map.places)
            counts.add_pack(pack_map.places.changed_counts)
            self._note_pieces(_Pack(manifest, ref, pack_map, schema))
        extents.settle()
        counts.settle()

    def apply(self, group: Group, units: Units, worker: PieceWorker) -> None:
        """Change the units of a group from those of the base to those of the version.

        Raises:
            CorruptError: a piece is damaged or does not fit; names version, pack, tensors
                and base.
        """
        for pack, index in self._pieces.get(group.key, ()):
            place = pack.map.places[index]
            try:
                _apply(worker, place, self._read(pack, index), units, pack.schema)
            except CorruptError as error:
                raise explained(error, pack, place) from error

    @property
    def group_keys(self) -> frozenset[int]:
        """Keys of the groups that have pieces."""
        return frozenset(self._pieces)

    def positions(self, group: Group, worker: PieceWorker) -> NDArray[np.int64]:
        """Units of a group that its pieces change, counted in the group; rising.

        Raises:
            CorruptError: a piece is damaged; names version, pack and tensors.
        """
        found = [np.empty(0, np.int64)]
        for pack, index in self._pieces.get(group.key, ()):
            place = pack.map.places[index]
            try:
                sparse = worker.sparse(self._read(pack, index))
            except CorruptError as error:
                raise explained(error, pack, place) from error
            first_unit = 0
            if isinstance(place, TensorPlace):
                first_unit = first_unit_of(place, pack.schema)
            found.append(sparse.positions.astype(np.int64) + first_unit)
        return np.sort(np.concatenate(found))

    def _note_pieces(self, pack: _Pack) -> None:
        for index, place in enumerate(pack.map.places):
            key = place.tensor_index if isinstance(place, TensorPlace) else place.members[0]
            self._pieces.setdefault(key, []).append((pack, index))

    def _read(self, pack: _Pack, index: int) -> Piece:
        streams: list[bytes] = []
        for offset, size_bytes in pack.map.ranges(index):
            stream = bytearray(size_bytes)
            try:
                self._blobs.read_into(pack.pack.key, offset, stream)
            except BlobNotFoundError as error:
                raise missing_object(self.version, "pack", pack.pack.key) from error
            streams.append(bytes(stream))
        return pack.map.piece(index, streams)


class VersionBits:
    """The bits of a version: those of something below it, and the deltas after that.

    Memory: the newest group, `KEPT_SIZE_BYTES` of older ones, and the codec's buffers of one
    piece. What does not stay is dropped before the next group is made.

    Args:
        below: The full form, or an older version of the same schema.
        deltas: Oldest first.
        schema: Of the version.
        table: Its digest lanes; every group is compared with them.
        codec: Kernels to use.
    """

    def __init__(
        self,
        below: Bits,
        deltas: Sequence[DeltaBits],
        *,
        schema: Schema,
        table: NDArray[np.uint64],
        codec: PieceCodec,
    ) -> None:
        self.version = deltas[-1].version if deltas else below.version
        self._below = below
        self._deltas = tuple(deltas)
        self._schema = schema
        self._table = table
        self._worker = codec.worker()
        self._groups = groups_of(schema)
        self._made: OrderedDict[int, Units] = OrderedDict()

    def tensor(self, index: int) -> Units:
        """The units of one tensor; the caller must not write them."""
        group = self._groups[index]
        units = self.group(group)
        place = group.members.index(index) if len(group.members) > 1 else 0
        return units[int(group.starts[place]) : int(group.starts[place + 1])]

    def group(self, group: Group, /) -> Units:
        """The units of a group; the caller must not write them.

        Raises:
            CorruptError: something stored is damaged, or the bits do not have the digests
                of the version.
        """
        if group.key not in self._made:
            self._make_room()
            self._made[group.key] = self._make(group)
        self._made.move_to_end(group.key)
        return self._made[group.key]

    def _make(self, group: Group) -> Units:
        units = self._below.group(group)
        if not isinstance(self._below, FullBits):
            units = units.copy()
        for delta in self._deltas:
            delta.apply(group, units, self._worker)
        wrong = np.flatnonzero(
            np.any(member_lanes(units, group.starts) != self._table[list(group.members)], axis=1)
        )
        if wrong.size:
            name = self._schema.tensors[group.members[int(wrong[0])]].name
            raise DigestMismatchError(
                f"version {self.version}: the bits of tensor {name!r} do not have the digest of "
                "its table",
                do="Verify the store (weightstore doctor --deep).",
                facts={"version": self.version, "tensor": name},
            )
        units.flags.writeable = False
        return units

    def _make_room(self) -> None:
        """Drop what does not stay beside a new group, before that takes memory of its own.

        Groups that could not stay anyway go first, so that one large tensor does not push
        out the bundles whose members lie around it.
        """
        for key in [key for key, made in self._made.items() if made.nbytes > KEPT_SIZE_BYTES]:
            del self._made[key]
        size_bytes = sum(made.nbytes for made in self._made.values())
        while size_bytes > KEPT_SIZE_BYTES:
            size_bytes -= self._made.popitem(last=False)[1].nbytes


def _apply(
    worker: PieceWorker, place: PiecePlace, piece: Piece, units: Units, schema: Schema
) -> None:
    if isinstance(place, BundlePlace):
        worker.apply(piece, units, member_starts=place.starts)
        return
    first_unit = first_unit_of(place, schema)
    part = units[first_unit : first_unit + place.unit_count]
    worker.apply(piece, part, first_index=first_unit)
