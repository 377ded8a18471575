"""Finding changes in torch operations, and in Triton's kernels by its interpreter, as NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.layout.dtypes import DType
from weightstore.testing.detect_kernels_contract import DetectKernelsContract, check_changes
from weightstore.testing.tensors import hard_units
from weightstore.testing.triton_interpreter import interpret_triton
from weightstore.trainer.detect_kernels import (
    DetectKernels,
    TorchDetectKernels,
    detect_kernels_for,
)

CPU = torch.device("cpu")


def triton_kernels(block_unit_count: int = 1024) -> DetectKernels:
    interpret_triton()
    from weightstore.trainer.triton_detect import (  # noqa: PLC0415 -- in its mode
        TritonDetectKernels,
    )

    return TritonDetectKernels(block_unit_count)


class TestTorchKernels(DetectKernelsContract):
    @pytest.fixture
    def kernels(self) -> DetectKernels:
        return TorchDetectKernels()


class TestTritonKernels(DetectKernelsContract):
    @pytest.fixture
    def kernels(self) -> DetectKernels:
        return triton_kernels()


@settings(max_examples=60)
@given(
    dtype=st.sampled_from([DType.U8, DType.BF16, DType.F16, DType.F32, DType.F64]),
    count=st.integers(0, 3_000),
    ratio=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    block=st.sampled_from([16, 64, 1024]),
    seed=st.integers(0, 2**32 - 1),
)
def test_they_equal_numpy(dtype: DType, count: int, ratio: float, block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = hard_units(dtype)
    old = rng.choice(values, count)
    new = np.where(rng.random(count) < ratio, rng.choice(values, count), old)
    for kernels in (triton_kernels(block), TorchDetectKernels()):
        check_changes(kernels, CPU, old, new)


def test_host_memory_takes_torch_operations() -> None:
    assert detect_kernels_for(CPU).name == "torch"


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton runs on the device that is here")
def test_where_triton_does_not_run_torch_does(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("triton", reason="needs the triton extra")
    detect_kernels_for.cache_clear()
    assert detect_kernels_for(torch.device("cuda", 0)).name == "torch"
    assert "Triton's kernels do not run on cuda:0" in caplog.text
