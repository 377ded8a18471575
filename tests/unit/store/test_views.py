"""What the facade hands out: frozen, plain values, and weights for those with and without torch."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import weightstore.store
from weightstore.errors import DTypeRefusedError
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import views
from weightstore.testing.store_lab import store_on

_WITHOUT_TORCH = """
import sys
from weightstore.store import WeightStore
with WeightStore.open(sys.argv[1]) as store:
    taken = store.checkout()
    assert taken.host["w"].units.tolist() == [0, 1, 2], taken.host
    store.verify(scan=True)
    store.export("latest", sys.argv[2])
assert "torch" not in sys.modules
"""


def test_views_are_exported_frozen_and_become_json() -> None:
    with store_on(MemoryBlobStore()) as store:
        store.put_step(0, {"w": np.arange(3, dtype=np.float32)})
        store.tag("best", owner="me")
        values = (
            store.version(),
            store.describe(),
            store.state(),
            store.tags()[0],
            next(store.log()),
            store.verify(),
            store.retire(),
        )
    for value in values:
        assert type(value) is getattr(weightstore.store, type(value).__name__)
        assert type(value).__module__ == views.__name__
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 7)
        assert json.loads(json.dumps(dataclasses.asdict(value)))
        assert pickle.loads(pickle.dumps(value)) == value


def test_torch_tensors_share_memory_with_the_host_tensors() -> None:
    with store_on(MemoryBlobStore()) as store:
        store.put_step(0, {"w": torch.ones((2, 3), dtype=torch.bfloat16)})
        taken = store.checkout()
    tensors = taken.tensors
    tensors["w"].zero_()
    assert taken.host["w"].units.tolist() == [0] * 6
    assert tensors["w"].dtype is torch.bfloat16
    assert tensors["w"].shape == (2, 3)


def test_two_checkouts_share_no_memory() -> None:
    with store_on(MemoryBlobStore()) as store:
        store.put_step(0, {"w": torch.ones(4)})
        first, second = store.checkout().tensors, store.checkout().tensors
    first["w"].zero_()
    assert second["w"].tolist() == [1.0] * 4


def test_a_dtype_that_torch_lacks_is_a_typed_error_and_readable_without_torch() -> None:
    spec = TensorSpec("w", DType.F6_E2M3, (4,))
    units = np.arange(3, dtype=np.uint8)
    with store_on(MemoryBlobStore()) as store:
        store.put_step(0, {"w": HostTensor(spec, units)})
        taken = store.checkout()
    assert taken.host["w"].units.tolist() == [0, 1, 2]
    with pytest.raises(DTypeRefusedError, match="F6_E2M3"):
        _ = taken.tensors


def test_reading_without_torch_imports_no_torch(tmp_path: Path) -> None:
    with weightstore.store.WeightStore.open(tmp_path / "store", create=True) as store:
        store.put_step(0, {"w": np.arange(3, dtype=np.uint16)})
    subprocess.run(
        [sys.executable, "-c", _WITHOUT_TORCH, tmp_path / "store", tmp_path / "model"],
        check=True,
        timeout=120,
    )
