"""From pieces and the bits that are live to absolute new bits, each piece checked at its step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.lanes import LANE_COUNT, Units, index_words, mix
from weightstore.codec.piece import ValueCoding
from weightstore.codec.sparse import SparseChange
from weightstore.errors import (
    CorruptError,
    CorruptObjectError,
    LiveWeightsError,
    WrongBaseError,
)
from weightstore.format.pack import BundlePlace
from weightstore.history.pack_jobs import explained
from weightstore.history.workers import Lender
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.piece_feed import WrongAnswerError
from weightstore.receiver.piece_groups import PieceGroup, PieceRef
from weightstore.receiver.placement import Destination, Placement

Chosen = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """What changes in one destination.

    Attributes:
        destination: Its number in the placement.
        change: In units of its storage.
        lane_deltas: What the change adds to the lanes of the destination; uint64, or None
            where the destination is a whole tensor and the digest table says it.
    """

    destination: int
    change: BlockedChange
    lane_deltas: NDArray[np.uint64] | None


@dataclass(frozen=True, slots=True, eq=False)
class GroupChange:
    """What a group of pieces does to live memory.

    Attributes:
        segments: One for each destination that changes.
        position_count: Different units of the tensors that change.
        missed_count: Those among them that live nowhere here.
        decoded_size_bytes: Bytes of positions and words.
    """

    segments: tuple[Segment, ...]
    position_count: int
    missed_count: int
    decoded_size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Decoded:
    ref: PieceRef
    sparse: SparseChange
    positions: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """What is live at the positions of a group.

    Attributes:
        bits: At each position; zeros where nothing of it lives here.
        is_here: Which positions live here.
        found: Number, chosen positions, units of the storage and bits of each destination.
    """

    bits: Units
    is_here: NDArray[np.bool_]
    found: list[tuple[int, Chosen, NDArray[np.int64], Units]]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """The one run of host memory that holds every unit of the only piece of a group.

    Attributes:
        number: Of the destination.
        is_whole: Whether all of the tensor is there.
        storage: The memory.
        first: Its unit that is the piece's first.
        first_index: Canonical index of that unit.
    """

    number: int
    is_whole: bool
    storage: HostStorage
    first: int
    first_index: int


class Evaluator:
    """Works out groups; safe from several threads. Reads live memory and writes none.

    Args:
        placement: Where the tensors live.
        codec: Kernels to use.
    """

    def __init__(self, placement: Placement, codec: PieceCodec) -> None:
        self._placement = placement
        self._codec = codec
        self._largest_count = max((each.unit_count for each in placement.storages), default=0)
        self._workers: Lender[PieceWorker] = Lender(codec.worker)

    def evaluate(self, group: PieceGroup) -> GroupChange:
        """Follow a group's pieces over the bits that are live.

        Pieces that somebody else decoded are taken from there. If they do not fit, the
        pieces are decoded here too, which says whether they, or something else, is wrong.

        Raises:
            CorruptObjectError: a piece is damaged.
            WrongBaseError: a piece does not fit the bits below it (P8 c).
            LiveWeightsError: two places of one tensor hold different bits.
            WrongAnswerError: somebody else decoded a piece wrongly.
        """
        # Large memory is looked at with numba; from now on small pieces are decoded with it too.
        self._codec.kernels_for(self._largest_count)
        with self._workers.lend() as worker:
            try:
                return self._followed(worker, group, is_own=False)
            except (CorruptObjectError, WrongBaseError) as error:
                if all(ref.job.decoded is None for ref in group.pieces):
                    raise
                self._followed(worker, group, is_own=True)
                raise WrongAnswerError(error.message) from error

    def _followed(self, worker: PieceWorker, group: PieceGroup, *, is_own: bool) -> GroupChange:
        run = _run_of(group, self._placement)
        if run is not None:
            return _followed_run(worker, group, run, is_own=is_own)
        decoded = [_decode(worker, group, ref, is_own=is_own) for ref in group.pieces]
        positions = _union(decoded)
        held = self._gather(group, positions)
        after = held.bits.copy()
        for each in decoded:
            _follow(worker, group, each, positions, held, after)
        return GroupChange(
            tuple(self._segments(group, positions, held, after)),
            positions.size,
            int(positions.size - np.count_nonzero(held.is_here)),
            sum(each.sparse.size_bytes for each in decoded),
        )

    def _gather(self, group: PieceGroup, positions: NDArray[np.int64]) -> _Held:
        dtype = self._placement.schema.tensors[group.members[0]].dtype.unit_dtype
        bits: Units = np.zeros(positions.size, dtype)
        is_here = np.zeros(positions.size, np.bool_)
        found: list[tuple[int, Chosen, NDArray[np.int64], Units]] = []
        for member, first, indices in _by_member(group, positions):
            for number, destination in self._placement.by_tensor.get(member, ()):
                inside, places = destination.extent.find(indices)
                if not places.size:
                    continue
                chosen = _shifted(inside, first)
                old_bits = self._placement.storage_of(destination).gather(places)
                if np.any(is_here[chosen] & (bits[chosen] != old_bits)):
                    raise self._unequal(destination)
                bits[chosen] = old_bits
                is_here[chosen] = True
                found.append((number, chosen, places, old_bits))
        return _Held(bits, is_here, found)

    def _segments(
        self, group: PieceGroup, positions: NDArray[np.int64], held: _Held, after: Units
    ) -> Iterator[Segment]:
        for number, chosen, places, old_bits in held.found:
            new_bits = after[chosen]
            destination = self._placement.destinations[number]
            lanes = None
            if not destination.is_whole:
                member = group.members.index(destination.tensor_index)
                indices = positions[chosen] - int(group.starts[member]) + group.first_index
                lanes = _lane_deltas(indices, old_bits, new_bits)
            yield Segment(number, _blocked(places, old_bits, new_bits), lanes)

    def _unequal(self, destination: Destination) -> LiveWeightsError:
        name = self._placement.schema.tensors[destination.tensor_index].name
        return LiveWeightsError(
            f"two places that hold tensor {name!r} differ: somebody wrote one of them",
            facts={"tensor": name},
        )


def _run_of(group: PieceGroup, placement: Placement) -> _Run | None:
    """Where the only piece of a group lives, if that is one run of host memory."""
    destinations = placement.by_tensor.get(group.members[0], ())
    if len(group.pieces) != 1 or len(destinations) != 1:
        return None
    ref = group.pieces[0]
    if isinstance(ref.place, BundlePlace):
        return None
    number, destination = destinations[0]
    storage, extent = placement.storage_of(destination), destination.extent
    first_index = group.first_index + group.first_unit(ref)
    ahead_count = first_index - extent.first_index
    is_one_run = (
        isinstance(storage, HostStorage)
        and ref.piece.width_bytes == storage.width_bytes
        and extent.is_contiguous
        and 0 <= ahead_count <= extent.unit_count - ref.piece.unit_count
    )
    if not is_one_run:
        return None
    assert isinstance(storage, HostStorage)
    return _Run(number, destination.is_whole, storage, extent.base + ahead_count, first_index)


def _followed_run(
    worker: PieceWorker, group: PieceGroup, run: _Run, *, is_own: bool
) -> GroupChange:
    """Follow the only piece of a group over one run: the general way without its detours."""
    ref = group.pieces[0]
    sparse = _sparse(worker, ref, is_own=is_own)
    change = run.storage.follow(run.first, sparse)
    _check(worker, ref, sparse, (change.old_bits, change.new_bits), run.first_index)
    lanes = None
    if not run.is_whole:
        lanes = np.array(ref.piece.lane_deltas, np.uint64)
        if ref.piece.value_coding is ValueCoding.DENSE_BITS:
            # Such a piece has the lanes of its new bits, and not what they add.
            indices = sparse.positions.astype(np.int64) + run.first_index
            lanes = _lane_deltas(indices, change.old_bits, change.new_bits)
    segment = Segment(run.number, change, lanes)
    return GroupChange((segment,), change.count, 0, sparse.size_bytes)


def _sparse(worker: PieceWorker, ref: PieceRef, *, is_own: bool) -> SparseChange:
    others = None if is_own else ref.job.decoded
    try:
        return worker.sparse(ref.piece) if others is None else others.sparse(ref.number)
    except CorruptError as error:
        raise explained(error, ref.job, ref.place) from error


def _check(
    worker: PieceWorker,
    ref: PieceRef,
    sparse: SparseChange,
    bits: tuple[Units, Units],
    first_index: int,
) -> None:
    """Compare what a piece does to the bits below it with its digest difference (P8 c)."""
    place = ref.place
    starts = place.starts if isinstance(place, BundlePlace) else None
    try:
        worker.check_change(
            ref.piece, sparse.positions, *bits, first_index=first_index, member_starts=starts
        )
    except CorruptError as error:
        raise explained(error, ref.job, place) from error


def _decode(worker: PieceWorker, group: PieceGroup, ref: PieceRef, *, is_own: bool) -> _Decoded:
    sparse = _sparse(worker, ref, is_own=is_own)
    positions = sparse.positions.astype(np.int64) + group.first_unit(ref)
    return _Decoded(ref, sparse, positions)


def _union(decoded: list[_Decoded]) -> NDArray[np.int64]:
    if len(decoded) == 1:
        return decoded[0].positions
    return np.unique(np.concatenate([each.positions for each in decoded]))


def _by_member(
    group: PieceGroup, positions: NDArray[np.int64]
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """Members that change: schema index, first of their positions, canonical indices."""
    bounds = np.searchsorted(positions, group.starts)
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        first, end = int(bounds[number]), int(bounds[number + 1])
        shift = group.first_index - int(group.starts[number])
        yield group.members[number], first, positions[first:end] + shift


def _shifted(chosen: Chosen, first: int) -> Chosen:
    if isinstance(chosen, slice):
        return slice(chosen.start + first, chosen.stop + first)
    return chosen + first


def _follow(
    worker: PieceWorker,
    group: PieceGroup,
    each: _Decoded,
    positions: NDArray[np.int64],
    held: _Held,
    after: Units,
) -> None:
    """Let one piece change the bits that the pieces before it left."""
    is_all = each.positions.size == positions.size
    at: Chosen = slice(0, positions.size)
    if not is_all:
        at = np.searchsorted(positions, each.positions)
    before = after[at].copy()
    new_bits = each.sparse.after(before)
    # A piece that lives here in part has a digest difference that nobody here can compute.
    if held.is_here[at].all():
        first_index = group.first_index + group.first_unit(each.ref)
        _check(worker, each.ref, each.sparse, (before, new_bits), first_index)
    after[at] = new_bits


def _blocked(places: NDArray[np.int64], old_bits: Units, new_bits: Units) -> BlockedChange:
    if np.any(places[1:] <= places[:-1]):
        order = np.argsort(places)
        places, old_bits, new_bits = places[order], old_bits[order], new_bits[order]
    return BlockedChange.of(places, old_bits, new_bits)


def _lane_deltas(
    indices: NDArray[np.int64], old_bits: Units, new_bits: Units
) -> NDArray[np.uint64]:
    before, after = old_bits.astype(np.uint64), new_bits.astype(np.uint64)
    sums = np.empty(LANE_COUNT, np.uint64)
    for lane in range(LANE_COUNT):
        words = index_words(indices.view(np.uint64), lane)
        sums[lane] = np.sum(mix(after ^ words) - mix(before ^ words), dtype=np.uint64)
    return sums
