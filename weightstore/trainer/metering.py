"""How far a put has read its tensors."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from weightstore.history.progress import Progress, no_progress
from weightstore.layout.tensors import Units
from weightstore.trainer.inputs import Inputs, InputTensor, StreamedInputs

if TYPE_CHECKING:
    import torch


def metered(inputs: Inputs, progress: Progress) -> Inputs:
    """The same tensors, whose reads are told in the phase `"read"`.

    A stream does not say how much will come, so nothing is told of it.

    Args:
        inputs: What was given.
        progress: Called from whatever thread has read, never from two at once.
    """
    if progress is no_progress or isinstance(inputs, StreamedInputs):
        return inputs
    meter = _ReadMeter(progress, sum(one.spec.size_bytes for one in inputs.tensors.values()))
    return replace(
        inputs, tensors={name: meter.watched(one) for name, one in inputs.tensors.items()}
    )


class _ReadMeter:
    """Adds up reads of all threads; safe from any of them."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()

    def watched(self, tensor: InputTensor) -> InputTensor:
        """The tensor, whose reads are added up; those of a range read again are not.

        Reads on its own device count as those into host memory do.
        """
        left_bytes = tensor.spec.size_bytes
        read, device_bits = tensor.read, tensor.device_bits

        def tell(size_bytes: int) -> None:
            nonlocal left_bytes
            with self._lock:
                fresh_bytes = min(size_bytes, left_bytes)
                left_bytes -= fresh_bytes
                self._done_bytes += fresh_bytes
                self._progress("read", self._done_bytes, self._total_bytes)

        def told(first_unit: int, unit_count: int, /) -> Units:
            units = read(first_unit, unit_count)
            tell(units.nbytes)
            return units

        def told_on_device(first_unit: int, unit_count: int, /) -> torch.Tensor:
            assert device_bits is not None
            bits = device_bits.read(first_unit, unit_count)
            tell(bits.nbytes)
            return bits

        watched_bits = None if device_bits is None else replace(device_bits, read=told_on_device)
        return replace(tensor, read=told, device_bits=watched_bits)
