"""Writing a change into the files of a folder, a stretch of bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.lanes import Units
from weightstore.errors import CorruptObjectError, LiveWeightsError
from weightstore.receiver.host_files.redo_journal import FilePart
from weightstore.receiver.reports import Tally
from weightstore.storage.linked_folder import FilePatches, LinkedFolder

STRETCH_SIZE_BYTES = 4 * 1024 * 1024
"""Bytes that are read, changed and written at once."""
GAP_SIZE_BYTES = 64 * 1024
"""Units further apart than this are written by themselves."""


def write_parts(
    held: LinkedFolder,
    folder: str,
    parts: Sequence[FilePart],
    fixed_sizes_bytes: Mapping[str, int],
    tally: Tally,
    *,
    is_redo: bool,
) -> None:
    """Write new bits into files and make them durable.

    After a crash: each unit holds its old or its new bits; write them again as a redo.

    Args:
        held: Where the folder is.
        folder: Its name.
        parts: What to write; the units of each rise.
        fixed_sizes_bytes: Of each file of the folder, how many bytes at its start stay.
        tally: Counts.
        is_redo: New bits may be there already, and the old ones are not known.

    Raises:
        LiveWeightsError: a unit held something else than its old bits: somebody else wrote.
        CorruptObjectError: a part names a file or bytes that are not there.
        StorageFailedError, StorageFullError: the system failed.
    """
    for name, of_file in groupby(sorted(parts, key=lambda part: part.file), lambda one: one.file):
        if name not in fixed_sizes_bytes:
            raise CorruptObjectError(f"a change names the file {name!r}, which is not there")
        with held.patching(folder, name) as patches:
            for part in of_file:
                _write_part(part, patches, fixed_sizes_bytes[name], tally, is_redo=is_redo)
            patches.sync()


def _write_part(
    part: FilePart, patches: FilePatches, fixed_size_bytes: int, tally: Tally, *, is_redo: bool
) -> None:
    change, width = part.change, part.change.new_bits.itemsize
    if not change.count:
        return
    starts = change.places() * width + part.base
    if np.any(starts[1:] <= starts[:-1]):
        raise CorruptObjectError(f"a change of {part.file!r} has units that do not rise")
    if starts[0] < fixed_size_bytes or int(starts[-1]) + width > patches.size_bytes:
        raise CorruptObjectError(f"a change of {part.file!r} passes its tensors")
    for first, end in _stretches(starts, width):
        low = int(starts[first])
        data = patches.read(low, int(starts[end - 1]) + width - low)
        # The stretch begins with a unit of the part, so all of them are whole units from there.
        units = np.frombuffer(data, change.new_bits.dtype)
        places = (starts[first:end] - low) // width
        if not is_redo:
            _check_old(units[places], change.old_bits[first:end], part.file)
        units[places] = change.new_bits[first:end]
        patches.write(low, data)
        tally.wrote(end - first, len(data))


def _check_old(found: Units, expected: Units, name: str) -> None:
    strange_count = int(np.count_nonzero(found != expected))
    if strange_count:
        raise LiveWeightsError(
            f"{strange_count} units of {name!r} did not hold what was left there: somebody else "
            "wrote the file",
            facts={"file": name, "strange_count": strange_count},
        )


def _stretches(starts: NDArray[np.int64], width: int) -> Iterator[tuple[int, int]]:
    """First and end of changes that are written together."""
    bounds = [0, *(np.flatnonzero(np.diff(starts) > GAP_SIZE_BYTES) + 1).tolist(), starts.size]
    for low, high in pairwise(bounds):
        first = low
        while first < high:
            reach = int(starts[first]) + STRETCH_SIZE_BYTES - width
            end = first + int(np.searchsorted(starts[first:high], reach, side="right"))
            yield first, end
            first = end
