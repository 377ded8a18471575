"""What the fleet is about: its seats, its weights, its bounds, and what must be served when."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.layout.boxes import Box
from weightstore.layout.tensors import Units
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.settings import Limits
from weightstore.testing.trainer_lab import PIECE_UNIT_COUNT, Weights, changed, lab_settings

TRAINER, AGENT, FILES = "trainer", "agent", "files"
RECEIVERS = ("receiver 1", "receiver 2")
RANKS = ("rank 0", "rank 1")
SEATS = (TRAINER, *RECEIVERS, *RANKS, AGENT, FILES)
SERVING = (*RECEIVERS, *RANKS)
MEMBERS = (*RECEIVERS, RANKS[0])
"""Seats whose process has a member object: an engine has that of its leader."""

RUN = "run"
ROW_COUNT = 4
COLUMN_COUNT = 20_000
FULL_FORM_EVERY = 8
MAX_STALENESS_S = 3.0
POLL_S = 0.03
ACTIVATE_TIMEOUT_S = 5.0
SETTINGS = lab_settings(
    thread_count=1,
    limits=Limits(piece_element_count=PIECE_UNIT_COUNT, index_miss_count=2, cached_record_count=64),
    commit_timeout_s=30.0,
    pack_size_bytes=2048,
    full_after_chain_ratio=1e6,
    activate_poll_s=0.02,
    member_silent_s=0.5,
)


def receiver_settings(seat: str, agent: str | None) -> ReceiverSettings:
    """Of a receiver, or of the receiver in a rank."""
    return ReceiverSettings(
        mode="active",
        max_staleness_s=MAX_STALENESS_S,
        poll_s=POLL_S,
        retry_max_s=0.1,
        heartbeat_s=0.1,
        stage_hold_s=0.0,
        launch_size_bytes=2048,
        block_timeout_s=1.0,
        agent_socket=agent,
        agent_wait_s=5.0,
        name=seat,
    )


def _first_weights() -> Weights:
    rng = np.random.default_rng(0)
    return {
        "embed": rng.integers(0, 1 << 16, (ROW_COUNT, COLUMN_COUNT), dtype=np.uint16),
        "norm": rng.standard_normal(96).astype(np.float32),
        "mask": rng.integers(0, 256, 7, dtype=np.uint8),
        "scale": np.array(1.5, np.float32),
    }


def weights_of(step: int) -> Weights:
    """What is put as a step; each differs in a few elements from any other."""
    return changed(_first_weights(), step)


def boxes_of(seat: str) -> Mapping[str, Box]:
    """The part of each tensor that lives on a rank; empty of a receiver that has all."""
    if seat not in RANKS:
        return {}
    cut = 1  # uneven, and in the middle of a piece
    first, end = ((0, cut), (cut, ROW_COUNT))[RANKS.index(seat)]
    return {"embed": Box((first, 0), (end - first, COLUMN_COUNT))}


def empty_units(seat: str) -> dict[str, Units]:
    """Live memory of a process that starts."""
    return {name: np.zeros_like(units) for name, units in _units_of(1, seat).items()}


@lru_cache(maxsize=4096)
def expected_sha256(step: int, seat: str) -> str:
    """What whoever serves the version of a step must hold."""
    return bits_sha256(_units_of(step, seat))


def bits_sha256(units: Mapping[str, Units]) -> str:
    """One hash over all bits, by name."""
    found = hashlib.sha256()
    for name in sorted(units):
        found.update(name.encode())
        found.update(units[name].data)
    return found.hexdigest()


def _units_of(step: int, seat: str) -> dict[str, Units]:
    boxes = boxes_of(seat)
    return {name: _part(array, boxes.get(name)) for name, array in weights_of(step).items()}


def _part(array: NDArray[Any], box: Box | None) -> Units:
    if box is not None:
        ends = zip(box.offsets, box.sizes, strict=True)
        array = array[tuple(slice(first, first + size) for first, size in ends)]
    flat: Units = np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
    return flat
