"""Copies of a baseline beside the given tensors, so that changes are found where they are.

A copy holds what the baseline in host memory holds, which stays the one that is proven and
that full forms are read from: a copy can be dropped at any time and is then filled again. It
moves on the log's verdict alone, after the baseline. Of a step only positions and changed bits
go to the host.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from weightstore.codec.encoding import Changes
from weightstore.errors import InputRefusedError
from weightstore.layout.boxes import FlatRange
from weightstore.trainer.baseline import Baseline
from weightstore.trainer.binding import BoundTensor
from weightstore.trainer.detect_kernels import DetectKernels, DeviceChanges, detect_kernels_for
from weightstore.trainer.inputs import DeviceBits

_LOGGER = logging.getLogger("weightstore.trainer")
_SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def is_on_device(device: torch.device) -> bool:
    """Whether the processor does not read it directly."""
    return device.type != "cpu"


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    index: int
    span: FlatRange
    changes: DeviceChanges


class DeviceBaseline:
    """The copies of one trainer. Its passes may be used from several threads.

    Args:
        takes: Which devices tensors are compared on; those elsewhere are compared on the host.
        kernels_for: The loops to use on a device.
    """

    def __init__(
        self,
        takes: Callable[[torch.device], bool] = is_on_device,
        kernels_for: Callable[[torch.device], DetectKernels] = detect_kernels_for,
    ) -> None:
        self._takes = takes
        self._kernels_for = kernels_for
        self._baseline: Baseline | None = None
        self._copies: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._told_size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(copy.nbytes for copy in self._copies.values())

    def begin(self, baseline: Baseline) -> DevicePass:
        """A pass against a baseline; copies of another one are dropped."""
        if baseline is not self._baseline:
            self._copies.clear()
            self._baseline = baseline
        return DevicePass(self, baseline)

    def copy_beside(self, bound: BoundTensor, bits: torch.Tensor) -> torch.Tensor:
        """The baseline's bits of a tensor on the device of others."""
        with self._lock:
            copy = self._copies.get(bound.index)
            if copy is None or copy.device != bits.device:
                assert self._baseline is not None
                held = self._baseline.units(bound.index)
                signed = torch.from_numpy(held.view(_SIGNED[held.itemsize]))
                copy = self._copies[bound.index] = signed.to(bits.device, copy=True)
            return copy

    def device_bits(self, bound: BoundTensor) -> DeviceBits | None:
        """A tensor where it is; None if it is elsewhere, or must be cast."""
        bits = bound.found.device_bits
        is_read = bits is not None and self._takes(bits.device)
        return bits if is_read and bound.found.spec.dtype is bound.spec.dtype else None

    def find(self, old: torch.Tensor, new: torch.Tensor) -> DeviceChanges:
        """What differs."""
        return self._kernels_for(old.device).find_changes(old, new)

    def move(self, moves: list[_Move], left_out: set[int]) -> None:
        """Let the copies follow the baseline to its next version.

        Args:
            moves: What was found here.
            left_out: Tensors of which something was found on the host, so that their copies
                do not know all of it.
        """
        for index in left_out:
            self._copies.pop(index, None)
        try:
            for each in moves:
                copy = self._copies.get(each.index)
                if copy is not None:
                    places = each.changes.positions.to(torch.int64) + each.span.first_unit
                    copy.index_copy_(0, places, each.changes.new_bits)
        except RuntimeError:
            # The version is committed and its baseline has moved: copies are made anew.
            self._copies.clear()

    def tell_size(self) -> None:
        """Say what the copies take, when that has changed."""
        size_bytes = self.size_bytes
        if size_bytes != self._told_size_bytes:
            self._told_size_bytes = size_bytes
            _LOGGER.info(
                "detection on the device: the baseline takes %d bytes of device memory for %d"
                " tensors",
                size_bytes,
                len(self._copies),
            )


class DevicePass:
    """One detection pass, and what its copies become if the log says that it counts.

    Args:
        owner: Of the copies.
        baseline: What they are copies of.
    """

    def __init__(self, owner: DeviceBaseline, baseline: Baseline) -> None:
        self._owner = owner
        self._baseline = baseline
        self._moves: list[_Move] = []
        self._left_out: set[int] = set()

    def changes(self, bound: BoundTensor, span: FlatRange) -> Changes | None:
        """What differs from the baseline in a range of a tensor, in host memory.

        Returns:
            None if it is to be compared on the host.

        Raises:
            InputRefusedError: the tensor was written meanwhile.
        """
        found = self._found(bound, span)
        if found is not None:
            unit_dtype = bound.spec.dtype.unit_dtype
            changes = (
                found.positions.cpu().numpy().view(np.uint32),
                found.old_bits.cpu().numpy().view(unit_dtype),
                found.new_bits.cpu().numpy().view(unit_dtype),
            )
            _check_stayed(bound, changes)
            held = self._baseline.units(bound.index, span)
            if np.array_equal(held[changes[0]], changes[1]):
                # A list and a set take entries from any thread; their order does not matter.
                self._moves.append(_Move(bound.index, span, found))
                return changes
        # Also where somebody has written the copy: what the host holds is what was proven.
        self._left_out.add(bound.index)
        return None

    def end(self) -> None:
        """Tell once what the copies cost."""
        self._owner.tell_size()

    def move(self) -> None:
        """Move the copies, after the baseline; only on the log's verdict."""
        self._owner.move(self._moves, self._left_out)

    def _found(self, bound: BoundTensor, span: FlatRange) -> DeviceChanges | None:
        bits = self._owner.device_bits(bound)
        if bits is None:
            return None
        try:
            new = bits.read(span.first_unit, span.unit_count)
            old = self._owner.copy_beside(bound, new)[span.first_unit :][: span.unit_count]
            return self._owner.find(old, new)
        except torch.OutOfMemoryError:
            # The model comes first: what has no room there is compared on the host.
            return None


def _check_stayed(bound: BoundTensor, changes: Changes) -> None:
    """A device reads twice: first how many units differ, then which."""
    positions, old_bits, new_bits = changes
    rises = bool(np.all(positions[1:] > positions[:-1]))
    if not (rises and bool(np.all(old_bits != new_bits))):
        name = bound.found.spec.name
        raise InputRefusedError(
            f"tensor {name!r} was written while it was read",
            do="Wait for `captured` before the weights change.",
            facts={"tensor": name},
        )
