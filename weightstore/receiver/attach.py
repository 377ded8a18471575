"""From what a caller holds to a receiver; torch is imported only for torch tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weightstore import arguments
from weightstore.clock import Clock, Entropy
from weightstore.layout.boxes import Box
from weightstore.layout.tensors import HostTensor, Units
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource

if TYPE_CHECKING:
    import torch

LiveTargets = Mapping[str, "torch.Tensor"] | Mapping[str, Units] | Mapping[str, HostTensor]


def attach_receiver(
    source: VersionSource,
    targets: LiveTargets,
    *,
    boxes: Mapping[str, Box] | None,
    settings: ReceiverSettings | None,
    clock: Clock,
    entropy: Entropy | None = None,
) -> Receiver:
    """Make a receiver for live tensors. Writes nothing.

    Args:
        source: The store.
        targets: Name to torch tensor, or to bits in host memory.
        boxes: Name to the part of the tensor that lives here.
        settings: Of the receiver.
        clock: For the policy, and for times in reports.
        entropy: For the id under which it follows.

    Raises:
        InputRefusedError: an argument is of a wrong type, or arrays cannot be written.
        VersionNotFoundError: the store holds no version yet.
        SchemaMismatchError: the targets do not fit the newest version; everything is listed.
    """
    arguments.check_mapping(targets, "targets", "Give `dict(model.named_parameters())`.")
    parts = {} if boxes is None else boxes
    arguments.check_mapping(parts, "boxes", "Give a dict of name to Box.")
    for name, box in parts.items():
        arguments.check_instance(box, Box, f"boxes[{name!r}]", "Give a Box.")
    used = ReceiverSettings() if settings is None else settings
    arguments.check_instance(used, ReceiverSettings, "settings", "Give a ReceiverSettings.")
    held = dict(targets)
    if all(isinstance(one, np.ndarray | HostTensor) for one in held.values()):
        arrays = {
            name: one for name, one in held.items() if isinstance(one, np.ndarray | HostTensor)
        }
        place = partial(place_arrays, targets=arrays, boxes=dict(parts))
        return Receiver(source, place, clock=clock, settings=used, entropy=entropy)
    from weightstore.receiver import torch_live  # noqa: PLC0415 -- torch is late

    tensors = torch_live.checked_tensors(held)
    return Receiver(
        source,
        partial(torch_live.place_tensors, targets=tensors, boxes=dict(parts)),
        clock=clock,
        settings=used,
        make_pool=torch_live.pool_maker(tensors),
        entropy=entropy,
    )
