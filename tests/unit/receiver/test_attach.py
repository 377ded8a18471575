"""From what a caller holds to a receiver: through the facade, with torch tensors and arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weightstore import WeightStore
from weightstore.errors import (
    InputRefusedError,
    SchemaMismatchError,
    StoreClosedError,
    VersionNotFoundError,
    WrongBaseError,
)
from weightstore.layout.boxes import Box
from weightstore.receiver.attach import attach_receiver
from weightstore.receiver.live_state import Way
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.store_lab import LAB_SETTINGS


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Embedding(40, 16), torch.nn.Linear(16, 64), torch.nn.LayerNorm(64)
    ).to(torch.bfloat16)


def step(trained: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.view(torch.int16)[torch.rand(parameter.shape) < 0.05] += 1


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS)


def test_a_model_follows_a_trainer(store: WeightStore) -> None:
    trained, served = model(0), model(1)
    with store:
        store.put_step(0, trained.state_dict(), anchor=True)
        receiver = store.receiver(dict(served.named_parameters()))
        pointers = [parameter.data_ptr() for parameter in served.parameters()]
        ways = []
        for number in range(1, 4):
            ways.append(receiver.refit().way)
            step(trained)
            store.put_step(number, trained.state_dict())
        receiver.refit()
        assert ways == [Way.FULL, Way.CHANGE, Way.CHANGE]
        for mine, theirs in zip(served.parameters(), trained.parameters(), strict=True):
            assert torch.equal(mine.view(torch.int16), theirs.view(torch.int16))
        assert pointers == [parameter.data_ptr() for parameter in served.parameters()]
        with receiver.serving(exact=4, max_lag=0) as version:
            served(torch.arange(4))
            assert version == 4
        step(trained)
        store.put_step(4, trained.state_dict())
        with receiver.serving(min=4):
            pass


def test_a_model_that_loaded_by_itself_is_adopted(store: WeightStore) -> None:
    trained, served = model(0), model(1)
    with store:
        store.put_step(0, trained.state_dict())
        served.load_state_dict(store.checkout().tensors)
        receiver = store.receiver(dict(served.named_parameters()))
        assert receiver.version is None
        receiver.adopt()
        step(trained)
        store.put_step(1, trained.state_dict())
        assert receiver.refit().way is Way.CHANGE


def test_a_refused_adoption_leaves_the_places_of_what_is_live(store: WeightStore) -> None:
    shared, apart = torch.randn(2, 4096)
    live = {name: torch.zeros(4096) for name in "ab"}
    with store:
        store.put_step(0, {"a": shared, "b": shared})
        shared[5] += 1
        store.put_step(1, {"a": shared, "b": shared})
        store.put_step(2, {"a": shared, "b": apart}, new_schema=True)
        receiver = store.receiver(live)
        receiver.refit(1)
        with pytest.raises(WrongBaseError):
            receiver.adopt(3)
        assert receiver.refit(2).way is Way.CHANGE
        assert all(torch.equal(tensor, shared) for tensor in live.values())
        live["b"].copy_(apart)
        assert receiver.adopt(3).version == 3
        assert receiver.verify().version == 3


def test_a_store_without_versions_has_nothing_to_attach_to(store: WeightStore) -> None:
    with store, pytest.raises(VersionNotFoundError):
        store.receiver(dict(model(0).named_parameters()))
    with pytest.raises(StoreClosedError):
        store.receiver({})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"targets": None}, InputRefusedError),
        ({"targets": [torch.zeros(3)]}, InputRefusedError),
        ({"targets": {"w": [1.0]}}, SchemaMismatchError),
        ({"targets": {}}, SchemaMismatchError),
        ({"boxes": [1]}, InputRefusedError),
        ({"boxes": {"w": (0, 3)}}, InputRefusedError),
        ({"settings": {"pool_ratio": 1}}, InputRefusedError),
    ],
)
def test_wrong_arguments_are_named(
    store: WeightStore, change: dict[str, Any], error: type[Exception]
) -> None:
    with store:
        store.put_step(0, {"w": torch.zeros(3)})
        given = {"targets": {"w": torch.zeros(3)}, "boxes": None, "settings": None, **change}
        with pytest.raises(error):
            store.receiver(given["targets"], boxes=given["boxes"], settings=given["settings"])


def test_boxes_of_arrays_and_tensors_are_the_same(store: WeightStore) -> None:
    whole = torch.arange(24, dtype=torch.float32).view(4, 6)
    box = Box((1, 2), (3, 2))
    with store:
        store.put_step(0, {"w": whole})
        tensor, array = torch.zeros(3, 2), np.zeros(6, np.uint32)
        for target in (tensor, array):
            attach_receiver(
                VersionSource(store._blobs, store._log, store._settings),
                {"w": target},  # type: ignore[arg-type]
                boxes={"w": box},
                settings=ReceiverSettings(pool_ratio=1.0),
                clock=store._components.clock,
            ).refit()
        assert torch.equal(tensor, whole[1:4, 2:4])
        assert np.array_equal(array.view(np.float32), whole[1:4, 2:4].reshape(-1).numpy())


def test_arrays_need_no_torch(store: WeightStore, tmp_path: Path) -> None:
    with store:
        store.put_step(0, {"w": np.arange(6, dtype=np.float32)})
    script = f"""
import sys
import numpy as np
from weightstore import WeightStore
units = np.zeros(6, np.uint32)
with WeightStore.open({str(tmp_path / "store")!r}) as store:
    store.receiver({{"w": units}}).refit()
assert units.view(np.float32).tolist() == [0, 1, 2, 3, 4, 5]
assert "torch" not in sys.modules and "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
