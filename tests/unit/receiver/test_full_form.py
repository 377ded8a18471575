"""A whole version in place: verified before it is written, a few tensors in memory at a time."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptError
from weightstore.history.tensor_bits import FullBits
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.full_form import FullVersion
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.reports import Tally
from weightstore.receiver.rolling_scan import scan
from weightstore.settings import Limits
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.virtual_time import VirtualClock


def version_of(lab: ReceiverLab) -> FullVersion:
    return FullVersion.of(lab.blobs, lab.versions.plan(), PieceCodec(), Limits())


def test_every_place_is_written_and_digested() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 3)
    boxes = {"head": Box((10, 20), (200, 100)), "tied": Box((0, 50), (350, 100))}
    arrays = lab.arrays(tied=True)
    for name, box in boxes.items():
        arrays[name] = np.zeros(box.unit_count, arrays[name].dtype)
    placement = place_arrays(lab.schema, arrays, boxes)
    tally = Tally(VirtualClock())
    lanes = version_of(lab).write(placement, tally)
    for name, units in arrays.items():
        expected = lab.boxed(3, name, boxes[name]) if name in boxes else lab.expected(3, name)
        assert np.array_equal(units, expected), name
    numbers = range(len(placement.destinations))
    assert np.array_equal(lanes, scan(placement, numbers, 1))
    assert np.array_equal(lanes, version_of(lab).expected_lanes(placement))
    assert tally.applied_bytes == sum(units.nbytes for units in arrays.values())


def test_a_damaged_file_writes_no_bit_of_its_tensors() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 2)
    key = next(blob.key for blob in lab.blobs.list("anchors/") if blob.key.endswith("tensors"))
    data = lab.blobs.get(key, max_size_bytes=1 << 24)
    lab.blobs.delete(key)
    lab.blobs.put_if_absent(key, data[:-1] + bytes([data[-1] ^ 1]))
    arrays = lab.arrays()
    with pytest.raises(CorruptError):
        version_of(lab).write(place_arrays(lab.schema, arrays, {}), Tally(VirtualClock()))
    assert not any(units.any() for units in arrays.values())


def test_members_of_a_bundle_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors between them in the schema do not push them out of memory."""
    specs = [TensorSpec(f"{n}.norm", DType.BF16, (50,)) for n in range(6)]
    specs += [TensorSpec(f"{n}.weight", DType.BF16, (70_000,)) for n in range(6)]
    lab = ReceiverLab.with_versions(Schema.build(specs), 1)
    made = []
    original = FullBits.group

    def counted(self: FullBits, group: object, /) -> object:
        made.append(group)
        return original(self, group)  # type: ignore[arg-type]

    monkeypatch.setattr(FullBits, "group", counted)
    monkeypatch.setattr("weightstore.history.tensor_bits.KEPT_SIZE_BYTES", 1)
    arrays = lab.arrays()
    version_of(lab).write(place_arrays(lab.schema, arrays, {}), Tally(VirtualClock()))
    assert lab.is_at(arrays, 1)
    assert len(made) == 7
