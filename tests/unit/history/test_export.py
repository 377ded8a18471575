"""Export: directories that other tools load, whole or not there, never over anything."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from typing_extensions import Buffer

from weightstore.errors import CorruptObjectError, InputRefusedError, StorageFailedError
from weightstore.format.keys import anchor_key
from weightstore.history import export as export_module
from weightstore.history.chain import CheckoutPlan, delta_form
from weightstore.history.checkout import checkout
from weightstore.history.export import (
    check_free_file,
    check_outside,
    export_checkpoint,
    write_safetensors_file,
)
from weightstore.history.import_plan import plan_import
from weightstore.layout.tensors import Units
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.partial import partial_place
from weightstore.testing.faults import cuts
from weightstore.testing.real_versions import RealVersions, ThreeVersions, next_weights
from weightstore.testing.virtual_time import SeededEntropy

SETTINGS = Settings()


def export(
    blobs: BlobStore, plan: CheckoutPlan, directory: Path, settings: Settings = SETTINGS
) -> None:
    export_checkpoint(blobs, plan, directory, entropy=SeededEntropy(), settings=settings)


def bits(directory: Path) -> dict[str, bytes]:
    """The library's view of a directory: the bytes of every tensor of every file."""
    found: dict[str, bytes] = {}
    for path in sorted(directory.glob("*.safetensors")):
        for name, tensor in safetensors.deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
            found[name] = bytes(tensor["data"])
    return found


def expected_bits(weights: dict[str, Units]) -> dict[str, bytes]:
    found = {name: units.tobytes() for name, units in weights.items()}
    return found | {"tied": found["block.large"]}


@pytest.mark.parametrize("file_size_bytes", [1 << 30, 300_000])
def test_each_version_is_exported_bit_for_bit(
    chain: ThreeVersions, tmp_path: Path, file_size_bytes: int
) -> None:
    settings = Settings(anchor_file_size_bytes=file_size_bytes)
    for record, weights in zip(chain.versions.records, chain.weights, strict=True):
        target = tmp_path / f"v{record.version}"
        export(chain.blobs, chain.versions.plan(record), target, settings)
        assert bits(target) == expected_bits(weights)
        plan_import(target, Limits())  # index and files agree
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v1", "v2", "v3"]


@pytest.fixture
def local(tmp_path: Path) -> tuple[LocalBlobStore, RealVersions]:
    """An imported version with a configuration, and a delta upon it, on a disk."""
    source = tmp_path / "source"
    source.mkdir()
    safetensors.numpy.save_file(
        {"w": np.arange(80_000, dtype=np.float32)}, source / "model.safetensors", {"format": "pt"}
    )
    (source / "config.json").write_text('{"x": 1}')
    plan = plan_import(source, Limits())
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    weights = {"w": np.arange(80_000, dtype=np.float32).view("<u4")}
    versions.start_from(weights)
    versions.put(next_weights(weights, 1))
    return blobs, versions


def test_a_full_form_is_copied_as_it_is(
    local: tuple[LocalBlobStore, RealVersions], tmp_path: Path
) -> None:
    blobs, versions = local
    export(blobs, versions.plan(versions.records[0]), tmp_path / "out")
    for path in (tmp_path / "source").iterdir():
        copy = tmp_path / "out" / path.name
        assert copy.read_bytes() == path.read_bytes()
        assert copy.stat().st_nlink == 1
        copy.write_bytes(b"edited")
    checkout(blobs, versions.plan(), SETTINGS)


def test_configuration_files_come_along_with_a_delta(
    local: tuple[LocalBlobStore, RealVersions], tmp_path: Path
) -> None:
    blobs, versions = local
    export(blobs, versions.plan(), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"x": 1}
    expected = checkout(blobs, versions.plan(), SETTINGS)["w"].units.tobytes()
    assert bits(tmp_path / "out") == {"w": expected}


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_not_exported(
    local: tuple[LocalBlobStore, RealVersions], tmp_path: Path, name: str
) -> None:
    blobs, versions = local
    plan = versions.plan(versions.records[0])
    path = blobs.root / anchor_key(plan.full_form.anchor_id, name)
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    for each in versions.records:
        with pytest.raises(CorruptObjectError, match=name):
            export(blobs, versions.plan(each), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "store"]


@pytest.mark.parametrize("kind", ["file", "full directory", "link", "dangling link"])
def test_nothing_that_exists_is_overwritten(
    chain: ThreeVersions, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    if kind == "file":
        target.write_text("mine")
    elif kind == "full directory":
        target.mkdir()
        (target / "mine").write_text("mine")
    else:
        target.symlink_to(tmp_path / ("empty" if kind == "link" else "nowhere"))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(InputRefusedError, match="is there already"):
        export(chain.blobs, chain.versions.plan(), target)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_an_empty_directory_may_be_filled(chain: ThreeVersions, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(chain.blobs, chain.versions.plan(), tmp_path / "out")
    assert bits(tmp_path / "out") == expected_bits(chain.weights[2])


def test_a_place_without_a_parent_is_refused(chain: ThreeVersions, tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="is no directory"):
        export(chain.blobs, chain.versions.plan(), tmp_path / "no" / "out")


def test_a_cut_anywhere_leaves_nothing_under_the_name(chain: ThreeVersions, tmp_path: Path) -> None:
    settings = Settings(thread_count=1, anchor_file_size_bytes=300_000)
    count = 0
    for record in (chain.versions.records[0], chain.versions.records[2]):
        plan = chain.versions.plan(record)
        run = 0

        def export_next(blobs: BlobStore, plan: CheckoutPlan = plan) -> None:
            nonlocal run
            run += 1
            export(blobs, plan, tmp_path / f"{plan.record.version}-{run}", settings)

        for _ in cuts(lambda: chain.blobs, export_next):
            count += 1
            assert not (tmp_path / f"{record.version}-{run}").exists()
    assert count >= 20


def test_an_error_of_the_disk_is_typed_and_tidied_up(
    chain: ThreeVersions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, chunks: list[Buffer]) -> None:
        del chunks
        path.write_bytes(b"half")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(export_module, "_write", fail)
    with pytest.raises(StorageFailedError, match="Input/output error"):
        export(chain.blobs, chain.versions.plan(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_copy_by_itself_gets_verified_bytes(
    local: tuple[LocalBlobStore, RealVersions], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, versions = local

    def cannot(*_: object) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "copy_file_range", cannot)
    export(blobs, versions.plan(versions.records[0]), tmp_path / "out")
    source = tmp_path / "source" / "model.safetensors"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == source.read_bytes()


def test_one_file_holds_every_name(chain: ThreeVersions, tmp_path: Path) -> None:
    found = checkout(chain.blobs, chain.versions.plan(), SETTINGS)
    write_safetensors_file(found, tmp_path / "out.safetensors", SeededEntropy())
    assert bits(tmp_path) == expected_bits(chain.weights[2])
    with pytest.raises(InputRefusedError):
        write_safetensors_file(found, tmp_path / "out.safetensors", SeededEntropy())
    assert [path.name for path in tmp_path.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_file_that_came_meanwhile_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "out.safetensors"

    class Meanwhile(SeededEntropy):
        def hex128(self) -> str:
            if kind == "file":
                target.write_text("mine")
            else:
                target.symlink_to("mine")
            return super().hex128()

    with pytest.raises(InputRefusedError, match="is there already"):
        write_safetensors_file({}, target, Meanwhile())
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    assert target.is_symlink() if kind == "link" else target.read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "full directory"])
def test_a_directory_that_came_meanwhile_is_left(
    chain: ThreeVersions, tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "out"

    class Meanwhile(SeededEntropy):
        def hex128(self) -> str:
            if kind == "file":
                target.write_text("mine")
            else:
                target.mkdir()
                (target / "mine").touch()
            return super().hex128()

    with pytest.raises(InputRefusedError, match="came to be while it was written"):
        export_checkpoint(
            chain.blobs, chain.versions.plan(), target, entropy=Meanwhile(), settings=SETTINGS
        )
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_read_that_gives_less_is_no_damage() -> None:
    class Halting(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self._data = io.BytesIO(data)

        def readinto(self, buffer: Buffer, /) -> int:
            return self._data.readinto(memoryview(buffer)[:3])

    target = bytearray(8)
    assert export_module._read_up_to(Halting(b"0123456789"), memoryview(target)) == 8
    assert target == b"01234567"
    assert export_module._read_up_to(Halting(b"01234"), memoryview(target)) == 5


def test_a_missing_pack_leaves_no_directory(chain: ThreeVersions, tmp_path: Path) -> None:
    plan = chain.versions.plan()
    key = delta_form(plan.deltas[0]).packs[0].key
    data = bytearray(chain.blobs._blobs[key])
    data[-1] ^= 1
    chain.blobs._blobs[key] = bytes(data)
    with pytest.raises(CorruptObjectError):
        export(chain.blobs, plan, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_transformers_loads_what_it_saved_after_an_import_and_a_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    transformers = pytest.importorskip("transformers", reason="needs the hf extra")
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "saved", max_shard_size="200KB")
    plan = plan_import(tmp_path / "saved", Limits())
    assert sum(file.role == "weights" for file in plan.files) > 1
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    first = checkout(blobs, versions.plan(), SETTINGS)
    weights = {name: tensor.units for name, tensor in first.items()}
    versions.start_from(weights)
    versions.put(next_weights(weights, 1))
    for record in versions.records:
        target = tmp_path / f"v{record.version}"
        export(blobs, versions.plan(record), target)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
        state = loaded.state_dict()
        for name, tensor in checkout(blobs, versions.plan(record), SETTINGS).items():
            found = state[name].view(torch.uint16).numpy().ravel()
            assert np.array_equal(found, tensor.units), name


def test_a_check_changes_nothing_and_the_writer_tidies_up(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    with pytest.raises(Killed), partial_place(target, SeededEntropy(), is_directory=False) as path:
        raise Killed
    check_free_file(target)
    assert list(tmp_path.iterdir()) == [path]
    write_safetensors_file({}, target, SeededEntropy())
    assert list(tmp_path.iterdir()) == [target]


class Killed(BaseException):
    """A process ends here: nothing tidies up after it."""


@pytest.mark.parametrize("name", ["pytorch_model.bin", "A.PT", "x.pkl.gz", ".hidden"])
def test_a_stored_file_that_an_import_would_leave_behind_is_not_handed_out(
    local: tuple[LocalBlobStore, RealVersions], tmp_path: Path, name: str
) -> None:
    blobs, versions = local
    for record in versions.records:
        plan = versions.plan(record)
        form = plan.full_form
        files = tuple(
            file.model_copy(update={"name": name}) if file.role == "asset" else file
            for file in form.files
        )
        full = plan.full.model_copy(update={"full": form.model_copy(update={"files": files})})
        with pytest.raises(InputRefusedError, match="not handed out") as caught:
            export(blobs, replace(plan, full=full), tmp_path / "out")
        assert caught.value.facts["name"] == name
        assert not (tmp_path / "out").exists()


def test_nothing_is_written_into_the_store(
    local: tuple[LocalBlobStore, RealVersions], tmp_path: Path
) -> None:
    blobs, _ = local
    (tmp_path / "link").symlink_to(blobs.root / "log")
    inside = [
        blobs.root,
        blobs.root / "log" / "x",
        tmp_path / "link" / "x",
        tmp_path / "source" / ".." / "store" / "new",
        blobs.root / "not" / "there",
    ]
    for path in inside:
        with pytest.raises(InputRefusedError, match="lies in the store"):
            check_outside(blobs, path)
    check_outside(blobs, tmp_path / "store-out")
    check_outside(blobs, tmp_path / "source" / "x")
    check_outside(MemoryBlobStore(), blobs.root / "x")
