"""Torch operations over live memory, bit for bit as NumPy."""

from __future__ import annotations

import pytest
import torch

from weightstore.receiver.device_kernels import DeviceKernels, device_kernels_for
from weightstore.receiver.torch_kernels import TorchKernels
from weightstore.testing.device_kernels_contract import DeviceKernelsContract


class TestTorchKernels(DeviceKernelsContract):
    @pytest.fixture
    def kernels(self) -> DeviceKernels:
        return TorchKernels()


def test_host_memory_takes_torch_operations() -> None:
    assert device_kernels_for(torch.device("cpu")).name == "torch"


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton runs on the device that is here")
def test_where_triton_does_not_run_torch_does(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("triton", reason="needs the triton extra")
    device_kernels_for.cache_clear()
    assert device_kernels_for(torch.device("cuda", 0)).name == "torch"
    assert "Triton's kernels do not run on cuda:0" in caplog.text
