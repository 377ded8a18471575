"""Versions that have a full form beside their delta, and repeats of what was retired."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from weightstore import WeightStore
from weightstore.errors import CorruptObjectError, VersionGoneError
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.store_lab import LAB_SETTINGS, store_on


def weights(value: float) -> dict[str, torch.Tensor]:
    """One tensor whose first element differs."""
    tensor = torch.ones(300, dtype=torch.bfloat16)
    tensor[0] = value
    return {"w": tensor}


def test_a_repeat_of_a_retired_step_says_that_it_is_gone() -> None:
    store = store_on(MemoryBlobStore())
    for step in range(3):
        store.put_step(step, weights(step + 2.0), anchor=step == 2)
    store.retire()
    with pytest.raises(VersionGoneError, match="version 1"):
        store.put_step(0, weights(2.0))
    store.close()


def test_verify_reads_the_delta_of_a_version_that_has_a_full_form_too(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as local:
        local.put_step(0, weights(2.0))
        local.put_step(1, weights(3.0), anchor=True)
        local.verify(2)
        (pack,) = (tmp_path / "store").rglob("packs/*/2-*.safetensors")
        data = bytearray(pack.read_bytes())
        data[-1] ^= 1
        pack.chmod(0o644)
        pack.write_bytes(data)
        with pytest.raises(CorruptObjectError, match="pack"):
            local.verify(2)
