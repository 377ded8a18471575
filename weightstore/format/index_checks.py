"""Checks of a piece index, all vectorised: nothing is made per piece before it has passed.

They keep a hostile index (P10) from reading outside a tensor, from changing a unit twice
in one pack, and from asking for more memory than its tensors have.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import GapCoding, ValueCoding
from weightstore.errors import CorruptObjectError
from weightstore.format.index_rows import PlaceKind, Rows
from weightstore.layout.boxes import PIECE_UNIT_COUNT_MAX
from weightstore.layout.bundles import BUNDLED_BELOW_UNIT_COUNT
from weightstore.layout.schema import Schema

BOX_COUNT_MAX = 256
"""Different boxes of one tensor in one pack; each pair of them is compared."""

_DENSE = (ValueCoding.DENSE_ULP, ValueCoding.DENSE_BITS)


def check_rows(rows: Rows, schema: Schema) -> None:
    """Check what every row says by itself, and flat runs against their tensors.

    Raises:
        CorruptObjectError: a code, count, size, number or range is impossible, or rows are
            out of order.
    """
    kinds = rows.kinds
    _refuse(kinds > PlaceKind.BUNDLE, "is of an unknown kind")
    _refuse(kinds[1:] < kinds[:-1], "is of a kind that comes earlier", first=1)
    _check_counts(rows)
    _check_codes(rows)
    _check_sizes(rows)
    _check_tensors(rows, schema)
    _check_flat(rows, schema)


def check_boxes(rows: Rows, words: NDArray[np.uint64], schema: Schema) -> NDArray[np.int64]:
    """Check the boxes of the pieces that have one.

    Args:
        rows: All rows; `check_rows` has passed.
        words: Offsets, then sizes, of each box, one after the other.
        schema: Holds the tensors' shapes.

    Returns:
        First word of each box, then the number of words; int64.

    Raises:
        CorruptObjectError: a box is empty or outside its tensor, a run outside its box, two
            boxes overlap, or rows are out of order.
    """
    part = slice(rows.flat_count, rows.flat_count + rows.box_count)
    numbers = rows.numbers[part]
    shapes = [schema.tensors[number].unit_shape for number in numbers.tolist()]
    dim_counts = np.array([len(shape) for shape in shapes], np.int64)
    starts = np.zeros(rows.box_count + 1, np.int64)
    np.cumsum(2 * dim_counts, out=starts[1:])
    if starts[-1] != len(words):
        raise CorruptObjectError(
            f"the boxes of a pack have {len(words)} numbers, their tensors need {starts[-1]}"
        )
    _refuse(
        np.isin(numbers, rows.numbers[: rows.flat_count]),
        "is of a box of a tensor that also has pieces without one",
        first=rows.flat_count,
    )
    for dim_count in np.unique(dim_counts).tolist():
        chosen = np.flatnonzero(dim_counts == dim_count)
        boxes = words[starts[chosen][:, None] + np.arange(2 * dim_count)]
        dims = np.array([shapes[row] for row in chosen.tolist()], np.uint64)
        _check_alike_boxes(rows, chosen + rows.flat_count, boxes, dims.reshape(-1, dim_count))
    return starts


def check_bundles(rows: Rows, members: NDArray[np.uint32], schema: Schema) -> NDArray[np.int64]:
    """Check the bundle pieces and the changed counts of their members.

    Returns:
        First member count of each bundle piece, then the number of them; int64.

    Raises:
        CorruptObjectError: no such bundle, one twice, or counts that do not fit.
    """
    first = rows.flat_count + rows.box_count
    numbers = rows.numbers[first:]
    _refuse(numbers[1:] <= numbers[:-1], "is of a bundle out of order", first=first + 1)
    _refuse(numbers >= len(schema.bundles), "is of no bundle of the schema", first=first)
    bundles = [schema.bundles[number] for number in numbers.tolist()]
    units = np.array([bundle.unit_count for bundle in bundles], np.int64)
    widths = np.array([bundle.dtype.unit_size_bytes for bundle in bundles], np.int64)
    _refuse(rows.first_units[first:] != 0, "is of a part of a bundle", first=first)
    _refuse(rows.unit_counts[first:] != units, "has not its bundle's units", first=first)
    _refuse(rows.widths[first:] != widths, "has not its bundle's width", first=first)
    starts = np.zeros(len(bundles) + 1, np.int64)
    np.cumsum([len(bundle.members) for bundle in bundles], out=starts[1:])
    if starts[-1] != len(members):
        raise CorruptObjectError(
            f"the bundles of a pack have {starts[-1]} members, the index counts for {len(members)}"
        )
    if not bundles:
        return starts
    limits = np.concatenate([np.diff(bundle.starts) for bundle in bundles])
    counts = members.astype(np.int64)
    sums = np.add.reduceat(counts, starts[:-1])
    _refuse(sums != rows.changed_counts[first:], "counts other changes by member", first=first)
    if np.any(counts > limits):
        raise CorruptObjectError("a member of a bundle changes more units than it has")
    return starts


def _check_counts(rows: Rows) -> None:
    _refuse(
        (rows.unit_counts < 1) | (rows.unit_counts > PIECE_UNIT_COUNT_MAX),
        f"is not of 1 to {PIECE_UNIT_COUNT_MAX} units",
    )
    _refuse(
        (rows.changed_counts < 1) | (rows.changed_counts > rows.unit_counts),
        "changes nothing, or more units than it has",
    )


def _check_codes(rows: Rows) -> None:
    values, gaps = rows.raw["value_coding"], rows.raw["gap_coding"]
    _refuse(values > max(ValueCoding), "has an unknown coding of values")
    _refuse(gaps > max(GapCoding), "has an unknown coding of gaps")
    is_dense = (values == _DENSE[0]) | (values == _DENSE[1])
    _refuse(is_dense != (gaps == GapCoding.NONE), "has positions and should not, or the reverse")


def _check_sizes(rows: Rows) -> None:
    raw_sizes = rows.raw["raw_sizes"].astype(np.int64)
    _refuse(
        ((raw_sizes == 0) != (rows.raw["stream_sizes"] == 0)).any(axis=1),
        "has a stream without bytes, or bytes without a stream",
    )
    # A bound on what a decoder allocates; it checks the exact sizes itself.
    units = rows.unit_counts
    words = units * rows.widths
    for column, bound in enumerate((2 * units, words, units, words)):
        _refuse(raw_sizes[:, column] > bound, "has a stream longer than its units allow")


def _check_tensors(rows: Rows, schema: Schema) -> None:
    """Flat and box pieces: a tensor that exists, is in no bundle, and has that width."""
    end = rows.flat_count + rows.box_count
    numbers = rows.numbers[:end]
    _refuse(numbers >= len(schema.tensors), "is of no tensor of the schema")
    if not end:
        return
    _refuse(
        schema.unit_counts[numbers] < BUNDLED_BELOW_UNIT_COUNT,
        "is of a tensor that belongs to a bundle",
    )
    _refuse(rows.widths[:end] != schema.unit_sizes_bytes[numbers], "has not its tensor's width")
    _refuse(
        numbers[1 : rows.flat_count] < numbers[: max(rows.flat_count - 1, 0)],
        "is out of order",
        first=1,
    )


def _check_flat(rows: Rows, schema: Schema) -> None:
    if not rows.flat_count:
        return
    part = slice(0, rows.flat_count)
    numbers = rows.numbers[part]
    tensor_units = schema.unit_counts[numbers]
    _check_runs(rows, part, tensor_units)
    firsts = rows.first_units[part].astype(np.int64)
    ends = firsts + rows.unit_counts[part]
    _refuse(
        (numbers[1:] == numbers[:-1]) & (firsts[1:] < ends[:-1]),
        "overlaps the one before it, or is out of order",
        first=1,
    )


def _check_runs(rows: Rows, part: slice | NDArray[np.int64], limits: NDArray[np.int64]) -> None:
    """Runs that end within `limits` units; said so that nothing can wrap."""
    counts = rows.unit_counts[part]
    firsts = rows.first_units[part]
    _refuse(
        (counts > limits) | (firsts > np.maximum(limits - counts, 0).astype(np.uint64)),
        "ends after its tensor or box",
        first=part.start if isinstance(part, slice) else 0,
    )


def _check_alike_boxes(
    rows: Rows, chosen: NDArray[np.int64], boxes: NDArray[np.uint64], dims: NDArray[np.uint64]
) -> None:
    """Boxes of tensors with equally many dims; `chosen` are their rows, ascending."""
    dim_count = dims.shape[1]
    offsets, sizes = boxes[:, :dim_count], boxes[:, dim_count:]
    outside = (offsets > dims) | (sizes < 1) | (sizes > dims - np.minimum(offsets, dims))
    if outside.any():
        raise CorruptObjectError("a piece is of a box that is empty or not within its tensor")
    _check_runs(rows, chosen, sizes.prod(axis=1).astype(np.int64))
    numbers = rows.numbers[chosen]
    firsts = rows.first_units[chosen].astype(np.int64)
    ends = firsts + rows.unit_counts[chosen]
    same_tensor = numbers[1:] == numbers[:-1]
    order = _lexical_order(boxes[:-1], boxes[1:])
    is_bad = (numbers[1:] < numbers[:-1]) | (
        same_tensor & ((order < 0) | ((order == 0) & (firsts[1:] < ends[:-1])))
    )
    if is_bad.any():
        raise CorruptObjectError("pieces of boxes overlap or are out of order")
    is_new = np.ones(len(chosen), np.bool_)
    is_new[1:] = ~same_tensor | (order != 0)
    _check_disjoint(numbers[is_new], offsets[is_new], sizes[is_new])


def _lexical_order(before: NDArray[np.uint64], after: NDArray[np.uint64]) -> NDArray[np.int64]:
    """By row: 1 where `after` is greater, 0 where equal, -1 where less."""
    if before.shape[1] == 0:
        return np.zeros(len(before), np.int64)
    rows = np.arange(len(before))
    column = (before != after).argmax(axis=1)
    left, right = before[rows, column], after[rows, column]
    order: NDArray[np.int64] = (right > left).astype(np.int64) - (right < left)
    return order


def _check_disjoint(
    numbers: NDArray[np.int64], offsets: NDArray[np.uint64], sizes: NDArray[np.uint64]
) -> None:
    """Different boxes of one tensor share no unit."""
    tensors, firsts, counts = np.unique(numbers, return_index=True, return_counts=True)
    if (counts > BOX_COUNT_MAX).any():
        raise CorruptObjectError(f"a tensor has more than {BOX_COUNT_MAX} boxes in one pack")
    ends = offsets + sizes
    for row in np.flatnonzero(counts > 1).tolist():
        part = slice(firsts[row], firsts[row] + counts[row])
        start, end = offsets[part], ends[part]
        overlaps = (
            np.maximum(start[:, None], start[None]) < np.minimum(end[:, None], end[None])
        ).all(axis=2)
        if np.count_nonzero(overlaps) != counts[row]:
            raise CorruptObjectError(
                f"boxes of tensor {tensors[row]} overlap in one pack",
                facts={"tensor_index": int(tensors[row])},
            )


def _refuse(is_bad: NDArray[np.bool_], what: str, *, first: int = 0) -> None:
    if is_bad.any():
        piece = first + int(is_bad.argmax())
        raise CorruptObjectError(f"piece {piece} of a pack {what}", facts={"piece": piece})
