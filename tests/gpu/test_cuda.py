"""On a CUDA device: the kernels compiled, a receiver's live weights, a trainer's detection.

tools/test -n 0 -m gpu tests/gpu
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from weightstore import Settings, WeightStore
from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.layout.boxes import Box
from weightstore.receiver.device_kernels import DeviceKernels, device_kernels_for
from weightstore.receiver.live_extents import extent_of
from weightstore.receiver.live_storage import LiveStorage
from weightstore.receiver.torch_kernels import TorchKernels
from weightstore.receiver.torch_storage import TorchStorage
from weightstore.testing.detect_kernels_contract import DetectKernelsContract
from weightstore.testing.device_kernels_contract import DeviceKernelsContract, moved
from weightstore.testing.live_storage_contract import LiveStorageContract
from weightstore.trainer.detect_kernels import (
    DetectKernels,
    TorchDetectKernels,
    detect_kernels_for,
)

DEVICE = torch.device("cuda", 0)
KERNELS = ["torch", "triton"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture
def device() -> torch.device:
    return DEVICE


def live_kernels(name: str) -> DeviceKernels:
    kernels = TorchKernels() if name == "torch" else device_kernels_for(DEVICE)
    assert kernels.name == name
    return kernels


class TestLiveKernels(DeviceKernelsContract):
    @pytest.fixture(params=KERNELS)
    def kernels(self, request: pytest.FixtureRequest) -> DeviceKernels:
        return live_kernels(request.param)

    @pytest.fixture
    def device(self) -> torch.device:
        return DEVICE


class TestLiveMemory(LiveStorageContract):
    @pytest.fixture(params=KERNELS)
    def make(self, request: pytest.FixtureRequest) -> Callable[[Units], LiveStorage]:
        kernels = live_kernels(request.param)
        return lambda units: TorchStorage(moved(units, DEVICE), kernels)


class TestDetectKernels(DetectKernelsContract):
    @pytest.fixture(params=KERNELS)
    def kernels(self, request: pytest.FixtureRequest) -> DetectKernels:
        kernels = TorchDetectKernels() if request.param == "torch" else detect_kernels_for(DEVICE)
        assert kernels.name == request.param
        return kernels

    @pytest.fixture
    def device(self) -> torch.device:
        return DEVICE


@pytest.mark.parametrize("name", KERNELS)
def test_places_beyond_31_bits(name: str) -> None:
    flat = torch.zeros((1 << 31) + 4_096, dtype=torch.uint8, device=DEVICE)
    places = np.array([5, (1 << 31) - 1, 1 << 31, (1 << 31) + 4_095])
    old_bits, new_bits = np.zeros(4, np.uint8), np.array([9, 8, 7, 6], np.uint8)
    storage = TorchStorage(flat, live_kernels(name))
    change = BlockedChange.of(places, old_bits, new_bits)
    assert storage.scatter(change, redo=False) == (4, 0)
    assert storage.gather(places).tolist() == new_bits.tolist()
    column = extent_of((2, 9), Box((0, 3), (2, 1)), (1 << 31) - 1, (4_096, 1))
    assert storage.lanes(column) == TorchStorage(flat[1 << 30 :], TorchKernels()).lanes(
        extent_of((2, 9), Box((0, 3), (2, 1)), (1 << 30) - 1, (4_096, 1))
    )


def model_on(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(600, 700), torch.nn.Linear(700, 10))
    return layers.to(device, torch.bfloat16)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().view(torch.int16).numpy().tobytes()


def bits_of(model: torch.nn.Module) -> dict[str, bytes]:
    return {name: bits(one) for name, one in model.named_parameters()}


def step(model: torch.nn.Module, number: int) -> None:
    with torch.no_grad():
        for one in model.parameters():
            one.view(torch.int16).view(-1)[number::97] += 1


@pytest.mark.parametrize("detect_on", ["host", "device"])
def test_trained_on_one_and_served_on_the_other_device(tmp_path: Path, detect_on: str) -> None:
    trained, engine = model_on(DEVICE), model_on(DEVICE)
    pointers = [one.data_ptr() for one in engine.parameters()]
    settings = Settings(detect_on="device" if detect_on == "device" else "host")
    with WeightStore.open(tmp_path / "store", create=True, settings=settings) as store:
        with store.trainer("run") as trainer:
            trainer.put_step(0, dict(trained.named_parameters())).result()
            receiver = store.receiver(dict(engine.named_parameters()))
            receiver.refit("latest")
            for number in range(1, 4):
                step(trained, number)
                trainer.put_step(number, dict(trained.named_parameters())).result()
                report = receiver.refit("latest")
                assert report.way.value == "change"
                assert bits_of(engine) == bits_of(trained)
        receiver.refit(2)
        receiver.verify()
    assert [one.data_ptr() for one in engine.parameters()] == pointers


def test_what_a_side_stream_has_queued_is_in_the_version(tmp_path: Path) -> None:
    weight = torch.zeros(1 << 24, dtype=torch.bfloat16, device=DEVICE)
    side = torch.cuda.Stream(DEVICE)  # type: ignore[no-untyped-call]
    with (
        WeightStore.open(
            tmp_path / "store", create=True, settings=Settings(detect_on="device")
        ) as store,
        store.trainer("run") as trainer,
    ):
        trainer.put_step(0, {"w": weight}).result()
        with torch.cuda.stream(side):
            for _ in range(200):
                weight += 1
            pending = trainer.put_step(1, {"w": weight})
            pending.captured()
            weight.zero_()
        assert pending.result() == 2
        found = store.checkout(2).host["w"].units
        assert (found == 0x4348).all()


def test_a_refit_waits_for_what_the_engine_has_queued(tmp_path: Path) -> None:
    trained, engine = model_on(DEVICE), model_on(DEVICE)
    side = torch.cuda.Stream(DEVICE)  # type: ignore[no-untyped-call]
    with WeightStore.open(tmp_path / "store", create=True) as store:
        store.put_step(0, dict(trained.named_parameters()))
        receiver = store.receiver(dict(engine.named_parameters()))
        receiver.refit("latest")
        for number in range(1, 3):
            before = bits_of(engine)
            step(trained, number)
            store.put_step(number, dict(trained.named_parameters()), anchor=number == 2)
            with torch.cuda.stream(side), receiver.serving():
                torch.cuda._sleep(1 << 30)  # type: ignore[no-untyped-call]
                seen = {name: one.detach().clone() for name, one in engine.named_parameters()}
            receiver.refit("latest")
            side.synchronize()
            assert bits_of(engine) == bits_of(trained)
            assert {name: bits(one) for name, one in seen.items()} == before
