"""No two packs of a delta change one unit, whether they say runs, boxes or bundles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import Piece
from weightstore.errors import CorruptObjectError, LimitError
from weightstore.format.pack import BundlePlace, PackBuilder, PackReader, TensorPlace
from weightstore.format.piece_index import PieceIndex
from weightstore.history import extents as extents_module
from weightstore.history.extents import DeltaExtents
from weightstore.ids import VersionId
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits

SCHEMA = Schema.build(
    [
        TensorSpec("a.empty", DType.U8, (0,)),
        TensorSpec("b", DType.U8, (300, 400)),
        TensorSpec("c", DType.U8, (300, 400)),
        TensorSpec("d", DType.U8, (70, 40, 50)),
        TensorSpec("s.one", DType.U8, (5,)),
        TensorSpec("s.two", DType.U8, (5,)),
    ]
)
B, C, D = 1, 2, 3
WORKER = PieceCodec().worker()
Place = TensorPlace | BundlePlace


def piece_of(unit_count: int) -> Piece:
    old, new = np.zeros(unit_count, np.uint8), np.zeros(unit_count, np.uint8)
    new[0] = 1
    piece = WORKER.encode(old, new).piece
    assert piece is not None
    return piece


PIECES: dict[int, Piece] = {}


def index_of(places: Iterable[Place], schema: Schema = SCHEMA) -> PieceIndex:
    """The checked index of a pack with one piece for each place."""
    builder = PackBuilder(schema)
    for place in places:
        if isinstance(place, BundlePlace):
            count = int(place.starts[-1])
            counts = np.zeros(len(place.members), np.int64)
            counts[0] = 1
        else:
            count, counts = place.unit_count, None
        if count not in PIECES:
            PIECES[count] = piece_of(count)
        builder.add(place, PIECES[count], counts)
    return PackReader(b"".join(builder.finish()), schema, Limits()).places


def check(packs: Sequence[Sequence[Place]], limits: Limits | None = None) -> None:
    """Go through packs named p0, p1 and so on."""
    extents = DeltaExtents(SCHEMA, VersionId(7), limits or Limits())
    for number, places in enumerate(packs):
        extents.add(f"p{number}", index_of(places))
    extents.settle()


def run(tensor: int, first: int, count: int) -> TensorPlace:
    return TensorPlace(tensor, first, count)


def box(
    tensor: int, offsets: tuple[int, ...], sizes: tuple[int, ...], first: int = 0, count: int = 0
) -> TensorPlace:
    whole = Box(offsets, sizes)
    return TensorPlace(tensor, first, count or whole.unit_count - first, whole)


def bundle() -> BundlePlace:
    found = SCHEMA.bundles[0]
    return BundlePlace(found.members, found.starts)


APART: dict[str, list[list[Place]]] = {
    "nothing": [],
    "runs of two tensors": [[run(B, 0, 100)], [run(C, 0, 100)]],
    "runs that touch": [[run(B, 0, 100)], [run(B, 200, 50)], [run(B, 100, 100)]],
    "end and begin of neighbours": [[run(B, 119_999, 1)], [run(C, 0, 1)]],
    "a bundle and the last unit before it": [[bundle()], [run(D, 139_999, 1)]],
    "runs of one box": [[box(B, (0, 0), (9, 400), 0, 50)], [box(B, (0, 0), (9, 400), 50)]],
    "a run and rows below it": [[run(B, 0, 400)], [box(B, (1, 0), (2, 400))]],
    "columns": [[box(B, (0, 0), (300, 100))], [box(B, (0, 100), (300, 300))]],
    "runs of one column": [
        [box(B, (0, 7), (300, 10), 0, 1001)],
        [box(B, (0, 7), (300, 10), 1001)],
    ],
    "a column and a run beside it": [[box(B, (0, 0), (3, 5))], [run(B, 5, 395), run(B, 405, 9)]],
    "cubes": [[box(D, (0, 0, 0), (7, 4, 5))], [box(D, (0, 4, 0), (7, 4, 5))]],
}
TOGETHER: dict[str, tuple[str, list[list[Place]]]] = {
    "the same run": ("b", [[run(B, 0, 100)], [run(B, 0, 100)]]),
    "one unit": ("b", [[run(B, 0, 100)], [run(B, 99, 100)]]),
    "a run in another": ("c", [[run(C, 0, 1000)], [run(C, 500, 1)]]),
    "the last unit": ("b", [[run(B, 119_999, 1)], [run(B, 119_000, 1000)]]),
    "the bundle twice": ("s.one", [[bundle()], [bundle()]]),
    "the same box": ("b", [[box(B, (1, 0), (2, 400))], [box(B, (1, 0), (2, 400))]]),
    "a run and rows": ("b", [[run(B, 0, 401)], [box(B, (1, 0), (2, 400))]]),
    "rows and a run": ("b", [[box(B, (1, 0), (2, 400))], [run(B, 1199, 2)]]),
    "the same columns": ("b", [[box(B, (0, 1), (300, 9))], [box(B, (0, 1), (300, 9))]]),
    "columns and a run": ("b", [[box(B, (0, 399), (300, 1))], [run(B, 119_999, 1)]]),
    "a run and columns": ("b", [[run(B, 400, 2)], [box(B, (0, 1), (300, 1))]]),
    "rows and columns": ("c", [[box(C, (5, 0), (1, 400))], [box(C, (0, 8), (300, 2))]]),
    "parts of one column": (
        "b",
        [[box(B, (0, 7), (300, 10), 0, 1001)], [box(B, (0, 7), (300, 10), 1000)]],
    ),
    "cubes": ("d", [[box(D, (0, 0, 0), (7, 4, 5))], [box(D, (6, 3, 4), (7, 4, 5))]]),
}


@pytest.mark.parametrize("packs", APART.values(), ids=APART)
def test_packs_that_share_no_unit_pass(packs: list[list[Place]]) -> None:
    check(packs)
    check(packs[::-1])


@pytest.mark.parametrize(("name", "packs"), TOGETHER.values(), ids=TOGETHER)
def test_packs_that_share_a_unit_are_named(name: str, packs: list[list[Place]]) -> None:
    others: list[list[Place]] = [[run(D, 9_000, 5)], [run(D, 9_005, 5)]]
    first, second = packs
    for between in (
        [first, second],
        [first, *others, second],
        [others[1], second, others[0], first],
    ):
        keys = tuple(f"p{n}" for n, one in enumerate(between) if one in (first, second))
        with pytest.raises(CorruptObjectError) as caught:
            check(between)
        assert caught.value.facts == {"version": 7, "tensor": name, "keys": keys}
        for text in (f"{name!r}", *keys, "version 7"):
            assert text in caught.value.message


def test_a_run_is_refused_before_its_pack_may_be_applied() -> None:
    extents = DeltaExtents(SCHEMA, VersionId(7), Limits())
    extents.add("p0", index_of([run(B, 0, 10)]))
    with pytest.raises(CorruptObjectError):
        extents.add("p1", index_of([run(B, 9, 10)]))


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 300), st.integers(1, 12)), min_size=1, max_size=6),
        min_size=1,
        max_size=12,
    )
)
def test_any_runs_are_refused_exactly_when_a_unit_is_said_twice(
    wanted: list[list[tuple[int, int]]],
) -> None:
    packs: list[list[Place]] = []
    seen: set[int] = set()
    is_twice = False
    for parts in wanted:
        own: set[int] = set()
        places: list[Place] = []
        for first, count in parts:
            units = set(range(first, first + count))
            if not units & own:
                own |= units
                places.append(run(B, first, count))
        is_twice = is_twice or bool(own & seen)
        seen |= own
        packs.append(places)
    if is_twice:
        with pytest.raises(CorruptObjectError, match="tensor 'b'"):
            check(packs)
    else:
        check(packs)


BOXES = st.tuples(
    st.integers(0, 5), st.integers(0, 5), st.integers(0, 5),
    st.integers(1, 3), st.integers(1, 3), st.integers(1, 3),
)  # fmt: skip


@given(st.lists(BOXES, min_size=1, max_size=12))
def test_any_boxes_are_refused_exactly_when_a_unit_is_said_twice(
    wanted: list[tuple[int, int, int, int, int, int]],
) -> None:
    hits = np.zeros((70, 40, 50), np.int64)
    packs: list[list[Place]] = []
    for x, y, z, dx, dy, dz in wanted:
        hits[x : x + dx, y : y + dy, z : z + dz] += 1
        packs.append([box(D, (x, y, z), (dx, dy, dz))])
    if hits.max() > 1:
        with pytest.raises(CorruptObjectError, match="tensor 'd'"):
            check(packs)
    else:
        check(packs)


def test_boxes_side_by_side_need_no_comparison_and_a_grid_few() -> None:
    columns: list[list[Place]] = [[box(B, (0, 4 * n), (300, 4))] for n in range(100)]
    check(columns, Limits(box_pair_count=1))
    grid: list[list[Place]] = [
        [box(B, (30 * row, 40 * column), (30, 40))] for row in range(10) for column in range(10)
    ]
    check(grid, Limits(box_pair_count=450))
    with pytest.raises(LimitError, match="450 pairs to compare are above 449") as caught:
        check(grid, Limits(box_pair_count=449))
    assert caught.value.facts == {"tensor": "b", "box_pair_count": 450}


def test_many_packs_in_any_order_are_kept_in_few_batches() -> None:
    extents = DeltaExtents(SCHEMA, VersionId(7), Limits())
    order = np.random.default_rng(0).permutation(300).tolist()
    for number in order:
        extents.add(f"p{number}", index_of([run(B, 10 * number, 10)]))
        assert len(extents._batches) <= 10
    with pytest.raises(CorruptObjectError) as caught:
        extents.add("again", index_of([run(B, 1234, 1)]))
    assert caught.value.facts["keys"] == ("p123", "again")


def test_a_schema_beyond_any_store_is_refused_and_nothing_wraps() -> None:
    huge = Schema.build([TensorSpec(f"t{n}", DType.U8, (2**53 - 1,)) for n in range(513)])
    with pytest.raises(CorruptObjectError, match="would have"):
        DeltaExtents(huge, VersionId(1), Limits())
    nearly = Schema.build([TensorSpec(f"t{n}", DType.U8, (2**53 - 1,)) for n in range(500)])
    extents = DeltaExtents(nearly, VersionId(1), Limits())
    last = run(499, 2**53 - 2, 1)
    extents.add("p0", index_of([last], nearly))
    with pytest.raises(CorruptObjectError, match=r"'t99'"):
        extents.add("p1", index_of([last], nearly))


def test_the_pairs_that_are_compared_are_those_that_meet() -> None:
    offsets = np.array([[0, 0], [0, 5], [5, 0], [4, 4]])
    ends = offsets + np.array([[5, 5], [5, 5], [5, 5], [2, 2]])
    found = extents_module._first_overlap(offsets, ends, "x", Limits())
    assert found is not None
    assert 3 in found
    assert extents_module._first_overlap(offsets[:3], ends[:3], "x", Limits()) is None
