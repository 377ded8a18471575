"""A store, its trainers and readers on virtual time, for tests of puts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.history.chain import CheckoutPlan, plan_checkout
from weightstore.history.checkout import checkout
from weightstore.history.log import Log
from weightstore.history.store_format import create_store
from weightstore.history.versions import find_version, list_versions
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.settings import KIB, Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock
from weightstore.trainer.attach import open_trainer
from weightstore.trainer.session import TrainerSession

PIECE_UNIT_COUNT = 64 * KIB
"""Small pieces, so that a tensor of a test has several."""

Weights = dict[str, NDArray[Any]]
Bits = dict[str, bytes]


def lab_settings(**changes: Any) -> Settings:  # noqa: ANN401 -- any field of Settings
    """Settings with small pieces and two threads."""
    limits = Limits(piece_element_count=PIECE_UNIT_COUNT)
    defaults = {
        "thread_count": 2,
        "limits": limits,
        "commit_timeout_s": 1.0,
        # Tests change most of a few elements; the warning has a test of its own.
        "warn_changed_ratio": 1.0,
    }
    return Settings(**{**defaults, **changes})


class TrainerLab:
    """One process's view of a store: its own log reader, clock and names.

    Args:
        blobs: The store below.
        seed: Names differ between seeds; a "restarted process" takes a new one.
        settings: Of this process.
    """

    def __init__(
        self, blobs: BlobStore, seed: int | str = 0, settings: Settings | None = None
    ) -> None:
        self.blobs = blobs
        self.settings = settings or lab_settings()
        self.clock = VirtualClock()
        self.entropy = SeededEntropy(seed)
        self.log = Log(blobs, self.settings.limits)

    def create(self) -> TrainerLab:
        """Make the store, unless it is there."""
        create_store(
            self.blobs, self.log, clock=self.clock, entropy=self.entropy, settings=self.settings
        )
        return self

    def trainer(self, run: str = "run", **options: Any) -> TrainerSession:  # noqa: ANN401 -- of open_trainer
        """Claim the store."""
        return open_trainer(
            self.blobs,
            self.log,
            run=run,
            clock=self.clock,
            entropy=self.entropy,
            settings=self.settings,
            codec=PieceCodec(numpy_kernels(), limits=self.settings.limits),
            **options,
        )

    def plan(self, selector: str | int = "latest") -> CheckoutPlan:
        """How a version would be checked out."""
        record = find_version(self.log, self.log.tail(), selector)
        return plan_checkout(self.blobs, self.log, record, self.settings.limits)

    def bits(self, selector: str | int = "latest") -> Bits:
        """A version's bits by name, read by a process that holds nothing."""
        found = checkout(self.blobs, self.plan(selector), settings=self.settings)
        return {name: host.units.tobytes() for name, host in found.items()}

    def steps(self) -> dict[int, tuple[str, int]]:
        """Version to (run, step) of every committed version."""
        listed = list_versions(self.log, self.log.tail())
        return {one.record.version: (one.record.run or "", one.record.step) for one in listed}


def bits_of(weights: Mapping[str, NDArray[Any]]) -> Bits:
    """Bits by name, as a model of what a version holds."""
    return {name: array.tobytes() for name, array in weights.items()}


def bf16(name: str, units: NDArray[np.uint16]) -> HostTensor:
    """Bits as a bf16 tensor."""
    flat = np.ascontiguousarray(units).reshape(-1)
    return HostTensor(TensorSpec(name, DType.BF16, units.shape), flat)


def small_weights(seed: int = 0) -> Weights:
    """A large tensor of several pieces, small ones of three dtypes, a 0-d and an empty one."""
    rng = np.random.default_rng(seed)
    return {
        "embed": rng.integers(0, 1 << 16, (2, 33_000), dtype=np.uint16),
        "layer.0.bias": rng.integers(0, 1 << 16, 17, dtype=np.uint16),
        "layer.0.norm": rng.standard_normal(5).astype(np.float32),
        "layer.1.bias": rng.integers(0, 1 << 16, 40, dtype=np.uint16),
        "layer.1.mask": rng.integers(0, 2, (4, 3)).astype(np.bool_),
        "scale": np.array(1.5, np.float32),
        "unused": np.zeros((0, 8), np.float32),
    }


def changed(weights: Weights, seed: int, ratio: float = 0.01) -> Weights:
    """Copies in which about this share of all elements, and of each tensor one, differ."""
    rng = np.random.default_rng(seed)
    after = {}
    for name, array in weights.items():
        raw = array.copy().reshape(-1)
        bits = raw.view(f"u{raw.itemsize}")
        if bits.size:
            count = max(1, int(ratio * bits.size))
            chosen = rng.choice(bits.size, count, replace=False)
            bits[chosen] ^= 1
        after[name] = raw.reshape(array.shape)
    return after
