"""Where every tensor of a schema lives in this process: a frozen plan, made before any write.

A tensor may live in several places (tied names with memory of their own), in a part (a box),
or in a strided view; each place is an `Extent` of one `LiveStorage`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from weightstore.errors import LiveWeightsError, SchemaMismatchError
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_extents import Extent, extent_of
from weightstore.receiver.live_storage import LiveStorage

Boxes = Mapping[str, Box]
"""The part of a tensor that its live tensor is, in units; a box without units and without a
live tensor says that nothing of the tensor lives here."""

_LISTED_COUNT = 50


@dataclass(frozen=True, slots=True, eq=False)
class LiveTensor:
    """Memory that somebody calls by a name of the schema.

    Attributes:
        name: Of a tensor, or of an alias.
        storage: The memory that it is a part of; one object for all that share it.
        base: Unit of that memory where it begins.
        sizes: Its shape in units.
        strides: Of its dims, in units.
        address: Where its first unit is now; another answer later means that it was moved.
    """

    name: str
    storage: LiveStorage
    base: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    address: Callable[[], int]


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """One place of a tensor.

    Attributes:
        tensor_index: In the schema.
        storage_index: In the placement.
        extent: Which units of the storage are which of the tensor.
        is_whole: Whether all of the tensor is there.
    """

    tensor_index: int
    storage_index: int
    extent: Extent
    is_whole: bool


@dataclass(frozen=True, eq=False)
class Placement:
    """Every place of every tensor of a schema.

    Attributes:
        schema: Whose tensors these are.
        storages: The memories.
        destinations: By tensor, in schema order.
        boxed: Schema indices of tensors that were said to live here in part, or not at all.
        addresses: Where each live tensor is now, and where it was.
    """

    schema: Schema
    storages: tuple[LiveStorage, ...]
    destinations: tuple[Destination, ...]
    boxed: frozenset[int]
    addresses: tuple[tuple[str, int, Callable[[], int]], ...] = ()

    @cached_property
    def by_tensor(self) -> Mapping[int, tuple[tuple[int, Destination], ...]]:
        """Schema index to its destinations, each with its number."""
        found: dict[int, list[tuple[int, Destination]]] = defaultdict(list)
        for number, each in enumerate(self.destinations):
            found[each.tensor_index].append((number, each))
        return {index: tuple(each) for index, each in found.items()}

    @property
    def size_bytes(self) -> int:
        """Bytes of all destinations."""
        return sum(
            each.extent.unit_count * self.storages[each.storage_index].width_bytes
            for each in self.destinations
        )

    def storage_of(self, destination: Destination) -> LiveStorage:
        """The memory of a destination."""
        return self.storages[destination.storage_index]

    def check_complete(self) -> None:
        """Compare the places with the schema: an engine may have dropped a tensor silently.

        Raises:
            SchemaMismatchError: tensors that were not said to be elsewhere are nowhere here.
        """
        whole = {each.tensor_index for each in self.destinations if each.is_whole}
        lacking = [
            f"no place: {spec.name!r}"
            for index, spec in enumerate(self.schema.tensors)
            if index not in whole and index not in self.boxed
        ]
        if lacking:
            raise mismatch(lacking)

    def check_addresses(self) -> None:
        """Compare where the live tensors are with where they were.

        Raises:
            LiveWeightsError: some were moved; what is written here would reach nobody.
        """
        moved = tuple(name for name, address, now in self.addresses if now() != address)
        if moved:
            raise LiveWeightsError(
                f"{len(moved)} live tensors, the first {moved[0]!r}, are no longer where they "
                "were when this receiver was attached",
                do="Attach a new receiver to the tensors that the engine uses now.",
                facts={"tensors": moved[:_LISTED_COUNT]},
            )


def plan_placement(schema: Schema, live: Sequence[LiveTensor], boxes: Boxes) -> Placement:
    """Match live memory with a schema. Writes nothing.

    Args:
        schema: Of the versions to come.
        live: Their shapes, widths and overlaps are checked by whoever made them.
        boxes: By the names of `live`.

    Raises:
        SchemaMismatchError: names or shapes differ; everything is listed.
    """
    problems = tuple(_problems(schema, live, boxes))
    if problems:
        raise mismatch(problems)
    storages: dict[int, int] = {}
    held: list[LiveStorage] = []
    destinations: list[Destination] = []
    seen: set[tuple[object, ...]] = set()
    for each in live:
        # Tied names in one place are one destination: it is written once.
        index, given = schema.index_of(each.name), boxes.get(each.name)
        place = (index, each.address(), each.sizes, each.strides, given)
        if place in seen:
            continue
        seen.add(place)
        if id(each.storage) not in storages:
            storages[id(each.storage)] = len(held)
            held.append(each.storage)
        spec = schema.tensors[index]
        shape, box = box_of(spec, given, each.sizes)
        extent = extent_of(shape, box, each.base, each.strides)
        number = storages[id(each.storage)]
        is_whole = extent.unit_count == spec.unit_count
        destinations.append(Destination(index, number, extent, is_whole))
    ordered = sorted(destinations, key=lambda one: one.tensor_index)
    return Placement(
        schema,
        tuple(held),
        tuple(ordered),
        frozenset(schema.index_of(name) for name in boxes),
        tuple((each.name, each.address(), each.address) for each in live),
    )


def box_of(
    spec: TensorSpec, box: Box | None, sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], Box]:
    """The shape of a tensor and the box that a live tensor of some sizes is.

    Packed rows that are no whole bytes are one dim in units and several in torch; such a
    tensor is taken whole and by its own dims.
    """
    shape = spec.unit_shape
    if box is not None:
        return shape, box
    if spec.dtype.is_packed and len(shape) == 1 and math.prod(sizes) == spec.unit_count:
        return sizes, Box.whole(sizes)
    return shape, Box.whole(shape)


def name_misfits(schema: Schema, names: Collection[str], boxes: Boxes) -> Iterator[str]:
    """What does not fit in the names of live tensors and in their boxes."""
    held = {schema.index_of(name) for name in names if name in schema}
    held |= {
        schema.index_of(name)
        for name, box in boxes.items()
        if name in schema and not box.unit_count
    }
    for index, spec in enumerate(schema.tensors):
        if index not in held:
            yield f"missing: {spec.name!r} ({spec.dtype.value} {spec.shape})"
    for name, box in boxes.items():
        if name not in schema:
            yield f"a box of no tensor of the version: {name!r}"
        elif not box.is_within(schema.tensors[schema.index_of(name)].unit_shape):
            yield f"not within its tensor: {box} of {name!r}"
        elif name not in names and box.unit_count:
            yield f"a box without a live tensor: {name!r}"
    yield from (f"not in the version: {name!r}" for name in names if name not in schema)


def shape_misfits(
    spec: TensorSpec, name: str, sizes: tuple[int, ...], box: Box | None
) -> Iterator[str]:
    """What does not fit in the shape of a live tensor."""
    _, expected = box_of(spec, box, sizes)
    if sizes != expected.sizes:
        yield f"shape: {name!r} is {sizes}, expected {expected.sizes}"


def mismatch(
    problems: Iterable[str],
    do: str = "Build the model from this checkpoint's configuration, or choose another version.",
) -> SchemaMismatchError:
    """The error that lists everything that does not fit, with what to do."""
    listed = tuple(problems)
    shown = "".join(f"\n  {line}" for line in listed[:_LISTED_COUNT])
    more = len(listed) - _LISTED_COUNT
    return SchemaMismatchError(
        f"the live tensors do not fit the version; nothing was written:{shown}"
        + (f"\n  and {more} more" if more > 0 else ""),
        do=do,
        facts={"problems": listed},
    )


def _problems(schema: Schema, live: Sequence[LiveTensor], boxes: Boxes) -> Iterator[str]:
    yield from name_misfits(schema, {each.name: None for each in live}, boxes)
    for each in live:
        if each.name in schema:
            yield from _misfits(schema, each, boxes)


def _misfits(schema: Schema, live: LiveTensor, boxes: Boxes) -> Iterator[str]:
    spec = schema.tensors[schema.index_of(live.name)]
    width = live.storage.width_bytes
    if width != spec.dtype.unit_size_bytes:
        yield f"dtype: {live.name!r} has units of {width} bytes, the version {spec.dtype.value}"
    box = boxes.get(live.name)
    misshapen = tuple(shape_misfits(spec, live.name, live.sizes, box))
    if misshapen:
        yield from misshapen
    elif box is not None and not box.is_within(spec.unit_shape):
        return
    elif _reach(live) and live.base + _reach(live) > live.storage.unit_count:
        yield f"ends after its memory: {live.name!r}"


def _reach(live: LiveTensor) -> int:
    if not math.prod(live.sizes):
        return 0
    steps = zip(live.sizes, live.strides, strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)
