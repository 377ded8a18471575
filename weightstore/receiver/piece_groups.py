"""Which pieces of one or more deltas belong together: those that change the same units."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import Piece
from weightstore.format.manifest import Manifest
from weightstore.format.pack import BundlePlace, PiecePlace
from weightstore.history.chain import delta_form
from weightstore.history.extents import DeltaExtents
from weightstore.history.ledger import DeltaLedger
from weightstore.history.pack_jobs import PackJob
from weightstore.history.replay import first_unit_of
from weightstore.layout.schema import Schema
from weightstore.receiver.placement import Placement
from weightstore.settings import Limits


@dataclass(frozen=True, slots=True, eq=False)
class PieceRef:
    """A piece, the pack that it is of, and the units that it changes.

    Attributes:
        job: The pack.
        number: Of the piece in the pack.
        place: Which units.
        piece: The piece.
    """

    job: PackJob
    number: int
    place: PiecePlace
    piece: Piece


@dataclass(frozen=True, slots=True, eq=False)
class PieceGroup:
    """Pieces that may change the same units, and the units that they are about.

    Attributes:
        members: Schema indices of the tensors.
        starts: First unit of each member in the group, and the group's unit count; int64.
        first_index: Canonical index of the first unit; 0 for a bundle, whose members are
            whole tensors.
        pieces: Oldest delta first.
    """

    members: tuple[int, ...]
    starts: NDArray[np.int64]
    first_index: int
    pieces: tuple[PieceRef, ...]

    @property
    def unit_count(self) -> int:
        """Units that it is about."""
        return int(self.starts[-1])

    @property
    def changed_count(self) -> int:
        """Changed units; one that several pieces change counts for each."""
        return sum(ref.piece.changed_count for ref in self.pieces)

    def first_unit(self, ref: PieceRef) -> int:
        """Where a piece begins in the group."""
        if isinstance(ref.place, BundlePlace):
            return 0
        return first_unit_of(ref.place, ref.job.schema) - self.first_index


def booked_pieces(
    schema: Schema,
    manifest: Manifest,
    loaded: Generator[PackJob, None, None],
    tables: tuple[NDArray[np.uint64], NDArray[np.uint64]],
    limits: Limits,
) -> Iterator[list[PieceRef]]:
    """The pieces of one delta, a pack at a time, booked against the digest tables.

    Nothing may be done with them before the iterator has ended: only then it is known that
    they are all of the delta and that no two change one unit.

    Args:
        schema: Of the version.
        manifest: Of the version.
        loaded: Gives its packs in order.
        tables: Lanes of the base and of the version, shape (tensors, 2) each.
        limits: Hard bounds.

    Raises:
        CorruptObjectError: two packs change the same units, or counts are not the
            manifest's.
        DigestMismatchError: the pieces do not lead from table to table.
    """
    extents = DeltaExtents(schema, manifest.version, limits)
    ledger = DeltaLedger(schema, manifest, *tables)
    for pack in delta_form(manifest).packs:
        job = next(loaded)
        extents.add(pack.key, job.reader.places)
        refs = []
        for index in range(job.reader.piece_count):
            place, piece = job.reader.places[index], job.reader.piece(index)
            is_bundle = isinstance(place, BundlePlace)
            counts = job.reader.member_changed_counts(index) if is_bundle else None
            ledger.add(place, piece, counts)
            refs.append(PieceRef(job, index, place, piece))
        yield refs
    extents.settle()
    ledger.settle()


def group_pieces(refs: Iterable[PieceRef], schema: Schema) -> list[PieceGroup]:
    """Put pieces together that change units of the same run, or the same bundle.

    Args:
        refs: Of all deltas, the oldest first.
        schema: Of all the versions.
    """
    bundles: dict[int, list[PieceRef]] = defaultdict(list)
    tensors: dict[int, list[tuple[int, int, PieceRef]]] = defaultdict(list)
    for ref in refs:
        if isinstance(ref.place, BundlePlace):
            bundles[ref.place.members[0]].append(ref)
        else:
            first = first_unit_of(ref.place, schema)
            end = first + ref.place.unit_count
            tensors[ref.place.tensor_index].append((first, end, ref))
    groups = [_bundle_group(pieces) for pieces in bundles.values()]
    for index, runs in tensors.items():
        groups += _run_groups(index, runs)
    return groups


def is_here(group: PieceGroup, placement: Placement) -> bool:
    """Whether anything of a group may live in a placement; False is certain."""
    return any(
        destination.extent.touches(group.first_index, int(end - start))
        for member, start, end in zip(
            group.members, group.starts[:-1], group.starts[1:], strict=True
        )
        for _, destination in placement.by_tensor.get(member, ())
    )


def storages_of(group: PieceGroup, placement: Placement) -> set[int]:
    """The memories that the members of a group live in."""
    return {
        destination.storage_index
        for member in group.members
        for _, destination in placement.by_tensor.get(member, ())
    }


def _bundle_group(pieces: list[PieceRef]) -> PieceGroup:
    place = pieces[0].place
    assert isinstance(place, BundlePlace)
    return PieceGroup(place.members, place.starts, 0, tuple(pieces))


def _run_groups(index: int, runs: list[tuple[int, int, PieceRef]]) -> Iterator[PieceGroup]:
    """Clusters of runs that overlap; inside one the order of the deltas stays."""
    order = sorted(range(len(runs)), key=lambda number: runs[number][0])
    cluster: list[int] = []
    reach = 0
    for number in order:
        first, end, _ = runs[number]
        if cluster and first >= reach:
            yield _run_group(index, runs, cluster)
            cluster = []
        cluster.append(number)
        reach = max(reach, end)
    if cluster:
        yield _run_group(index, runs, cluster)


def _run_group(index: int, runs: list[tuple[int, int, PieceRef]], cluster: list[int]) -> PieceGroup:
    first = min(runs[number][0] for number in cluster)
    end = max(runs[number][1] for number in cluster)
    pieces = tuple(runs[number][2] for number in sorted(cluster))
    return PieceGroup((index,), np.array([0, end - first], np.int64), first, pieces)
