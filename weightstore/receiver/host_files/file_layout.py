"""Where every tensor of a schema lies in the files of a folder, read from their headers."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.errors import CorruptObjectError, SchemaMismatchError
from weightstore.format.anchor_plan import plan_anchor_files
from weightstore.format.safetensors_header import (
    SIZE_FIELD_BYTES,
    SafetensorsHeader,
    parse_safetensors_header,
    read_header_size,
)
from weightstore.history.chain import CheckoutPlan
from weightstore.layout.schema import Schema
from weightstore.receiver.host_files.redo_journal import FilePart
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.placement import LiveTensor, Placement, plan_placement
from weightstore.receiver.rolling_scan import scan
from weightstore.settings import Limits, Settings

_FILE_SHIFT = 56
"""An address is a file's number above so many bits of an offset in it."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """What one storage of a placement is.

    Attributes:
        file: Name of the file.
        base: Byte of it that unit 0 is at.
    """

    file: str
    base: int

    def part(self, change: BlockedChange) -> FilePart:
        """A change of this storage as one of the file, from its first unit to its last.

        Tensors of one storage are sorted by the windows that they begin in alone.
        """
        places = change.places()
        if np.any(places[1:] <= places[:-1]):
            order = np.argsort(places)
            change = BlockedChange.of(places[order], change.old_bits[order], change.new_bits[order])
        return FilePart(self.file, self.base, change)


@dataclass(frozen=True, slots=True, eq=False)
class MappedFiles:
    """The files of a folder as live memory that is only read.

    Attributes:
        placement: Where the tensors are.
        spans: What each of its storages is.
    """

    placement: Placement
    spans: tuple[FileSpan, ...]

    def table(self, thread_count: int) -> NDArray[np.uint64] | None:
        """Digest lanes of every tensor from its bits, shape (tensors, 2).

        None where two copies of a tied tensor differ.
        """
        placement = self.placement
        lanes = scan(placement, range(len(placement.destinations)), thread_count)
        table = np.empty((len(placement.schema.tensors), 2), np.uint64)
        for index, places in placement.by_tensor.items():
            found = lanes[[number for number, _ in places]]
            table[index] = found[0]
            if np.any(found != found[0]):
                return None
        return table


def weight_file_names(plan: CheckoutPlan, settings: Settings) -> tuple[str, ...]:
    """Names of the files with weights that an export of a version has."""
    if plan.deltas:
        files = plan_anchor_files(plan.schema, settings.anchor_file_size_bytes)
        return tuple(file.name for file in files)
    return tuple(file.name for file in plan.full_form.files if file.role == "weights")


def read_file_header(path: Path, limits: Limits) -> SafetensorsHeader:
    """The header of a safetensors file.

    Raises:
        CorruptObjectError: it is none, or cannot be read.
    """
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as stream:
            first = stream.read(SIZE_FIELD_BYTES)
            size = read_header_size(
                first, file_size_bytes=size_bytes, limits=limits, what=str(path)
            )
            head = first + stream.read(size - SIZE_FIELD_BYTES)
    except OSError as error:
        raise CorruptObjectError(f"{path} cannot be read: {error.strerror}") from error
    return parse_safetensors_header(head, file_size_bytes=size_bytes, limits=limits, what=str(path))


def map_files(folder: Path, names: Sequence[str], schema: Schema, limits: Limits) -> MappedFiles:
    """Map the files of a folder and find every tensor in them.

    The maps are never written to; what is written to the files shows in them.

    Args:
        folder: Where they are.
        names: Of the files with weights.
        schema: Whose tensors they hold.
        limits: Bounds on headers.

    Raises:
        CorruptObjectError: a file is no safetensors file.
        SchemaMismatchError: the files hold other tensors; everything is listed.
    """
    live: list[LiveTensor] = []
    spans: list[FileSpan] = []
    for number, name in enumerate(sorted(names)):
        for tensor, span in _tensors_of(folder / name, number, schema, limits):
            live.append(tensor)
            spans.append(span)
    placement = plan_placement(schema, live, {})
    placement.check_complete()
    by_storage = {id(tensor.storage): span for tensor, span in zip(live, spans, strict=True)}
    return MappedFiles(placement, tuple(by_storage[id(storage)] for storage in placement.storages))


def _tensors_of(
    path: Path, number: int, schema: Schema, limits: Limits
) -> Iterator[tuple[LiveTensor, FileSpan]]:
    header = read_file_header(path, limits)
    try:
        with path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            data = np.frombuffer(mapped, np.uint8)
    except OSError as error:
        raise CorruptObjectError(f"{path} cannot be mapped: {error.strerror}") from error
    # All tensors of one width and alignment share a storage: few, whatever the tensors are.
    storages: dict[tuple[int, int], tuple[HostStorage, int]] = {}
    for stored in header.tensors:
        spec, width = stored.spec, stored.spec.dtype.unit_size_bytes
        if spec.name not in schema:
            raise SchemaMismatchError(f"{path.name} holds {spec.name!r}, which the version has not")
        expected = schema.tensors[schema.index_of(spec.name)]
        if (spec.dtype, spec.shape) != (expected.dtype, expected.shape):
            raise SchemaMismatchError(f"{path.name} holds {spec.name!r} in another form")
        key = (width, stored.file_offset % width)
        if key not in storages:
            storages[key] = (_storage(data, stored.file_offset, width), stored.file_offset)
        storage, base = storages[key]
        sizes = spec.unit_shape
        strides = tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
        address = (number << _FILE_SHIFT) + stored.file_offset
        tensor = LiveTensor(
            spec.name,
            storage,
            (stored.file_offset - base) // width,
            sizes,
            strides,
            lambda address=address: address,  # type: ignore[misc]
        )
        yield tensor, FileSpan(path.name, base)


def _storage(data: NDArray[np.uint8], offset: int, width: int) -> HostStorage:
    count = (data.size - offset) // width
    units: Units = data[offset : offset + count * width].view(f"u{width}")
    return HostStorage(units)
