"""The arithmetic of one delta: its pieces must lead from one digest table to the next."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import Piece, ValueCoding
from weightstore.errors import CorruptObjectError, DigestMismatchError
from weightstore.format.manifest import Manifest
from weightstore.format.pack import BundlePlace, PiecePlace, TensorPlace
from weightstore.layout.schema import Schema

_NAMED_COUNT = 5


class DeltaBook(Protocol):
    """Is told of every piece of a delta, and at the end whether they make it up."""

    def add(
        self, place: PiecePlace, piece: Piece, member_changed_counts: NDArray[np.int64] | None
    ) -> None:
        """Book one piece."""
        ...

    def settle(self) -> None:
        """Close the books after the last piece."""
        ...


class DeltaCounts:
    """Counts the pieces and changes of a delta: all that can be said without its base.

    Args:
        manifest: Of the version; its delta says how many there are.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._changed_count = 0
        self._piece_count = 0

    def add(
        self, _place: PiecePlace, piece: Piece, _member_counts: NDArray[np.int64] | None
    ) -> None:
        """Count one piece."""
        self._changed_count += piece.changed_count
        self._piece_count += 1

    def add_pack(self, changed_counts: NDArray[np.int64]) -> None:
        """Count all pieces of a pack.

        Args:
            changed_counts: Changed units of each piece.
        """
        self._changed_count += int(changed_counts.sum())
        self._piece_count += changed_counts.size

    def settle(self) -> None:
        """Compare the counts after the last piece.

        Raises:
            CorruptObjectError: they differ from the manifest.
        """
        delta, version = self._manifest.delta, self._manifest.version
        expected = (delta.piece_count, delta.changed_count) if delta else (0, 0)
        if (self._piece_count, self._changed_count) != expected:
            raise CorruptObjectError(
                f"version {version}: its packs have {self._piece_count} pieces with "
                f"{self._changed_count} changes, the manifest says {expected[0]} and {expected[1]}",
                do="Restore the packs from another copy of the store.",
                facts={"version": version},
            )


class DeltaLedger:
    """Books the lane differences of every piece of a delta against its digest tables.

    A tensor that no piece names must have equal lanes before and after; one that pieces
    name must differ by their sum. For a bundle the sum over its members is compared, and a
    member without a change must have equal lanes. Not for several threads.

    Args:
        schema: Of the version.
        manifest: Of the version; its delta says how much is changed.
        before: Lanes of the base, shape (tensors, 2).
        after: Lanes of the version, shape (tensors, 2).
    """

    def __init__(
        self,
        schema: Schema,
        manifest: Manifest,
        before: NDArray[np.uint64],
        after: NDArray[np.uint64],
    ) -> None:
        self._schema = schema
        self._manifest = manifest
        self._after = after
        self._before = before
        self._differences = after - before
        self._found = np.zeros_like(self._differences)
        self._absolute_counts = np.zeros(len(schema.tensors), np.int64)
        self._relative = np.zeros(len(schema.tensors), np.bool_)
        self._counts = DeltaCounts(manifest)

    def add(
        self, place: PiecePlace, piece: Piece, member_changed_counts: NDArray[np.int64] | None
    ) -> None:
        """Book one piece.

        Args:
            place: Which units it changes.
            piece: Its counts and lane differences are read, its streams are not.
            member_changed_counts: Of a bundle piece.

        Raises:
            DigestMismatchError: a bundle piece does not fit the tables.
            CorruptObjectError: a bundle is changed twice.
        """
        self._counts.add(place, piece, member_changed_counts)
        is_absolute = piece.value_coding is ValueCoding.DENSE_BITS
        lanes = np.array(piece.lane_deltas, np.uint64)
        if isinstance(place, TensorPlace):
            self._found[place.tensor_index] += lanes
            if is_absolute:
                self._absolute_counts[place.tensor_index] += piece.unit_count
            else:
                self._relative[place.tensor_index] = True
            return
        assert member_changed_counts is not None
        self._add_bundle(place, lanes, member_changed_counts, is_absolute=is_absolute)

    def settle(self) -> None:
        """Close the books after the last piece.

        Raises:
            DigestMismatchError: tensors differ between the tables by something else than
                their pieces; names them.
            CorruptObjectError: counts differ from the manifest, or a tensor is partly said
                without a base.
        """
        self._counts.settle()
        version = self._manifest.version
        absolute = np.flatnonzero(self._absolute_counts)
        partly = self._relative[absolute] | (
            self._absolute_counts[absolute] != self._schema.unit_counts[absolute]
        )
        if np.any(partly):
            raise CorruptObjectError(
                f"version {version}: a part of {self._names(absolute[partly])} is said without "
                "a base, so that its digest cannot be followed",
                do="Check out a version with a full form; report the store as damaged.",
                facts={"version": version},
            )
        self._found[absolute] -= self._before[absolute]
        wrong = np.flatnonzero(np.any(self._found != self._differences, axis=1))
        if wrong.size:
            raise self._mismatch(wrong)

    def _add_bundle(
        self,
        place: BundlePlace,
        lanes: NDArray[np.uint64],
        changed_counts: NDArray[np.int64],
        *,
        is_absolute: bool,
    ) -> None:
        members = np.array(place.members, np.int64)
        if np.any(self._relative[members]):
            raise CorruptObjectError(
                f"version {self._manifest.version}: two pieces change the bundle of "
                f"{self._names(members)}",
                do="Restore the packs from another copy of the store.",
                facts={"version": self._manifest.version},
            )
        differences = self._differences[members]
        summed = (self._after[members] if is_absolute else differences).sum(axis=0)
        if not np.array_equal(summed, lanes):
            raise self._mismatch(members)
        still = changed_counts == 0
        wrong = np.any(differences[still] != 0, axis=1)
        if np.any(wrong) and not is_absolute:
            raise self._mismatch(members[still][wrong])
        self._relative[members] = True
        self._found[members] = differences

    def _mismatch(self, indices: NDArray[np.int64]) -> DigestMismatchError:
        base = self._manifest.base
        return DigestMismatchError(
            f"version {self._manifest.version}: the digests of {self._names(indices)} do not "
            f"differ from those of version {base.version if base else None} by what its pieces "
            "change",
            do="Check out a version with a full form; report the store as damaged.",
            facts={
                "version": self._manifest.version,
                "tensors": tuple(self._schema.tensors[index].name for index in indices.tolist()),
            },
        )

    def _names(self, indices: NDArray[np.int64]) -> str:
        names = [
            repr(self._schema.tensors[index].name) for index in indices[:_NAMED_COUNT].tolist()
        ]
        more = indices.size - len(names)
        return ", ".join(names) + (f" and {more} more tensors" if more else "")
