"""Import: what counts is the stored copy; every dtype, offset and size; nothing half-named."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from weightstore.codec.digest import lanes_of
from weightstore.errors import BlobExistsError, BlobOutcomeUnknownError, InputRefusedError
from weightstore.format.blocks import BLOCK_SIZE_BYTES
from weightstore.format.keys import anchor_key
from weightstore.history.anchors import open_files
from weightstore.history.checkout import checkout, verify_plan
from weightstore.history.import_checkpoint import ImportedForm, run_import
from weightstore.history.import_plan import ImportPlan, plan_import
from weightstore.layout.dtypes import DType
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Fault, LossyBlobs, cuts, writes_in_turn
from weightstore.testing.real_versions import RealVersions
from weightstore.testing.safetensors_files import file_of

SETTINGS = Settings()
ANCHOR = "base-1-1-1"


def write(
    path: Path, tensors: Sequence[tuple[str, DType, tuple[int, ...]]], seed: int = 0
) -> bytes:
    """A legal file of random bits, its tensors in the order given, without any padding."""
    header, end = {}, 0
    for name, dtype, shape in tensors:
        start, end = end, end + dtype.size_bytes(shape)
        header[name] = {"dtype": dtype.value, "shape": shape, "data_offsets": [start, end]}
    data = file_of(header, 0) + np.random.default_rng(seed).bytes(end)
    path.write_bytes(data)
    return data


def imported(blobs: BlobStore, plan: ImportPlan) -> ImportedForm:
    return run_import(blobs, plan, ANCHOR, settings=SETTINGS)


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path: Path) -> None:
    shapes: list[tuple[int, ...]] = [(), (0, 3), (5, 1), (1, 4), (2, 3, 4)]
    tensors = [
        (f"{dtype.value}.{number}", dtype, shape)
        for number, shape in enumerate(shapes)
        for dtype in DType
        if not dtype.is_packed or shape in {(0, 3), (1, 4), (2, 3, 4)}
    ]
    # An odd byte first, so that hardly any tensor is aligned.
    write(tmp_path / "model.safetensors", [("0", DType.U8, (1,)), *tensors])
    plan = plan_import(tmp_path, Limits())
    blobs = MemoryBlobStore()
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    verify_plan(blobs, versions.plan(), SETTINGS, scan=True)
    found = checkout(blobs, versions.plan(), SETTINGS)
    data = (tmp_path / "model.safetensors").read_bytes()
    for tensor in plan.files[0].tensors:
        expected = data[tensor.file_offset : tensor.file_offset + tensor.size_bytes]
        assert found[tensor.spec.name].units.tobytes() == expected
        assert found[tensor.spec.name].spec == tensor.spec


@pytest.mark.parametrize("lead", [0, 1, 3, 7])
def test_units_that_cross_a_block_are_counted_once(tmp_path: Path, lead: int) -> None:
    tensors = [
        ("a", DType.U8, (lead,)),
        ("b", DType.F64, (BLOCK_SIZE_BYTES // 8 + 100,)),
        *((f"c{number}", DType.BF16, (1_001,)) for number in range(3)),
        ("d", DType.F32, (BLOCK_SIZE_BYTES // 4,)),
        ("e", DType.BF16, (3,)),
    ]
    data = write(tmp_path / "model.safetensors", tensors)
    plan = plan_import(tmp_path, Limits())
    form = imported(MemoryBlobStore(), plan)
    for tensor in plan.files[0].tensors:
        raw = data[tensor.file_offset : tensor.file_offset + tensor.size_bytes]
        units = np.frombuffer(raw, tensor.spec.dtype.unit_dtype)
        row = form.table[plan.schema.index_of(tensor.spec.name)]
        assert tuple(row.tolist()) == lanes_of(units), tensor.spec.name


def test_the_files_are_stored_as_they_are_and_hashed_by_block(tmp_path: Path) -> None:
    data = write(tmp_path / "model.safetensors", [("w", DType.U8, (BLOCK_SIZE_BYTES + 5,))])
    (tmp_path / "config.json").write_text("{}")
    blobs = MemoryBlobStore()
    form = imported(blobs, plan_import(tmp_path, Limits()))
    assert [(file.name, file.role) for file in form.full.files] == [
        ("config.json", "asset"),
        ("model.safetensors", "weights"),
    ]
    assert blobs._blobs[anchor_key(ANCHOR, "model.safetensors")] == data
    versions = RealVersions(MemoryBlobStore(), form.schema)
    versions.put_import(plan_import(tmp_path, Limits()))
    manifest = versions.plan().full
    hashes = open_files(versions.blobs, manifest, Limits())[1][1].blocks.hashes
    assert list(hashes) == [
        hashlib.sha256(data[:BLOCK_SIZE_BYTES]).digest(),
        hashlib.sha256(data[BLOCK_SIZE_BYTES:]).digest(),
    ]


def test_later_edits_of_the_users_files_do_not_show(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "model.safetensors"
    write(path, [("w", DType.BF16, (70_000,))])
    plan = plan_import(tmp_path / "model", Limits())
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    before = checkout(blobs, versions.plan(), SETTINGS)["w"].units.copy()
    with path.open("r+b") as stream:
        stream.seek(-100, 2)
        stream.write(bytes(100))
    assert np.array_equal(checkout(blobs, versions.plan(), SETTINGS)["w"].units, before)


def test_a_file_that_grew_since_the_plan_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    plan = plan_import(tmp_path, Limits())
    write(tmp_path / "model.safetensors", [("w", DType.U8, (19,))])
    with pytest.raises(InputRefusedError, match="was changed while it was imported"):
        imported(MemoryBlobStore(), plan)


def test_a_configuration_that_grew_since_the_plan_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    (tmp_path / "config.json").write_text("{}")
    plan = plan_import(tmp_path, Limits())
    (tmp_path / "config.json").write_text('{"more": 1}')
    with pytest.raises(InputRefusedError, match="11 bytes instead of 2"):
        imported(MemoryBlobStore(), plan)


def test_a_file_whose_header_moved_since_the_plan_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", [("v", DType.U8, (9,))])
    plan = plan_import(tmp_path, Limits())
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    with pytest.raises(InputRefusedError, match="its header is another one"):
        imported(MemoryBlobStore(), plan)


class ActsAfterPut(MemoryBlobStore):
    """Stores the file, then acts on the source, and gives no answer."""

    def __init__(self, act: Callable[[Path], None]) -> None:
        super().__init__()
        self._act = act

    def put_file_if_absent(self, key: str, source: Path, /) -> int:
        super().put_file_if_absent(key, source)
        self._act(source)
        raise BlobOutcomeUnknownError("no answer")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_file_that_vanished_since_the_plan_is_refused(tmp_path: Path, when: str) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    plan = plan_import(tmp_path, Limits())
    if when == "before":
        (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputRefusedError, match="was changed while it was imported"):
        imported(ActsAfterPut(Path.unlink), plan)


def test_an_edit_during_the_import_is_not_taken_for_a_foreign_object(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    plan = plan_import(tmp_path, Limits())

    def edit(source: Path) -> None:
        before = source.stat().st_mtime_ns
        write(source, [("w", DType.U8, (9,))], seed=1)
        os.utime(source, ns=(before + 1, before + 1))

    with pytest.raises(InputRefusedError, match="it was written to"):
        imported(ActsAfterPut(edit), plan)


def test_an_index_is_written_where_there_was_none(tmp_path: Path) -> None:
    write(tmp_path / "a.safetensors", [("x", DType.U8, (2,))])
    write(tmp_path / "b.safetensors", [("y", DType.U8, (3,))])
    blobs = MemoryBlobStore()
    plan = plan_import(tmp_path, Limits())
    form = imported(blobs, plan)
    assert form.full.files[-1].role == "index"
    assert blobs._blobs[anchor_key(ANCHOR, "model.safetensors.index.json")] == plan.index


def test_the_same_import_again_is_the_same_form_and_another_a_conflict(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    blobs = MemoryBlobStore()
    form = imported(blobs, plan_import(tmp_path, Limits()))
    again = imported(blobs, plan_import(tmp_path, Limits()))
    assert again.full == form.full
    assert np.array_equal(again.table, form.table)
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))], seed=1)
    with pytest.raises(BlobExistsError):
        imported(blobs, plan_import(tmp_path, Limits()))


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.REPEATED])
def test_lost_answers_of_copies_are_settled(tmp_path: Path, fault: Fault) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.U8, (9,))])
    (tmp_path / "config.json").write_text("{}")
    plan = plan_import(tmp_path, Limits())
    lossy = LossyBlobs(MemoryBlobStore(), writes_in_turn(fault, None))
    assert imported(lossy, plan).full == imported(MemoryBlobStore(), plan).full


def test_an_import_that_was_cut_anywhere_can_be_repeated(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", [("w", DType.BF16, (70_000,)), ("v", DType.U8, (3,))])
    (tmp_path / "config.json").write_text("{}")
    plan = plan_import(tmp_path, Limits())
    expected = imported(MemoryBlobStore(), plan)
    settings = Settings(thread_count=1)
    count = 0
    for cut in cuts(
        MemoryBlobStore, lambda blobs: run_import(blobs, plan, ANCHOR, settings=settings)
    ):
        count += 1
        again = run_import(cut.blobs, plan, ANCHOR, settings=settings)
        assert again.full == expected.full, cut
        assert np.array_equal(again.table, expected.table), cut
    assert count >= 10
