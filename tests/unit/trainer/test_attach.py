"""Claim first, then a baseline that is proven: from a file, from tensors, or by checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from weightstore.errors import (
    DTypeRefusedError,
    FencedError,
    InputRefusedError,
    NameRefusedError,
    SchemaMismatchError,
    StoreOwnedError,
    WeightStoreError,
)
from weightstore.format.keys import anchor_key
from weightstore.settings import Limits
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import (
    PIECE_UNIT_COUNT,
    TrainerLab,
    bits_of,
    changed,
    lab_settings,
    small_weights,
)


@pytest.fixture
def blobs() -> MemoryBlobStore:
    return MemoryBlobStore()


@pytest.fixture
def lab(blobs: MemoryBlobStore) -> TrainerLab:
    return TrainerLab(blobs).create()


def reads_of_data(blobs: MemoryBlobStore) -> list[str]:
    """Count from now on which packs and anchors are read."""
    read: list[str] = []
    inner = blobs.read_into

    def read_into(key: str, *rest: object) -> None:
        read.append(key)
        inner(key, *rest)  # type: ignore[arg-type]

    blobs.read_into = read_into  # type: ignore[method-assign]
    return read


def test_a_restarted_trainer_continues_the_chain(lab: TrainerLab, blobs: MemoryBlobStore) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(56, weights).result()
        trainer.put_step(57, changed(weights, 1)).result()
    after = changed(weights, 2)
    with TrainerLab(blobs, seed=1).trainer() as trainer:
        report = trainer.put_step(58, after).report()
    assert (report.version, report.full_size_bytes) == (3, 0)
    assert report.changed_count < 5000
    assert lab.bits(3) == bits_of(after)


def test_tensors_of_the_newest_version_save_its_checkout(
    lab: TrainerLab, blobs: MemoryBlobStore
) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
    read = reads_of_data(blobs)
    with lab.trainer(resume=weights) as trainer:
        assert not read
        assert trainer.put_step(1, weights).report().changed_count == 0


@pytest.mark.parametrize("kind", ["older", "other schema", "missing one"])
def test_other_tensors_do_not_become_the_baseline(lab: TrainerLab, kind: str) -> None:
    weights = small_weights()
    newest = changed(weights, 1)
    resume = {
        "older": weights,
        "other schema": {"w": np.zeros(3, np.uint8)},
        "missing one": {name: newest[name] for name in ("embed",)},
    }[kind]
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
        trainer.put_step(1, newest).result()
    with lab.trainer(resume=resume) as trainer:
        assert trainer.put_step(2, newest).report().changed_count == 0


def test_a_resume_from_an_older_checkpoint_goes_on_by_one_delta(lab: TrainerLab) -> None:
    weights = [small_weights()]
    weights += [changed(weights[0], seed) for seed in range(1, 5)]
    with lab.trainer() as trainer:
        for step in range(4):
            trainer.put_step(step, weights[step]).result()
    with lab.trainer(rewind_to=1) as trainer:
        report = trainer.put_step(2, weights[4]).report()
    assert (report.version, report.full_size_bytes) == (5, 0)
    assert lab.bits("run@2") == bits_of(weights[4])
    assert lab.bits(3) == bits_of(weights[2])
    assert lab.steps()[5] == ("run", 2)


def test_a_new_run_continues_from_the_newest_version(lab: TrainerLab) -> None:
    weights = small_weights()
    with lab.trainer("base") as trainer:
        trainer.put_step(9, weights).result()
    after = changed(weights, 1)
    with lab.trainer("tuned") as trainer:
        assert trainer.put_step(0, after).report().full_size_bytes == 0
    assert lab.steps() == {1: ("base", 9), 2: ("tuned", 0)}
    assert lab.bits("tuned@0") == bits_of(after)


def test_a_second_trainer_is_refused_and_may_take_over(
    lab: TrainerLab, blobs: MemoryBlobStore
) -> None:
    weights = small_weights()
    after = changed(weights, 1)
    old = lab.trainer()
    old.put_step(0, weights).result()
    other = TrainerLab(blobs, seed=1)
    with pytest.raises(StoreOwnedError, match="take_over"):
        other.trainer()
    with other.trainer(take_over=True) as trainer:
        trainer.put_step(1, after).result()
        with pytest.raises(FencedError, match="took the store over"):
            old.put_step(1, changed(weights, 2)).result()
        with pytest.raises(FencedError):
            old.put_step(2, changed(weights, 2)).result()
        assert trainer.put_step(2, weights).result() == 3
    old.close()
    assert lab.steps() == {1: ("run", 0), 2: ("run", 1), 3: ("run", 2)}
    assert lab.bits(2) == bits_of(after)


def test_given_files_are_read_within_the_limits_of_the_store(
    blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(3, np.uint8)}, path)
    settings = lab_settings(
        limits=Limits(piece_element_count=PIECE_UNIT_COUNT, safetensors_header_size_bytes=16)
    )
    lab = TrainerLab(blobs, settings=settings).create()
    with lab.trainer() as trainer, pytest.raises(WeightStoreError, match="header"):
        trainer.put_step(0, path).result()


def test_a_file_baseline_saves_the_checkout_after_a_restart(
    lab: TrainerLab, blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    weights = small_weights()
    path = tmp_path / "baseline"
    with lab.trainer(baseline_path=path) as trainer:
        trainer.put_step(0, weights).result()
        weights = changed(weights, 1)
        trainer.put_step(1, weights).result()
    read = reads_of_data(blobs)
    with lab.trainer(baseline_path=path) as trainer:
        assert not read
        assert trainer.put_step(2, weights).report().changed_count == 0
        weights = changed(weights, 2)
        trainer.put_step(3, weights).result()
    assert lab.bits() == bits_of(weights)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "behind"])
def test_a_damaged_or_stale_file_baseline_heals(
    lab: TrainerLab, tmp_path: Path, damage: str
) -> None:
    weights = small_weights()
    path = tmp_path / "baseline"
    with lab.trainer(baseline_path=path) as trainer:
        trainer.put_step(0, weights).result()
    whole = path.read_bytes()
    if damage == "behind":
        with lab.trainer() as trainer:
            weights = changed(weights, 1)
            trainer.put_step(1, weights).result()
    else:
        flipped = bytes([*whole[:-9000], whole[-9000] ^ 1, *whole[-8999:]])
        path.write_bytes({"flipped": flipped, "cut": whole[:5000], "empty": b""}[damage])
    with lab.trainer(baseline_path=path) as trainer:
        assert trainer.put_step(2, weights).report().changed_count == 0


def test_a_baseline_file_has_one_user(lab: TrainerLab, tmp_path: Path) -> None:
    other = TrainerLab(MemoryBlobStore(), seed=1).create()
    with (
        lab.trainer(baseline_path=tmp_path / "baseline"),
        pytest.raises(InputRefusedError, match="in use"),
    ):
        other.trainer(baseline_path=tmp_path / "baseline")
    with other.trainer(baseline_path=tmp_path / "baseline"):
        pass


def test_a_new_schema_replaces_the_baseline_file(lab: TrainerLab, tmp_path: Path) -> None:
    path = tmp_path / "baseline"
    other = {"w": np.arange(9, dtype=np.uint16)}
    with lab.trainer(baseline_path=path) as trainer:
        trainer.put_step(0, small_weights()).result()
        trainer.put_step(1, other, new_schema=True).result()
        other["w"][3] ^= 1
        assert trainer.put_step(2, other).report().changed_count == 1
    with lab.trainer(baseline_path=path) as trainer:
        assert trainer.put_step(3, other).report().changed_count == 0
    assert lab.bits() == bits_of(other)


def test_where_the_weights_of_the_newest_version_are_lost_the_next_one_is_full(
    lab: TrainerLab, blobs: MemoryBlobStore
) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
    for one in list(blobs.list(anchor_key(lab.plan().full_form.anchor_id, "model"))):
        blobs.delete(one.key)
    after = changed(weights, 1)
    with lab.trainer() as trainer:
        with pytest.raises(SchemaMismatchError):
            trainer.put_step(1, {"embed": after["embed"]}, missing="unchanged").result()
        pending = trainer.put_step(1, after)
        with pytest.warns(UserWarning, match="version 1 cannot be read"):
            assert pending.report().full_size_bytes > 0
        assert trainer.put_step(2, after).report().changed_count == 0
    assert lab.bits(2) == lab.bits(3) == bits_of(after)


def test_what_cannot_be_compared_with_the_newest_version_needs_a_new_schema(
    lab: TrainerLab, blobs: MemoryBlobStore
) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
    for one in list(blobs.list("manifests/")):
        blobs.delete(one.key)
    after = changed(weights, 1)
    part = {"embed": after["embed"]}
    with lab.trainer() as trainer:
        for given in (after, part, iter(part.items())):
            with pytest.raises(InputRefusedError, match=r"(?s)version 1 .*new_schema=True"):
                trainer.put_step(1, given).result()
        for new_schema in (False, True):
            with pytest.raises(InputRefusedError, match="version 1 cannot be read"):
                trainer.put_step(1, part, missing="unchanged", new_schema=new_schema).result()
        assert len(lab.steps()) == 1
        pending = trainer.put_step(1, after, new_schema=True)
        with pytest.warns(UserWarning, match="version 1 cannot be read"):
            assert pending.report().full_size_bytes > 0
        assert trainer.put_step(2, after).report().changed_count == 0
    assert lab.bits(2) == lab.bits(3) == bits_of(after)


def test_refused_options_claim_nothing(lab: TrainerLab) -> None:
    before = lab.log.tail()
    with pytest.raises(NameRefusedError):
        lab.trainer("no-dashes")
    with pytest.raises(DTypeRefusedError):
        lab.trainer(cast={"*": "int3"})
    for rewind_to in ("3", -1, True, 2.5):
        with pytest.raises(InputRefusedError, match=r"rewind_to=.* is no step"):
            lab.trainer(rewind_to=rewind_to)
    assert lab.log.tail() == before


def test_a_failed_attach_gives_the_claim_back(lab: TrainerLab) -> None:
    with pytest.raises(InputRefusedError):
        lab.trainer(resume=7)
    assert lab.log.tail().now.claim is None


DYING_TRAINER = """
import os, sys
from pathlib import Path
import numpy as np
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.trainer_lab import TrainerLab
lab = TrainerLab(LocalBlobStore(Path(sys.argv[1]), create=True), seed="child").create()
lab.trainer().put_step(0, {"w": np.zeros(9, np.uint8)}).result()
os._exit(0)
"""


def test_a_dead_owner_on_this_machine_is_followed_without_asking(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", DYING_TRAINER, str(tmp_path / "store")], check=True)
    lab = TrainerLab(LocalBlobStore(tmp_path / "store"))
    assert lab.log.tail().now.claim is not None
    with lab.trainer() as trainer:
        assert trainer.put_step(1, {"w": np.ones(9, np.uint8)}).result() == 2
        with pytest.raises(StoreOwnedError):
            TrainerLab(LocalBlobStore(tmp_path / "store"), seed=1).trainer()
