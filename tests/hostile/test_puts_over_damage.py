"""A trainer goes on over a newest version that is damaged, if nothing of it is needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from weightstore.errors import CorruptError
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.store_lab import store_on

FIRST = {"w": np.arange(10, dtype=np.uint16)}
SECOND = {"w": np.arange(1, 11, dtype=np.uint16)}


@pytest.fixture
def blobs() -> MemoryBlobStore:
    return MemoryBlobStore()


def key_ending(blobs: MemoryBlobStore, end: str) -> str:
    return next(info.key for info in blobs.list("anchors/") if info.key.endswith(end))


def lose(blobs: MemoryBlobStore, end: str) -> tuple[str, bytes]:
    key = key_ending(blobs, end)
    data = blobs.get(key, max_size_bytes=1 << 20)
    blobs.delete(key)
    return key, data


def bits(store: WeightStore, version: int) -> bytes:
    return store.checkout(version).host["w"].units.tobytes()


@pytest.mark.parametrize("end", ["weightstore.blocks", "model.safetensors"])
def test_a_new_trainer_writes_a_full_version_over_a_lost_full_form(
    blobs: MemoryBlobStore, end: str
) -> None:
    with store_on(blobs) as store, store.trainer("grpo") as trainer:
        trainer.put_step(0, FIRST).result()
    lose(blobs, end)
    with store_on(blobs, seed=1) as store, store.trainer("grpo") as trainer:
        pending = trainer.put_step(1, SECOND, new_schema=True)
        with pytest.warns(UserWarning, match="cannot be read, so the next one will be full"):
            assert pending.result() == 2
        assert bits(store, 2) == SECOND["w"].tobytes()


def test_a_running_trainer_writes_a_full_form_over_a_lost_one(blobs: MemoryBlobStore) -> None:
    with store_on(blobs) as store, store.trainer("grpo") as trainer:
        trainer.put_step(0, FIRST).result()
        lose(blobs, "weightstore.blocks")
        assert trainer.put_step(1, SECOND, anchor=True).result() == 2
    assert bits(store_on(blobs, seed=1), 2) == SECOND["w"].tobytes()


def test_assets_that_are_lost_are_named_and_never_left_out(
    blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    safetensors.numpy.save_file(FIRST, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    store = store_on(blobs)
    store.import_checkpoint(tmp_path)
    with store.trainer("grpo") as trainer:
        key, data = lose(blobs, "config.json")
        # A delta needs no assets.
        assert trainer.put_step(0, SECOND).result() == 2
        with pytest.raises(CorruptError, match=r"config\.json"):
            trainer.put_step(1, FIRST, anchor=True).result()
        blobs.put_if_absent(key, data)
        assert trainer.put_step(1, FIRST, anchor=True).result() == 3
    assert bits(store, 3) == FIRST["w"].tobytes()
