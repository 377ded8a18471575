"""Reading the packs of deltas: each whole, verified and parsed before any piece is used."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from weightstore.codec.sparse import SparseChange
from weightstore.errors import CorruptError, CorruptObjectError, Fact, WrongBaseError
from weightstore.format.manifest import Manifest, PackRef
from weightstore.format.objects import ObjectRef
from weightstore.format.pack import PackReader, PiecePlace, TensorPlace
from weightstore.format.piece_index import PieceIndex
from weightstore.history.chain import delta_form
from weightstore.history.manifests import fetch_object
from weightstore.history.workers import Workers
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore


class Parsed(Protocol):
    """A parsed pack: all its data, or only where its pieces lie."""

    @property
    def places(self) -> PieceIndex:
        """Which units each piece changes."""
        ...


ParsedT = TypeVar("ParsedT", bound=Parsed)


class PackSource(Protocol):
    """The pack that a piece is of, as far as errors name it."""

    @property
    def manifest(self) -> Manifest:
        """Of the version."""
        ...

    @property
    def pack(self) -> PackRef:
        """What the manifest says of the pack."""
        ...

    @property
    def schema(self) -> Schema:
        """Of the version."""
        ...


class DecodedPieces(Protocol):
    """The pieces of a pack as somebody else decoded them. Safe from several threads."""

    def sparse(self, number: int, /) -> SparseChange:
        """The change of one piece.

        Raises:
            CorruptObjectError: it cannot be what the piece says.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PackJob:
    """One verified pack of one delta, and what its errors name.

    Attributes:
        manifest: Of the version.
        pack: What it says of the pack.
        reader: Over the verified bytes.
        schema: Of the version.
        decoded: Its pieces, if somebody else decoded them; not verified.
    """

    manifest: Manifest
    pack: PackRef
    reader: PackReader
    schema: Schema
    decoded: DecodedPieces | None = None


LoadPack = Callable[[Schema, Manifest, PackRef], PackJob]
"""Gets one pack, verified."""


def load_packs(
    blobs: BlobStore,
    schema: Schema,
    manifests: Sequence[Manifest],
    *,
    workers: Workers,
    limits: Limits,
    load: LoadPack | None = None,
) -> Generator[PackJob, None, None]:
    """The packs of deltas in order, read and checked ahead by the workers.

    Args:
        blobs: The store.
        schema: Of all the versions.
        manifests: Each has a delta; oldest first.
        workers: Threads to use; so many packs are in memory beside the one in hand.
        limits: Hard bounds.
        load: Gets one; None reads it from the store.

    Raises:
        ObjectMissingError: a pack is not there; names version and object.
        CorruptObjectError: a pack is damaged, or has another number of pieces.
    """

    def load_own(schema: Schema, manifest: Manifest, pack: PackRef) -> PackJob:
        return load_pack(blobs, schema, manifest, pack, limits)

    loads = (
        partial(load or load_own, schema, manifest, pack)
        for manifest in manifests
        for pack in delta_form(manifest).packs
    )
    return workers.run(loads, ahead=workers.thread_count)


def read_pack(
    blobs: BlobStore,
    schema: Schema,
    manifest: Manifest,
    pack: PackRef,
    limits: Limits,
    *,
    parse: Callable[[bytes, Schema, Limits], ParsedT],
) -> ParsedT:
    """Read one pack, whole, and check it as far as it can be by itself.

    Args:
        blobs: The store.
        schema: Of the version.
        manifest: Of the version.
        pack: One of its packs.
        limits: Hard bounds.
        parse: Makes something of the verified bytes.

    Raises:
        ObjectMissingError: it is not there; names version and object.
        CorruptObjectError: it is damaged, is no pack of the schema, or has another number of
            pieces than the manifest says; names version and object.
    """
    ref = ObjectRef(key=pack.key, size_bytes=pack.size_bytes, sha256=pack.sha256)
    data = fetch_object(
        blobs,
        ref,
        version=manifest.version,
        what="pack",
        max_size_bytes=limits.pack_size_bytes,
    )
    try:
        parsed = parse(data, schema, limits)
    except CorruptObjectError as error:
        where = f"version {manifest.version}, pack {pack.key}"
        raise _located(error, where, {"version": manifest.version, "key": pack.key}) from error
    if len(parsed.places) != pack.piece_count:
        raise CorruptObjectError(
            f"version {manifest.version}: the pack {pack.key} has {len(parsed.places)} "
            f"pieces, the manifest says {pack.piece_count}",
            do="Restore the pack from another copy of the store.",
            facts={"version": manifest.version, "key": pack.key},
        )
    return parsed


def load_pack(
    blobs: BlobStore, schema: Schema, manifest: Manifest, pack: PackRef, limits: Limits
) -> PackJob:
    """Read one pack for its pieces; as `read_pack`."""
    reader = read_pack(blobs, schema, manifest, pack, limits, parse=PackReader)
    return PackJob(manifest, pack, reader, schema)


def explained(error: CorruptError, job: PackSource, place: PiecePlace) -> CorruptError:
    """Name version, base and tensors in an error of the codec, which knows only bits."""
    manifest, base = job.manifest, job.manifest.base
    tensor = _said(place, job.schema)
    facts: dict[str, Fact] = {
        "version": manifest.version,
        "key": job.pack.key,
        "tensor": tensor,
        "base": base.version if base else None,
        "base_digest": base.digest if base else None,
    }
    where = f"version {manifest.version}, {tensor}, pack {job.pack.key}"
    if isinstance(error, WrongBaseError):
        return WrongBaseError(
            f"{where}: the bits below are not those of the base, version {facts['base']} with "
            f"the digest {facts['base_digest']}: {error.message}",
            do="Verify the chain (weightstore verify), or check out another version.",
            facts={**error.facts, **facts},
        )
    return _located(error, where, facts)


def _said(place: PiecePlace, schema: Schema) -> str:
    if isinstance(place, TensorPlace):
        name = schema.tensors[place.tensor_index].name
        return f"tensor {name!r} from unit {place.first_unit}"
    first, last = (schema.tensors[place.members[end]].name for end in (0, -1))
    return f"the bundle of {len(place.members)} tensors from {first!r} to {last!r}"


def _located(error: CorruptError, where: str, facts: Mapping[str, Fact]) -> CorruptError:
    return type(error)(f"{where}: {error.message}", do=error.do, facts={**error.facts, **facts})
