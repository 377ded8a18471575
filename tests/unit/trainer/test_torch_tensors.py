"""Torch tensors as bits, in logical row-major order, whatever their strides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weightstore.errors import TensorRefusedError
from weightstore.layout.dtypes import TORCH_NAMES, DType
from weightstore.layout.tensors import TensorSpec
from weightstore.trainer.inputs import MappedInputs, open_tensors
from weightstore.trainer.torch_tensors import torch_input

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits_of(tensor: torch.Tensor) -> bytes:
    """The oracle: a row-major copy through integers."""
    return tensor.view(INTEGERS[tensor.element_size()]).contiguous().numpy().tobytes()


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(7).integers(0, 256, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


@pytest.mark.parametrize("dtype", list(TORCH_NAMES))
def test_every_dtype_is_read_as_its_bits(dtype: DType) -> None:
    tensor = random_tensor((3, 4), getattr(torch, TORCH_NAMES[dtype]))
    found = torch_input("w", tensor)
    last = 8 if dtype is DType.F4 else 4
    assert found.spec == TensorSpec("w", dtype, (3, last))
    expected = tensor.view(torch.uint8).numpy().tobytes()
    assert found.read(0, found.spec.unit_count).tobytes() == expected


def test_a_contiguous_cpu_tensor_is_read_without_a_copy() -> None:
    tensor = torch.zeros(8, dtype=torch.bfloat16)
    part = torch_input("w", tensor).read(2, 3)
    tensor[2] = 1.0
    assert part[0] == 0x3F80


SHAPES: dict[str, torch.Tensor] = {
    "0-d": torch.tensor(3.5, dtype=torch.bfloat16),
    "0-d of a row": torch.arange(4.0)[2],
    "empty": torch.zeros(3, 0, 2),
    "size 1": torch.arange(5.0).view(1, 5, 1),
    "(N, 1) that claims stride (1, N)": torch.arange(5.0).as_strided((5, 1), (1, 5)),
    "transposed": torch.arange(12.0).view(3, 4).T,
    "permuted": torch.arange(120.0).view(2, 3, 4, 5).permute(3, 0, 2, 1),
    "channels last": torch.arange(48.0).view(2, 3, 2, 4).to(memory_format=torch.channels_last),
    "column": torch.arange(12.0).view(3, 4)[:, 1],
    "every second row": torch.arange(24.0).view(6, 4)[::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "transposed double": torch.arange(12, dtype=torch.float64).view(3, 4).T,
    "transposed complex": torch.arange(24.0).view(torch.complex64).view(3, 4).T,
    "needs grad": torch.nn.Parameter(torch.arange(6.0).view(2, 3)).T,
}


@pytest.mark.parametrize("form", SHAPES)
def test_bits_come_in_logical_order_in_ranges_of_any_size(form: str) -> None:
    tensor = SHAPES[form]
    found = torch_input("w", tensor)
    count = found.spec.unit_count
    assert found.spec.shape == tuple(tensor.shape)
    assert found.read(0, count).tobytes() == bits_of(tensor.detach())
    for size in (1, 2, 5, 7):
        parts = [found.read(at, min(size, count - at)).tobytes() for at in range(0, count, size)]
        assert b"".join(parts) == bits_of(tensor.detach())


def test_all_patterns_of_bf16_survive_every_stride() -> None:
    patterns = torch.from_numpy(np.arange(65536, dtype=np.uint16)).view(torch.bfloat16)
    for tensor in (patterns, patterns.view(256, 256).T, patterns.view(64, 1024)[:, ::2]):
        found = torch_input("w", tensor)
        assert found.read(0, tensor.numel()).tobytes() == bits_of(tensor)


REFUSED = {
    "sparse": (torch.eye(3).to_sparse(), "sparse"),
    "on the meta device": (torch.zeros(3, device="meta"), "meta"),
    "conj": (torch.zeros(3, dtype=torch.complex64).conj(), "conj"),
    "neg": (torch.zeros(3, dtype=torch.complex64).conj().imag, "neg"),
    "complex128": (torch.zeros(3, dtype=torch.complex128), "complex128"),
    "int4": (torch.empty(3, dtype=torch.bits8), "bits8"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_forms_that_cannot_be_stored_are_refused_by_name(form: str) -> None:
    tensor, word = REFUSED[form]
    with pytest.raises(TensorRefusedError, match=rf"'layer\.w'.*{word}"):
        torch_input("layer.w", tensor)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_and_nested_tensors_are_refused_by_name() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(TensorRefusedError, match=r"'n'.*nested"):
        torch_input("n", nested)
    quantised = torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)
    with pytest.raises(TensorRefusedError, match=r"'q'.*quantised"):
        torch_input("q", quantised)


class Wrapped(torch.Tensor):
    """A subclass whose bits may mean something else."""


def test_a_tensor_subclass_is_refused_by_name() -> None:
    tensor = torch.zeros(3).as_subclass(Wrapped)
    with pytest.raises(TensorRefusedError, match=r"'w'.*Wrapped"):
        open_tensors({"w": tensor})


def test_parameters_buffers_and_tied_weights_are_seen() -> None:
    embed, head = torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4, bias=False)
    head.weight = embed.weight
    model = torch.nn.ModuleDict({"embed": embed, "head": head, "norm": torch.nn.BatchNorm1d(3)})
    inputs = open_tensors(model.state_dict())
    assert isinstance(inputs, MappedInputs)
    tied = {name: found.storage for name, found in inputs.tensors.items()}
    assert tied["embed.weight"] == tied["head.weight"]
    assert tied["norm.weight"] != tied["norm.bias"]
    assert inputs.tensors["norm.num_batches_tracked"].spec.dtype is DType.I64


def test_a_view_of_other_shape_is_no_tie() -> None:
    whole = torch.arange(12.0)
    places = [
        torch_input("w", tensor).storage
        for tensor in (whole, whole.view(3, 4), whole[:4], whole[4:], whole.view(3, 4).T)
    ]
    assert len(set(places)) == len(places)
