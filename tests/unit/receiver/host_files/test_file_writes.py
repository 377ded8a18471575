"""Writing a change into files, in stretches; what is overwritten is compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.blocked import BlockedChange
from weightstore.errors import CorruptObjectError, LiveWeightsError
from weightstore.receiver.host_files import file_writes
from weightstore.receiver.host_files.file_writes import write_parts
from weightstore.receiver.host_files.redo_journal import FilePart
from weightstore.receiver.reports import Tally
from weightstore.storage.linked_folder import LinkedFolder
from weightstore.testing.virtual_time import VirtualClock

SIZE_BYTES = 300_000


def scene(tmp_path: Path) -> tuple[LinkedFolder, Path, NDArray[np.uint8]]:
    held = LinkedFolder.acquire(tmp_path / "live")
    (held.place / "data-0").mkdir()
    data = np.random.default_rng(1).integers(0, 256, SIZE_BYTES, dtype=np.uint8)
    path = held.place / "data-0" / "f"
    path.write_bytes(data.tobytes())
    return held, path, data


def part_of(data: NDArray[np.uint8], base: int, width: int, places: list[int]) -> FilePart:
    at = np.array(places, np.int64)
    count = (data.size - base) // width
    units = data[base : base + count * width].copy().view(f"u{width}")
    old = units[at]
    return FilePart("f", base, BlockedChange.of(at, old, ~old))


@pytest.mark.parametrize("stretch_bytes", [16, 4096, 1 << 22])
@pytest.mark.parametrize(("width", "base"), [(1, 10), (2, 11), (4, 16), (8, 13)])
def test_every_unit_is_written_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    base: int,
    stretch_bytes: int,
) -> None:
    monkeypatch.setattr(file_writes, "STRETCH_SIZE_BYTES", stretch_bytes)
    held, path, data = scene(tmp_path)
    last = (SIZE_BYTES - base) // width - 1
    places = sorted({0, 1, 2, 9, 500, last // 2, last - 1, last})
    part = part_of(data, base, width, places)
    for is_redo in (False, True, True):
        tally = Tally(VirtualClock())
        write_parts(held, "data-0", [part], {"f": 10}, tally, is_redo=is_redo)
        assert tally.applied_count == len(places)
        expected = data.copy()
        for place in places:
            expected[base + place * width : base + (place + 1) * width] ^= 255
        assert path.read_bytes() == expected.tobytes()
    held.close()


def test_a_unit_that_somebody_else_wrote_is_noticed(tmp_path: Path) -> None:
    held, path, data = scene(tmp_path)
    part = part_of(data, 10, 2, [3, 4])
    data[16] ^= 1
    path.write_bytes(data.tobytes())
    with pytest.raises(LiveWeightsError, match="1 units"):
        write_parts(held, "data-0", [part], {"f": 10}, Tally(VirtualClock()), is_redo=False)
    held.close()


def test_nothing_outside_the_tensors_of_a_known_file_is_written(tmp_path: Path) -> None:
    held, path, data = scene(tmp_path)
    tally = Tally(VirtualClock())
    part = part_of(data, 10, 2, [0, 100])
    for sizes in ({"f": 12}, {"g": 10}):
        with pytest.raises(CorruptObjectError):
            write_parts(held, "data-0", [part], sizes, tally, is_redo=True)
    end = FilePart("f", SIZE_BYTES - 10, part.change)
    with pytest.raises(CorruptObjectError, match="passes"):
        write_parts(held, "data-0", [end], {"f": 10}, tally, is_redo=True)
    assert path.read_bytes() == data.tobytes()
    held.close()
