"""A live torch state dict as the target of a checkout, without moving its storages.

Weights are written as bits through unsigned views: no float kernel ever touches them, so
NaN payloads survive. Contiguous CPU tensors are written in place; what is on a device or
not contiguous is filled in host memory first and copied as integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from weightstore.errors import DTypeRefusedError, SchemaMismatchError, TargetUnusableError
from weightstore.layout.dtypes import TORCH_NAMES
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.receiver.memory_overlaps import Holder, overlaps

Units = NDArray[np.unsignedinteger[Any]]
_MESSAGE_LINE_COUNT = 50
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, eq=False)
class TorchTargets:
    """Host arrays to fill, and the tensors that still need a copy afterwards.

    Attributes:
        units: Canonical name to the array that the checkout fills.
        staged: Name, filled array and the tensor that it belongs into.
    """

    units: dict[str, Units]
    staged: tuple[tuple[str, Units, torch.Tensor], ...]

    def finish(self) -> None:
        """Copy staged arrays into their tensors, bit for bit.

        Raises:
            TargetUnusableError: a copy failed; the tensors hold a mixture.
        """
        # Inference tensors may be written in this mode alone; all others may be too.
        with torch.inference_mode():
            for name, units, tensor in self.staged:
                try:
                    _copy_bits(units, tensor)
                except RuntimeError as error:
                    raise TargetUnusableError(
                        f"tensor {name!r} could not be written, after others were: {error}",
                        do="Do not use the targets: check out again, or load them from elsewhere.",
                        facts={"tensor": name},
                    ) from error


def plan_targets(schema: Schema, state_dict: Mapping[str, torch.Tensor]) -> TorchTargets:
    """Match a state dict with a schema before anything is written.

    Args:
        schema: Of the version to be checked out.
        state_dict: Canonical or alias names to tensors of the schema's shapes and dtypes.

    Raises:
        SchemaMismatchError: names, shapes or dtypes differ, a tensor cannot be written in
            place, or two that are not tied share memory; everything is listed.
    """
    specs = {spec.name: spec for spec in schema.tensors}
    canonical = {name: name for name in specs} | {
        alias.name: alias.target for alias in schema.aliases
    }
    found = {canonical.get(name) for name in state_dict}
    problems = [
        *(f"missing: {name!r}" for name in specs if name not in found),
        *(f"not in the version: {name!r}" for name in state_dict if name not in canonical),
    ]
    holders: list[Holder] = []
    for name, tensor in state_dict.items():
        if name in canonical:
            problem = _problem(name, specs[canonical[name]], tensor)
            problems += [problem] if problem else []
            holders += [] if problem else [Holder(name, canonical[name], tensor)]
    problems += overlaps(holders)
    if problems:
        raise _mismatch(problems)
    return _targets(specs, holders)


def torch_tensor(host: HostTensor) -> torch.Tensor:
    """A torch tensor that shares the host tensor's memory, in its dtype and shape.

    Raises:
        DTypeRefusedError: this torch has no such dtype.
    """
    dtype = getattr(torch, TORCH_NAMES.get(host.spec.dtype, ""), None)
    if dtype is None:
        raise DTypeRefusedError(
            f"tensor {host.spec.name!r} is {host.spec.dtype.value}, which torch "
            f"{torch.__version__} does not have",
            do="Use `checkout(...).host`, or write the version to a file.",
            facts={"tensor": host.spec.name, "dtype": host.spec.dtype.value},
        )
    shape = _torch_shape(host.spec)
    if not host.spec.unit_count:
        return torch.empty(shape, dtype=dtype)
    flat = torch.from_numpy(host.units.view(np.uint8))
    return flat.view(dtype).view(shape)


def refused_form(tensor: torch.Tensor) -> str | None:
    """Why no tensor of this form can be written in place, whatever its dtype and shape."""
    plain = tensor.detach()
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        return "not a dense tensor"
    if type(plain) is not torch.Tensor:
        return f"a {type(plain).__qualname__}, not a plain tensor"
    if tensor.is_meta:
        return "on the meta device"
    if tensor.is_conj() or tensor.is_neg():
        return "a lazily conjugated or negated view"
    return None


def _targets(specs: Mapping[str, TensorSpec], holders: Sequence[Holder]) -> TorchTargets:
    """The first holder of a name that can be is filled in place; others are copied from it."""
    units: dict[str, Units] = {}
    staged: list[tuple[str, Units, torch.Tensor]] = []
    for holder in holders:
        spec = specs[holder.owner]
        view = _in_place_view(spec, holder.tensor)
        if view is not None:
            units.setdefault(holder.owner, view)
    for holder in holders:
        spec = specs[holder.owner]
        filled = units.get(holder.owner)
        if filled is None:
            filled = units[holder.owner] = np.empty(spec.unit_count, spec.dtype.unit_dtype)
        view = _in_place_view(spec, holder.tensor)
        if spec.unit_count and (view is None or view.ctypes.data != filled.ctypes.data):
            staged.append((holder.name, filled, holder.tensor))
    return TorchTargets(units, tuple(staged))


def _mismatch(problems: list[str]) -> SchemaMismatchError:
    shown = problems[:_MESSAGE_LINE_COUNT]
    more = len(problems) - len(shown)
    lines = "".join(f"\n  {line}" for line in shown) + (f"\n  and {more} more" if more else "")
    return SchemaMismatchError(
        f"the state dict does not fit the version; nothing was written:{lines}",
        do="Build the model from this checkpoint's configuration, or choose another version.",
        facts={"problems": tuple(problems)},
    )


def _torch_shape(spec: TensorSpec) -> tuple[int, ...]:
    # torch holds packed fp4 as pairs, so its last dim is half of the logical one.
    if spec.dtype.bit_count < 8 and spec.shape:  # noqa: PLR2004 -- bits of a byte
        return (*spec.shape[:-1], spec.shape[-1] * spec.dtype.bit_count // 8)
    return spec.shape


def _problem(name: str, spec: TensorSpec, tensor: object) -> str | None:
    if not isinstance(tensor, torch.Tensor):
        return f"not a tensor: {name!r} is a {type(tensor).__name__}"
    form = refused_form(tensor)
    if form:
        return f"{form}: {name!r}"
    expected = TORCH_NAMES.get(spec.dtype)
    found = str(tensor.dtype).removeprefix("torch.")
    wrong = []
    if expected != found:
        wrong.append(f"dtype: {name!r} is {found}, the version has {expected or spec.dtype.value}")
    if tuple(tensor.shape) != _torch_shape(spec):
        wrong.append(
            f"shape: {name!r} is {tuple(tensor.shape)}, the version has {_torch_shape(spec)}"
        )
    return "\n  ".join(wrong) or None


def _in_place_view(spec: TensorSpec, tensor: torch.Tensor) -> Units | None:
    """The tensor's own memory as units, or None where it must be copied into."""
    width = spec.dtype.unit_size_bytes
    if tensor.device.type != "cpu" or not tensor.is_contiguous() or tensor.data_ptr() % width:
        return None
    if not tensor.numel():
        return np.empty(0, spec.dtype.unit_dtype)
    flat = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    view: Units = flat.numpy().view(spec.dtype.unit_dtype)
    return view


def _copy_bits(units: Units, tensor: torch.Tensor) -> None:
    """Copy through integers of the element's width: a float copy may quieten a NaN."""
    width = tensor.element_size()
    live = tensor.detach()
    source = torch.from_numpy(units.view(np.uint8))
    if width in _INTEGERS and not tensor.is_complex():
        live = live.view(_INTEGERS[width])
        source = source.view(_INTEGERS[width])
    else:
        live, source = torch.view_as_real(live).view(torch.int32), source.view(torch.int32)
    live.copy_(source.view(live.shape))
