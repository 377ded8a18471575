"""Torch tensors as bits: row-major units of a logical tensor, read in bounded ranges.

The only module of this layer that imports torch at its top; `inputs` imports it when it
first meets a torch tensor. Bits are moved through unsigned views, so no float kernel ever
touches a value and NaN payloads survive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import torch

from weightstore.errors import TensorRefusedError
from weightstore.layout.dtypes import TORCH_NAMES
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.trainer.inputs import DeviceBits, InputTensor, storage_place

_DTYPES = {
    getattr(torch, name): dtype for dtype, name in TORCH_NAMES.items() if hasattr(torch, name)
}
_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}
_SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def torch_input(name: str, tensor: torch.Tensor) -> InputTensor:
    """A torch tensor as input of a put; contiguous CPU tensors are read without a copy.

    Raises:
        TensorRefusedError: the tensor is sparse, quantised, nested, on the meta device, a
            `conj` or `neg` view, a tensor subclass, or of a dtype that cannot be stored.
    """
    tensor = tensor.detach()
    problem = _refusal(tensor)
    if problem:
        raise TensorRefusedError(
            f"tensor {name!r} is {problem[0]}", do=problem[1], facts={"tensor": name}
        )
    spec = TensorSpec(name, _DTYPES[tensor.dtype], _logical_shape(tensor))
    bits = tensor.view(_UNSIGNED[tensor.element_size()])
    signed = tensor.view(_SIGNED[tensor.element_size()])
    on_device = DeviceBits(tensor.device, partial(_device_range, signed))
    return InputTensor(spec, _reader(bits), partial(_storage, tensor), on_device)


def record_events(tensors: Iterable[object]) -> list[torch.cuda.Event]:
    """An event on this thread's current stream of each device that holds one of the tensors."""
    devices = {one.device for one in tensors if isinstance(one, torch.Tensor)}
    return [torch.cuda.current_stream(device).record_event() for device in devices]


def _refusal(tensor: torch.Tensor) -> tuple[str, str] | None:
    """What is wrong with a tensor, and what to do, or None."""
    kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
    wrong = (
        (
            tensor.layout is not torch.strided or tensor.is_nested,
            f"{_layout_name(tensor)}, not dense",
            "Give a dense tensor: `tensor.to_dense()`.",
        ),
        (
            tensor.is_quantized,
            "quantised",
            "Give its integer values and its scales as tensors of their own.",
        ),
        (
            type(tensor) is not torch.Tensor,
            f"a {kind}",
            "Give a plain torch.Tensor, for instance its full or local tensor.",
        ),
        (
            tensor.device.type == "meta",
            "on the meta device and has no values",
            "Load or materialise the model first.",
        ),
        (
            tensor.is_conj() or tensor.is_neg(),
            "a lazy conj or neg view",
            "Call `resolve_conj()` or `resolve_neg()` on it first.",
        ),
        (
            tensor.dtype not in _DTYPES,
            f"of dtype {tensor.dtype}, which safetensors cannot hold",
            "Convert it first.",
        ),
    )
    return next(((what, do) for broken, what, do in wrong if broken), None)


def _layout_name(tensor: torch.Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")


def _logical_shape(tensor: torch.Tensor) -> tuple[int, ...]:
    """Sizes in logical elements: a torch byte of packed fp4 holds two along the last dim."""
    shape = tuple(tensor.shape)
    per_byte = 8 * tensor.element_size() // _DTYPES[tensor.dtype].bit_count
    return shape if per_byte == 1 else (*shape[:-1], shape[-1] * per_byte)


def _storage(tensor: torch.Tensor) -> tuple[object, ...] | None:
    if tensor.numel() == 0:
        return None
    return storage_place(
        (str(tensor.device), tensor.data_ptr()),
        tuple(tensor.shape),
        _strides(tensor),
        str(tensor.dtype),
    )


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of the dims that move at all; those of size 1 may claim anything."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(stride if size > 1 else 0 for size, stride in sizes)


def _reader(bits: torch.Tensor) -> Callable[[int, int], Units]:
    if not bits.is_contiguous():
        return lambda first, count: _gather(bits, first, count)
    flat = bits.reshape(-1)
    if flat.device.type == "cpu":
        units: Units = flat.numpy()
        return lambda first, count: units[first : first + count]
    return lambda first, count: _units(flat[first : first + count])


def _device_range(bits: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """A row-major flat range where the tensor is: a view, or a copy of one of any strides."""
    if bits.is_contiguous():
        return bits.reshape(-1)[first : first + count]
    out = torch.empty(count, dtype=bits.dtype, device=bits.device)
    _copy_range(bits, first, out)
    return out


def _gather(bits: torch.Tensor, first: int, count: int) -> Units:
    """Copy a row-major flat range of a tensor of any strides, in the range's own memory."""
    return _units(_device_range(bits, first, count))


def _copy_range(bits: torch.Tensor, first: int, out: torch.Tensor) -> None:
    """Fill `out` from flat position `first` on: whole rows at once, part rows one dim down."""
    if bits.dim() <= 1:
        out.copy_(bits.reshape(-1)[first : first + out.numel()])
        return
    row_count = bits[0].numel()
    done = 0
    while done < out.numel():
        index, inside = divmod(first + done, row_count)
        left = out.numel() - done
        if inside == 0 and left >= row_count:
            rows = left // row_count
            target = out[done : done + rows * row_count].view(rows, *bits.shape[1:])
            target.copy_(bits[index : index + rows])
            done += rows * row_count
        else:
            part = min(row_count - inside, left)
            _copy_range(bits[index], inside, out[done : done + part])
            done += part


def _units(flat: torch.Tensor) -> Units:
    units: Units = flat.cpu().numpy()
    return units if units.flags.c_contiguous else np.ascontiguousarray(units)
