"""Live torch tensors as places: parameters, buffers, views; with or without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from weightstore.layout.dtypes import TORCH_NAMES
from weightstore.layout.schema import Schema
from weightstore.receiver.device_kernels import DeviceKernels
from weightstore.receiver.live_storage import HostStorage, LiveStorage
from weightstore.receiver.memory_overlaps import Holder, overlaps
from weightstore.receiver.placement import (
    Boxes,
    LiveTensor,
    Placement,
    mismatch,
    name_misfits,
    plan_placement,
    shape_misfits,
)
from weightstore.receiver.pool import SLACK_BYTES, Pool
from weightstore.receiver.torch_storage import TorchStorage, flat_integers
from weightstore.receiver.torch_targets import refused_form

_UNSIGNED = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}

Memories = dict[tuple[torch.device, int, int], LiveStorage]


def place_tensors(
    schema: Schema,
    targets: Mapping[str, torch.Tensor],
    boxes: Boxes,
    *,
    kernels: DeviceKernels | None = None,
) -> Placement:
    """Plan where the tensors of a schema live. Writes nothing.

    Args:
        schema: Of the versions to come.
        targets: Name to live tensor. Give parameters themselves (not `state_dict()`, whose
            tensors do not show when a parameter's memory is replaced).
        boxes: Name to the part that the live tensor is.
        kernels: The loops over all memory; None takes the codec's for host memory, and what
            suits each device. The bits are the same.

    Raises:
        SchemaMismatchError: names, shapes or dtypes differ, a tensor cannot be written in
            place, or two that are not tied share memory; everything is listed.
    """
    problems = [
        *name_misfits(schema, targets, boxes),
        *(
            problem
            for name, tensor in targets.items()
            if name in schema
            for problem in _problems(schema, name, tensor, boxes)
        ),
        *overlaps(_holders(schema, targets)),
    ]
    if problems:
        raise mismatch(problems)
    memories: Memories = {}
    live = [_live(name, tensor, memories, kernels) for name, tensor in targets.items()]
    return plan_placement(schema, live, boxes)


def checked_tensors(targets: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Targets that are all torch tensors.

    Raises:
        SchemaMismatchError: some are not; all of those are listed.
    """
    wrong = [
        f"not a tensor: {name!r} is a {type(target).__name__}"
        for name, target in targets.items()
        if not isinstance(target, torch.Tensor)
    ]
    if wrong:
        raise mismatch(wrong)
    return {name: one for name, one in targets.items() if isinstance(one, torch.Tensor)}


def pool_maker(targets: Mapping[str, torch.Tensor]) -> Callable[[int], Pool]:
    """Where staged changes wait: in pinned memory if a CUDA device reads them."""
    return _pinned_pool if any(one.is_cuda for one in targets.values()) else Pool.of_size


def _pinned_pool(size_bytes: int) -> Pool:
    pinned = torch.empty(size_bytes + SLACK_BYTES, dtype=torch.uint8, pin_memory=True)
    return Pool(pinned.numpy())


def _problems(schema: Schema, name: str, tensor: torch.Tensor, boxes: Boxes) -> Iterator[str]:
    spec = schema.tensors[schema.index_of(name)]
    expected, found = TORCH_NAMES.get(spec.dtype), str(tensor.dtype).removeprefix("torch.")
    if expected != found:
        yield f"dtype: {name!r} is {found}, the version has {expected or spec.dtype.value}"
    form = refused_form(tensor)
    if form:
        # What it says of its shape need not be the shape of its memory.
        yield f"{form}: {name!r}"
    else:
        yield from shape_misfits(spec, name, tuple(tensor.shape), boxes.get(name))


def _holders(schema: Schema, targets: Mapping[str, torch.Tensor]) -> Iterator[Holder]:
    for name, tensor in targets.items():
        if name in schema and not refused_form(tensor):
            yield Holder(name, schema.tensors[schema.index_of(name)].name, tensor)


def _live(
    name: str, tensor: torch.Tensor, memories: Memories, kernels: DeviceKernels | None
) -> LiveTensor:
    width = tensor.element_size()
    plain = tensor.detach()
    key = (plain.device, plain.untyped_storage().data_ptr(), width)
    storage = memories.get(key)
    if storage is None:
        flat = flat_integers(plain)
        if kernels is None and plain.device.type == "cpu":
            storage = HostStorage(flat.numpy().view(_UNSIGNED[width]))
        else:
            storage = TorchStorage(flat, kernels)
        memories[key] = storage
    return LiveTensor(
        name,
        storage,
        int(plain.storage_offset()),
        tuple(plain.shape),
        tuple(plain.stride()),
        tensor.data_ptr,
    )
