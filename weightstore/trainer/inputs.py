"""What a caller may give a put, as one shape: named tensors whose bits are read in ranges.

A source is a mapping, a stream of pairs, or a path to safetensors. Nothing is copied here:
each tensor becomes an `InputTensor` that hands out unsigned units on demand, as views
where the memory allows it. Torch is imported when the first torch tensor is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError, NameRefusedError, TensorRefusedError
from weightstore.layout.canonical_names import canonical_name, canonical_names, refuse_wrapped
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec, Units, check_tensor_name
from weightstore.settings import Limits

if TYPE_CHECKING:
    import torch

AnyTensor: TypeAlias = "torch.Tensor | HostTensor | NDArray[Any]"
TensorsInMemory: TypeAlias = "Mapping[str, AnyTensor] | Iterable[tuple[str, AnyTensor]]"
TensorSource: TypeAlias = "TensorsInMemory | Path"

_NUMPY_DTYPES = {
    "b1": DType.BOOL,
    "u1": DType.U8,
    "u2": DType.U16,
    "u4": DType.U32,
    "u8": DType.U64,
    "i1": DType.I8,
    "i2": DType.I16,
    "i4": DType.I32,
    "i8": DType.I64,
    "f2": DType.F16,
    "f4": DType.F32,
    "f8": DType.F64,
    "c8": DType.C64,
}


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBits:
    """A given torch tensor where it is.

    Attributes:
        device: Where.
        read: From (first unit, unit count) to signed integers of the unit's width (bytes as
            uint8) in row-major logical order, on the device; a view, or a copy of strided ones.
    """

    device: torch.device
    read: Callable[[int, int], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class InputTensor:
    """One given tensor.

    Attributes:
        spec: Canonical name, and dtype and shape as found.
        read: From (first unit, unit count) to a 1-D contiguous array of the dtype's units
            in row-major logical order; a view of the caller's memory or a fresh copy.
            Safe to call from several threads.
        find_storage: Finds `storage`; most puts never ask.
        device_bits: The same units as torch holds them; None for what is no torch tensor.
    """

    spec: TensorSpec
    read: Callable[[int, int], Units]
    find_storage: Callable[[], tuple[object, ...] | None] = lambda: None
    device_bits: DeviceBits | None = None

    @property
    def storage(self) -> tuple[object, ...] | None:
        """Equal for two tensors that are the same memory read the same way; None if unknown."""
        return self.find_storage()


@dataclass(frozen=True, slots=True, eq=False)
class MappedInputs:
    """All tensors at once: checked before anything is written, read in any order."""

    tensors: Mapping[str, InputTensor]


@dataclass(frozen=True, slots=True, eq=False)
class StreamedInputs:
    """Tensors one by one, in any order.

    A tensor's memory is read before the next one is asked for, so that an exporter may
    reuse a buffer.
    """

    tensors: Iterator[InputTensor]


Inputs: TypeAlias = MappedInputs | StreamedInputs


def check_source(source: object) -> None:
    """Check that something can be a source of tensors, without taking anything from it.

    Raises:
        InputRefusedError: it is no mapping, no stream and no path.
    """
    is_source = isinstance(source, Path | Iterable) and not isinstance(source, str | bytes)
    if isinstance(source, Iterable):
        try:
            iter(source)
        except TypeError:  # an array without dims says that it can be iterated over
            is_source = False
    if not is_source:
        raise InputRefusedError(
            f"a {type(source).__name__} is no source of tensors",
            do="Give a mapping, an iterable of (name, tensor), or a pathlib.Path.",
        )


def open_source(
    source: TensorSource, *, at_end: ExitStack, limits: Limits, name_rules: Sequence[str] = ()
) -> Inputs:
    """Wrap what the caller gave.

    Args:
        source: A mapping or a stream of name to tensor, or a safetensors file or directory.
        at_end: Given what closes the files.
        limits: Bounds on headers of files.
        name_rules: Wrapper prefixes to strip (`module.`); without a rule they are refused.

    Raises:
        InputRefusedError: not a source, a value that is no tensor, or no usable file.
        NameRefusedError: a name is not allowed, or two names become one.
        TensorRefusedError: a tensor's form cannot be stored.
    """
    if isinstance(source, Path):
        from weightstore.trainer.files import open_files  # noqa: PLC0415 -- only for paths

        return _mapped(open_files(source, limits, at_end), name_rules)
    return open_tensors(source, name_rules=name_rules)


def open_tensors(source: TensorsInMemory, *, name_rules: Sequence[str] = ()) -> Inputs:
    """Wrap a mapping or a stream of tensors in memory; as `open_source`."""
    if isinstance(source, Mapping):
        return _mapped(source.items(), name_rules)
    check_source(source)
    return StreamedInputs(_stream(source, name_rules))


def device_fence(tensors: Iterable[object]) -> Callable[[], None] | None:
    """Remember what the caller's thread has queued on the devices of these tensors.

    Returns:
        Waits for that work, in whatever thread it is called; None where there is none.
    """
    on_devices = [one for one in tensors if getattr(one, "is_cuda", False)]
    if not on_devices:
        return None
    from weightstore.trainer.torch_tensors import record_events  # noqa: PLC0415 -- imports torch

    events = record_events(on_devices)

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def storage_place(
    place: tuple[object, ...], shape: tuple[int, ...], strides: tuple[int, ...], dtype: str
) -> tuple[object, ...]:
    """The identity of a read of memory: names with equal ones are tied."""
    return (*place, shape, strides, dtype)


def _mapped(
    items: Iterable[tuple[str, AnyTensor | InputTensor]], name_rules: Sequence[str]
) -> MappedInputs:
    given = dict(map(_checked_pair, items))
    names = canonical_names(given, name_rules)
    return MappedInputs({names[name]: _wrap(names[name], given[name]) for name in given})


def _stream(
    items: Iterable[tuple[str, AnyTensor]], name_rules: Sequence[str]
) -> Iterator[InputTensor]:
    given: dict[str, str] = {}
    for item in items:
        name, tensor = _checked_pair(item)
        canonical = canonical_name(name, name_rules)
        refuse_wrapped((canonical,))
        if canonical in given:
            raise NameRefusedError(
                f"tensors {given[canonical]!r} and {name!r} both become {canonical!r}",
                do="Give each canonical name once.",
                facts={"tensor": canonical},
            )
        given[canonical] = name
        yield _wrap(canonical, tensor)


def _checked_pair(item: object) -> tuple[str, object]:
    if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], str):  # noqa: PLR2004 -- a pair
        raise InputRefusedError(
            f"expected a pair of name and tensor, found a {type(item).__name__}",
            do="Give pairs like those of `model.state_dict().items()`.",
        )
    check_tensor_name(item[0])
    return item


def _wrap(name: str, tensor: object) -> InputTensor:
    if isinstance(tensor, InputTensor):
        return replace(tensor, spec=_renamed(tensor.spec, name))
    if isinstance(tensor, HostTensor):
        return _array_input(_renamed(tensor.spec, name), tensor.units)
    if type(tensor) is np.ndarray:
        return _numpy_input(name, tensor)
    if type(tensor).__module__.partition(".")[0] == "torch" or _is_torch_tensor(tensor):
        return _torch_input(name, tensor)
    # A subclass of an array may mean more than its bits, such as a mask.
    raise InputRefusedError(
        f"entry {name!r} is a {type(tensor).__name__}, not a tensor or a plain array",
        do="Leave out what is no tensor, such as `_extra_state` entries.",
        facts={"tensor": name},
    )


def _renamed(spec: TensorSpec, name: str) -> TensorSpec:
    return spec if spec.name == name else TensorSpec(name, spec.dtype, spec.shape)


def _is_torch_tensor(tensor: object) -> bool:
    """Whether a class outside torch derives from its Tensor, without importing torch."""
    return any(
        kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(tensor).__mro__
    )


def _torch_input(name: str, tensor: object) -> InputTensor:
    import torch  # noqa: PLC0415 -- only where a torch tensor was given

    from weightstore.trainer.torch_tensors import torch_input  # noqa: PLC0415 -- imports torch

    if not isinstance(tensor, torch.Tensor):
        raise InputRefusedError(
            f"entry {name!r} is a {type(tensor).__name__}, not a tensor",
            do="Leave out what is no tensor, such as `_extra_state` entries.",
            facts={"tensor": name},
        )
    return torch_input(name, tensor)


def _numpy_input(name: str, array: NDArray[Any]) -> InputTensor:
    dtype = _NUMPY_DTYPES.get(f"{array.dtype.kind}{array.dtype.itemsize}")
    if dtype is None or array.dtype.byteorder == ">":
        raise TensorRefusedError(
            f"tensor {name!r} is a NumPy array of dtype {array.dtype}, which cannot be stored",
            do="Give little-endian numbers, or a HostTensor for types that NumPy lacks.",
            facts={"tensor": name},
        )
    return _array_input(TensorSpec(name, dtype, array.shape), array.view(dtype.unit_dtype))


def _array_input(spec: TensorSpec, units: Units) -> InputTensor:
    find_storage = partial(_array_storage, spec, units)
    if units.flags.c_contiguous:
        flat = units.reshape(-1)
        return InputTensor(spec, lambda first, count: flat[first : first + count], find_storage)
    return InputTensor(spec, lambda first, count: units.flat[first : first + count], find_storage)


def _array_storage(spec: TensorSpec, units: Units) -> tuple[object, ...] | None:
    if not units.size:
        return None
    place = ("numpy", units.__array_interface__["data"][0])
    return storage_place(place, spec.shape, units.strides, spec.dtype.value)
