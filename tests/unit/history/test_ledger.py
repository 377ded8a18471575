"""The arithmetic of a delta: any disagreement of pieces and tables is found and named."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of
from weightstore.codec.piece import Piece, ValueCoding
from weightstore.errors import CorruptObjectError, DigestMismatchError
from weightstore.format.manifest import Manifest
from weightstore.format.pack import BundlePlace, PackReader, PiecePlace, TensorPlace
from weightstore.history.ledger import DeltaCounts, DeltaLedger
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.testing.real_versions import ThreeVersions

Booked = tuple[PiecePlace, Piece, NDArray[np.int64] | None]


class Books:
    """The delta of version 2, its pieces and both tables."""

    def __init__(self, chain: ThreeVersions) -> None:
        plan = chain.versions.plan(chain.versions.records[1])
        self.schema: Schema = plan.schema
        self.manifest: Manifest = plan.manifest
        self.before: NDArray[np.uint64] = plan.first_table
        self.after: NDArray[np.uint64] = np.array(plan.last_table)
        self.pieces: list[Booked] = []
        assert self.manifest.delta is not None
        for pack in self.manifest.delta.packs:
            reader = PackReader(chain.blobs._blobs[pack.key], self.schema, Limits())
            for index, place in enumerate(reader.places):
                is_bundle = isinstance(place, BundlePlace)
                counts = reader.member_changed_counts(index) if is_bundle else None
                self.pieces.append((place, reader.piece(index), counts))

    def ledger(self) -> DeltaLedger:
        return DeltaLedger(self.schema, self.manifest, self.before, self.after)

    def settle(self) -> None:
        ledger = self.ledger()
        for piece in self.pieces:
            ledger.add(*piece)
        ledger.settle()

    def index(self, name: str) -> int:
        return self.schema.index_of(name)


@pytest.fixture
def books(chain: ThreeVersions) -> Books:
    return Books(chain)


def test_a_right_delta_settles(books: Books) -> None:
    books.settle()


def test_a_large_tensor_whose_table_moved_otherwise_is_named(books: Books) -> None:
    books.after[books.index("head"), 1] += np.uint64(1)
    with pytest.raises(DigestMismatchError) as caught:
        books.settle()
    assert caught.value.facts == {"version": 2, "tensors": ("head",)}


def test_an_unchanged_tensor_whose_table_moved_is_named(books: Books) -> None:
    books.after[books.index("block.unused"), 0] = np.uint64(5)
    with pytest.raises(DigestMismatchError, match=r"'block\.unused'"):
        books.settle()


def test_a_bundle_whose_members_sum_to_something_else_is_named(books: Books) -> None:
    books.after[books.index("block.norm"), 0] += np.uint64(1)
    with pytest.raises(DigestMismatchError, match=r"'block\.norm'"):
        books.settle()


def test_a_still_member_must_keep_its_lanes_even_if_the_bundle_sums_up(books: Books) -> None:
    norm, bias = books.index("block.norm"), books.index("head.bias")
    place, piece, counts = next(
        each
        for each in books.pieces
        if isinstance(each[0], BundlePlace) and norm in each[0].members
    )
    assert isinstance(place, BundlePlace)
    assert counts is not None
    still = counts.copy()
    still[place.members.index(bias)] = 0
    with pytest.raises(DigestMismatchError) as caught:
        books.ledger().add(place, piece, still)
    assert caught.value.facts["tensors"] == ("head.bias",)


def test_the_changes_of_a_bundle_may_not_be_booked_twice(books: Books) -> None:
    bundle = next(each for each in books.pieces if isinstance(each[0], BundlePlace))
    ledger = books.ledger()
    ledger.add(*bundle)
    with pytest.raises(CorruptObjectError, match="two pieces change the bundle"):
        ledger.add(*bundle)


def test_a_piece_too_few_is_found_by_its_count(books: Books) -> None:
    books.pieces.pop()
    with pytest.raises(CorruptObjectError, match="the manifest says"):
        books.settle()


def new_bits(chain: ThreeVersions, name: str, unit_count: int | None = None) -> Piece:
    new = chain.weights[1][name][:unit_count]
    piece = PieceCodec().worker().encode(None, new, coding=ValueCoding.DENSE_BITS).piece
    assert piece is not None
    return piece


def only(books: Books, *booked: Booked) -> None:
    """Books of a delta that changes nothing else."""
    assert books.manifest.delta is not None
    kept = books.after.copy()
    books.after[:] = books.before
    for place, _, _ in booked:
        assert isinstance(place, TensorPlace)
        books.after[place.tensor_index] = kept[place.tensor_index]
    delta = books.manifest.delta.model_copy(
        update={
            "piece_count": len(booked),
            "changed_count": sum(piece.changed_count for _, piece, _ in booked),
        }
    )
    books.manifest = books.manifest.model_copy(update={"delta": delta})
    books.pieces = list(booked)


def test_new_bits_without_a_base_count_as_the_whole_tensor(
    books: Books, chain: ThreeVersions
) -> None:
    piece = new_bits(chain, "head")
    only(books, (TensorPlace(books.index("head"), 0, 75_000), piece, None))
    books.settle()


def test_new_bits_of_a_part_cannot_be_followed(books: Books, chain: ThreeVersions) -> None:
    piece = new_bits(chain, "head", 40_000)
    only(books, (TensorPlace(books.index("head"), 0, 40_000), piece, None))
    with pytest.raises(CorruptObjectError, match="a part of 'head'"):
        books.settle()


def test_the_lanes_of_a_piece_are_those_of_its_bits(chain: ThreeVersions) -> None:
    piece = new_bits(chain, "head")
    assert piece.lane_deltas == lanes_of(chain.weights[1]["head"])


def test_counts_of_whole_packs_are_those_of_their_pieces(books: Books) -> None:
    assert books.manifest.delta is not None
    counts = np.array([piece.changed_count for _, piece, _ in books.pieces])
    right = DeltaCounts(books.manifest)
    right.add_pack(counts[:1])
    right.add_pack(counts[1:])
    right.settle()
    for wrong in (counts[1:], counts + 1):
        counted = DeltaCounts(books.manifest)
        counted.add_pack(wrong)
        with pytest.raises(CorruptObjectError, match="the manifest says"):
            counted.settle()
