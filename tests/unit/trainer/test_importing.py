"""Importing a checkpoint: its files become a version, once, and trainers go on from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from weightstore.errors import (
    CommitUnknownError,
    InputRefusedError,
    SchemaMismatchError,
    StepConflictError,
    StepOrderError,
    StorageFailedError,
    StoreOwnedError,
)
from weightstore.format.keys import log_key
from weightstore.format.records import VersionRecord
from weightstore.history.import_plan import plan_import
from weightstore.ids import RunId, Slot
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method, cuts
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.trainer_lab import TrainerLab
from weightstore.trainer import files
from weightstore.trainer.files import open_files
from weightstore.trainer.importing import Imported, import_checkpoint

TENSORS = {
    "b": torch.arange(3, dtype=torch.uint8),
    "m": torch.arange(70_000, dtype=torch.float32),
    "w": torch.arange(12.0).to(torch.bfloat16).view(3, 4),
    "z": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    save_file(TENSORS, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return directory


@pytest.fixture
def at_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run_import(
    lab: TrainerLab,
    path: Path,
    step: int = 0,
    *,
    take_over: bool = False,
    new_schema: bool = False,
) -> VersionRecord:
    return imported(lab, path, step, take_over=take_over, new_schema=new_schema).record


def imported(
    lab: TrainerLab,
    path: Path,
    step: int = 0,
    *,
    take_over: bool = False,
    new_schema: bool = False,
) -> Imported:
    return import_checkpoint(
        lab.blobs,
        lab.log,
        path=path,
        run=RunId("base"),
        step=step,
        clock=lab.clock,
        entropy=lab.entropy,
        settings=lab.settings,
        take_over=take_over,
        new_schema=new_schema,
    )


def bits_of_tensors(
    change: Callable[[torch.Tensor], torch.Tensor] = lambda one: one,
) -> dict[str, bytes]:
    return {
        name: change(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in TENSORS.items()
    }


def test_a_checkpoint_becomes_a_version_and_its_claim_is_closed(checkpoint: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    record = run_import(lab, checkpoint)
    assert (record.version, record.run, record.step, record.base) == (1, "base", 0, None)
    assert lab.log.tail().now.claim is None
    assert lab.bits(1) == bits_of_tensors()
    assert {one.name for one in lab.plan().full_form.files} >= {"config.json", "model.safetensors"}


def test_an_import_says_what_it_leaves_behind_and_says_it_again(checkpoint: Path) -> None:
    (checkpoint / "caf\u00e9.json").write_text("{}")
    (checkpoint / "two words.txt").write_text("x")
    (checkpoint / "optimizer.pt").write_text("x")
    (checkpoint / ".gitattributes").write_text("x")
    (checkpoint / "original").mkdir()
    lab = TrainerLab(MemoryBlobStore()).create()
    for _ in range(2):
        skipped = dict(imported(lab, checkpoint).skipped)
        assert set(skipped) == {
            "caf\u00e9.json", "two words.txt", "optimizer.pt", ".gitattributes", "original",
        }  # fmt: skip
        assert "printable ASCII" in skipped["caf\u00e9.json"]
        assert "printable ASCII" in skipped["two words.txt"]
        assert "another form" in skipped["optimizer.pt"]
        assert skipped["original"] == "a directory"
        assert skipped[".gitattributes"] == "a hidden file"


def test_importing_again_is_the_same_version(checkpoint: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    first = run_import(lab, checkpoint)
    keys = [one.key for one in lab.blobs.list("") if not one.key.startswith("log/")]
    assert run_import(lab, checkpoint) == first
    assert run_import(lab, checkpoint / "model.safetensors") == first
    assert [one.key for one in lab.blobs.list("") if not one.key.startswith("log/")] == keys


def test_another_checkpoint_under_the_same_step_is_refused(checkpoint: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    run_import(lab, checkpoint, step=3)
    save_file({**TENSORS, "z": torch.tensor(2.0)}, checkpoint / "model.safetensors")
    with pytest.raises(StepConflictError):
        run_import(lab, checkpoint, step=3)
    with pytest.raises(StepOrderError):
        run_import(lab, checkpoint, step=2)
    save_file({"other": torch.zeros(3)}, checkpoint / "model.safetensors")
    with pytest.raises(StepConflictError, match="schema"):
        run_import(lab, checkpoint, step=3)
    with pytest.raises(SchemaMismatchError, match="tensor 'other' is not in the schema"):
        run_import(lab, checkpoint, step=4)
    assert [one.key for one in lab.blobs.list("anchors/") if "-2-" in one.key] == []
    assert run_import(lab, checkpoint, step=4, new_schema=True).version == 2
    assert lab.log.tail().now.claim is None


def test_a_trainer_goes_on_by_a_delta(checkpoint: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    run_import(lab, checkpoint)
    after = {**TENSORS, "w": TENSORS["w"] * -1}
    with lab.trainer("tuned") as trainer:
        report = trainer.put_step(0, after).report()
    assert (report.changed_count, report.full_size_bytes) == (12, 0)
    assert lab.bits()["m"] == bits_of_tensors()["m"]


def test_an_import_needs_the_store_for_itself(checkpoint: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer():
        with pytest.raises(StoreOwnedError):
            run_import(TrainerLab(lab.blobs, "other"), checkpoint)
        assert run_import(TrainerLab(lab.blobs, "third"), checkpoint, take_over=True).version == 1


def test_what_is_no_checkpoint_is_refused_before_the_claim(tmp_path: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    before = lab.log.tail()
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputRefusedError):
            run_import(lab, path)
    assert lab.log.tail() == before


def test_an_import_that_is_cut_can_be_repeated(checkpoint: Path) -> None:
    def prepare() -> BlobStore:
        blobs = MemoryBlobStore()
        TrainerLab(blobs, "before").create()
        return blobs

    expected = bits_of_tensors()
    for cut in cuts(prepare, lambda blobs: run_import(TrainerLab(blobs, "cut"), checkpoint)):
        reader = TrainerLab(cut.blobs, "reader")
        assert all(reader.bits(version) == expected for version in reader.steps())
        again = TrainerLab(cut.blobs, "again")
        assert run_import(again, checkpoint, take_over=True).version == 1
        assert again.bits(1) == expected
        assert set(again.steps()) == {1}


def test_files_are_read_range_by_range(checkpoint: Path, at_end: ExitStack) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    found = dict(open_files(checkpoint, lab.settings.limits, at_end))
    assert set(found) == set(TENSORS)
    part = found["m"].read(69_990, 10)
    assert part.view("<f4").tolist() == [float(at) for at in range(69_990, 70_000)]
    with lab.trainer() as trainer:
        trainer.put_step(0, checkpoint).result()
        assert trainer.put_step(1, TENSORS).report().changed_count == 0
        single = checkpoint / "model.safetensors"
        assert trainer.put_step(2, single).report().changed_count == 0
    assert lab.bits(1) == bits_of_tensors()


def test_a_file_that_was_cut_short_is_an_error(checkpoint: Path, at_end: ExitStack) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    single = checkpoint / "model.safetensors"
    found = dict(open_files(single, lab.settings.limits, at_end))
    single.write_bytes(single.read_bytes()[:5000])
    with pytest.raises(InputRefusedError, match="'m'"):
        found["m"].read(0, 70_000)


def test_every_dtype_of_a_file_is_put_as_its_bits(tmp_path: Path) -> None:
    raw = torch.from_numpy(np.arange(64, dtype=np.uint8))
    tensors = {
        f"t.{dtype}": raw.clone().view(dtype)
        for dtype in (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.float64, torch.complex64)
    }
    save_file({**tensors, "odd": raw[:3].clone()}, tmp_path / "some.safetensors")
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, tmp_path / "some.safetensors").result()
    found = lab.bits()
    assert found.pop("odd") == b"\x00\x01\x02"
    assert set(found.values()) == {raw.numpy().tobytes()}


def replace_all(single: Path) -> None:
    """What a trainer does that saves the next checkpoint under the same name."""
    other = single.with_name("other")
    save_file({name: torch.ones_like(tensor) for name, tensor in TENSORS.items()}, other)
    other.replace(single)


@pytest.fixture(params=[2, 1])
def limits(request: pytest.FixtureRequest) -> Limits:
    """The second of two files stays open, or is opened for each range."""
    return Limits(open_file_count=request.param)


@pytest.fixture
def second(checkpoint: Path) -> Path:
    """The file with all tensors but one, of a checkpoint of two files."""
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    file = (checkpoint / "model.safetensors").rename(checkpoint / names[1])
    save_file({"first": torch.zeros(2)}, checkpoint / names[0])
    weight_map = {"first": names[0], **dict.fromkeys(TENSORS, names[1])}
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (checkpoint / "model.safetensors.index.json").write_text(index)
    return file


def test_two_checkpoints_under_one_name_are_never_mixed(
    second: Path, at_end: ExitStack, limits: Limits
) -> None:
    found = dict(open_files(second.parent, limits, at_end))
    first = found["m"].read(0, 10).tobytes()
    replace_all(second)
    if limits.open_file_count > 1:
        both = first + found["m"].read(10, 69_990).tobytes()
        assert both == bits_of_tensors()["m"]
    else:
        with pytest.raises(InputRefusedError, match="was changed while tensor 'm'"):
            found["m"].read(10, 69_990)


def test_a_file_that_was_changed_in_place_is_an_error(
    second: Path, at_end: ExitStack, limits: Limits
) -> None:
    found = dict(open_files(second.parent, limits, at_end))
    found["m"].read(0, 10)
    with second.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"?")
    os.utime(second, ns=(1, 1))
    with pytest.raises(InputRefusedError, match="was changed while tensor 'm'"):
        found["m"].read(10, 10)


def test_a_file_that_is_not_the_one_that_was_planned_is_an_error(
    checkpoint: Path, at_end: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    single = checkpoint / "model.safetensors"
    plan = plan_import(single, lab.settings.limits)
    monkeypatch.setattr(files, "plan_import", lambda *_: plan)
    save_file({"m": TENSORS["m"]}, single)
    with pytest.raises(InputRefusedError, match="was changed while its header"):
        list(open_files(single, lab.settings.limits, at_end))
    single.unlink()
    with pytest.raises(InputRefusedError, match="was changed while its header"):
        list(open_files(single, lab.settings.limits, at_end))


def test_a_file_that_cannot_be_read_is_an_error_of_the_storage(
    checkpoint: Path, at_end: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    lab = TrainerLab(MemoryBlobStore()).create()
    found = dict(open_files(checkpoint, lab.settings.limits, at_end))
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StorageFailedError, match="tensor 'm'"):
        found["m"].read(0, 10)


def test_a_put_closes_the_files_that_it_opened(checkpoint: Path) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, TENSORS).result()
        with all_files_closed():
            for step in (0, 1, 2):
                trainer.put_step(step, checkpoint).result()


@pytest.mark.parametrize("step", [-1, 2**53, "7", 1.5, True, None])
def test_what_is_no_step_is_refused_before_the_claim(checkpoint: Path, step: int) -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    before = lab.log.tail()
    with pytest.raises(InputRefusedError, match="no step"):
        run_import(lab, checkpoint, step=step)
    assert lab.log.tail() == before
    assert not list(lab.blobs.list("anchors/"))


def test_an_import_whose_claim_cannot_be_closed_has_not_failed(checkpoint: Path) -> None:
    """Its version is committed: "nothing became visible" would be a lie."""
    inner = MemoryBlobStore()
    TrainerLab(inner).create()
    close_key = log_key(Slot(3))
    blobs = LossyBlobs(inner, lambda call: Fault.UNAVAILABLE if call.key == close_key else None)
    assert run_import(TrainerLab(blobs, "lossy"), checkpoint).version == 1
    again = TrainerLab(inner, "again")
    assert again.log.tail().now.claim is not None
    assert run_import(again, checkpoint, take_over=True).version == 1


def test_an_import_of_unknown_outcome_is_not_told_as_a_claim_that_cannot_be_closed(
    checkpoint: Path,
) -> None:
    inner = MemoryBlobStore()
    TrainerLab(inner).create()
    record_key = log_key(Slot(2))
    is_dead = False

    def fault(call: Call) -> Fault | None:
        nonlocal is_dead
        is_record = call.method is Method.PUT and call.key == record_key
        was_dead, is_dead = is_dead, is_dead or is_record
        return Fault.UNAVAILABLE if was_dead else Fault.LOST_ANSWER if is_dead else None

    with pytest.raises(CommitUnknownError) as caught:
        run_import(TrainerLab(LossyBlobs(inner, fault), "lossy"), checkpoint)
    assert any("closing failed too" in note for note in caught.value.__notes__)
    assert run_import(TrainerLab(inner, "again"), checkpoint, take_over=True).version == 1
