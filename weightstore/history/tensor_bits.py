"""The bits of a version a few tensors at a time, all verified, in bounded memory.

A checkout holds the whole version. Here a **group** is made at a time: one large tensor, or
a bundle of small ones. What stays in memory between groups are the piece indexes of the
chain, the headers of the full form, and the groups that were made last.
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
from weightstore.format.objects import ObjectRef
from weightstore.format.pack_map import PackMap
from weightstore.format.piece_index import BundlePlace, PiecePlace, TensorPlace
from weightstore.history.anchors import Bytes, StoredFile, check_size, open_files, read_header
from weightstore.history.chain import delta_form
from weightstore.history.manifests import fetch_object, missing_object
from weightstore.history.replay import first_unit_of
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import MIB, Limits
from weightstore.storage.blobs import BlobStore

KEPT_SIZE_BYTES = 64 * MIB
"""Groups that were made last stay up to this size; the last one always stays."""


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
    ref: PackRef
    map: PackMap


class DeltaBits:
    """Reads the pieces of one delta that change a group. Every pack is verified at first.

    Args:
        blobs: The store.
        manifest: Has a delta.
        schema: Of the version.
        limits: Hard bounds.

    Raises:
        ObjectMissingError: a pack is not there.
        CorruptObjectError: one is damaged.
    """

    def __init__(
        self, blobs: BlobStore, manifest: Manifest, schema: Schema, limits: Limits
    ) -> None:
        self._blobs = blobs
        self._manifest = manifest
        self._schema = schema
        self._pieces: dict[int, list[tuple[_Pack, int]]] = {}
        for ref in delta_form(manifest).packs:
            pack = _Pack(ref, PackMap(fetch_pack(blobs, manifest, ref, limits), schema, limits))
            for index, place in enumerate(pack.map.places):
                key = place.tensor_index if isinstance(place, TensorPlace) else place.members[0]
                self._pieces.setdefault(key, []).append((pack, index))

    def apply(self, group: Group, units: Units, worker: PieceWorker) -> None:
        """Change the units of a group from those of the base to those of the version.

        Raises:
            CorruptError: a piece is damaged or does not fit; names version and pack.
        """
        for pack, index in self._pieces.get(group.key, ()):
            place = pack.map.places[index]
            try:
                _apply(worker, place, self._read(pack, index), units, self._schema)
            except CorruptError as error:
                version = self._manifest.version
                raise type(error)(
                    f"version {version}, pack {pack.ref.key}: {error.message}",
                    do=error.do,
                    facts={**error.facts, "version": version, "key": pack.ref.key},
                ) from error

    def _read(self, pack: _Pack, index: int) -> Piece:
        streams: list[bytes] = []
        for offset, size_bytes in pack.map.ranges(index):
            stream = bytearray(size_bytes)
            try:
                self._blobs.read_into(pack.ref.key, offset, stream)
            except BlobNotFoundError as error:
                raise missing_object(self._manifest.version, "pack", pack.ref.key) from error
            streams.append(bytes(stream))
        return pack.map.piece(index, streams)


class VersionBits:
    """The bits of a version: those of something below it, and the deltas after that.

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
        made = self._made.get(group.key)
        if made is None:
            made = self._make(group)
            self._keep(group.key, made)
        self._made.move_to_end(group.key)
        return made

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
                f"the bits of tensor {name!r} do not have the digest of their version",
                do="Verify the store (weightstore doctor --deep).",
                facts={"tensor": name},
            )
        units.flags.writeable = False
        return units

    def _keep(self, key: int, units: Units) -> None:
        self._made[key] = units
        size_bytes = sum(each.nbytes for each in self._made.values())
        while size_bytes > KEPT_SIZE_BYTES and len(self._made) > 1:
            size_bytes -= self._made.popitem(last=False)[1].nbytes


def fetch_pack(blobs: BlobStore, manifest: Manifest, ref: PackRef, limits: Limits) -> bytes:
    """A pack of a version, whole and verified.

    Raises:
        ObjectMissingError: it is not there.
        CorruptObjectError: it is not what was committed.
    """
    return fetch_object(
        blobs,
        ObjectRef(key=ref.key, size_bytes=ref.size_bytes, sha256=ref.sha256),
        version=manifest.version,
        what="pack",
        max_size_bytes=limits.pack_size_bytes,
    )


def _apply(
    worker: PieceWorker, place: PiecePlace, piece: Piece, units: Units, schema: Schema
) -> None:
    if isinstance(place, BundlePlace):
        worker.apply(piece, units, member_starts=place.starts)
        return
    first_unit = first_unit_of(place, schema)
    part = units[first_unit : first_unit + place.unit_count]
    worker.apply(piece, part, first_index=first_unit)
