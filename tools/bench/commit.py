"""Committing on a local disk: the price of a put besides its payload, blocking, and memory.

python tools/bench/commit.py --json FILE
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from tools.bench.bandwidth import write_durably
from tools.bench.bench import Bench, Findings, Options, Task, run
from tools.bench.peak_memory import PeakMemory
from tools.bench.published_step import PieceInput, piece_inputs
from tools.bench.report import Side, against, alone, at_most
from tools.bench.turns import rates, seconds
from tools.bench.weights import (
    Weights,
    large_shapes,
    move,
    normal_weights,
    size_bytes_of,
)
from weightstore import WeightStore
from weightstore.codec.codec import PieceCodec
from weightstore.layout.tensors import HostTensor
from weightstore.trainer.pending import PendingVersion
from weightstore.trainer.session import TrainerSession

MIB = 1024 * 1024
MS = 1000
COMMIT_TURN_COUNT = 60
TURN_COUNT = 9
MODEL_MIB = 192
MEMORY_MODEL_MIB = 512
MEMORY_STEP_COUNT = 4
THREAD_COUNT = 2
DURABLE_COUNT = 3
"""What a commit writes durably besides packs: digest table, manifest, record."""
SMALL_OBJECT = b"{}" * 400


def measure(options: Options, findings: Findings) -> None:
    """Measure everything."""
    with tempfile.TemporaryDirectory() as folder:
        measure_commit(Path(folder), options, findings)
    with tempfile.TemporaryDirectory() as folder:
        measure_blocking(Path(folder), options, findings)
    measure_memory(options, findings)


def measure_commit(folder: Path, options: Options, findings: Findings) -> None:
    """Put steps in which nothing changes, so that they have no payload."""
    weights = normal_weights({"a.weight": (256, 512), "a.norm": (512,)})
    numbers = itertools.count()
    floor = folder / "floor"
    floor.mkdir()
    wholes, commits, records, floors = [], [], [], []
    with (
        WeightStore.open(folder / "store", create=True) as store,
        store.trainer(run="bench") as trainer,
    ):
        for turn in range(options.turns(COMMIT_TURN_COUNT) + 1):
            start = time.perf_counter()
            report = trainer.put_step(next(numbers), weights).report()
            whole_s = time.perf_counter() - start
            start = time.perf_counter()
            for _ in range(DURABLE_COUNT):
                write_durably(floor, str(next(numbers)), SMALL_OBJECT)
            if turn:
                wholes.append(whole_s * MS)
                commits.append((report.write_s + report.commit_s) * MS)
                records.append(report.commit_s * MS)
                floors.append((time.perf_counter() - start) * MS)
    floor_name = f"{DURABLE_COUNT} small objects, each synced, named, and its folder synced"
    findings.add(
        against(
            "commit besides payload, from the tensors read to the verdict",
            "ms",
            commits,
            floor_name,
            floors,
            target=at_most(3, of=Side.MEASURED),
            note=(
                "a commit makes digest table, manifest and record durable, one after the other: "
                "six syncs, which the peer does too, and nothing else"
            ),
        ),
        alone("of this, the record", "ms", records),
        alone("the whole put, with detection and its receipt", "ms", wholes),
    )
    payload = bytes(MIB if options.is_small else 64 * MIB)
    disk_s = [
        seconds(lambda: write_durably(floor, str(next(numbers)), payload))
        for _ in range(options.turns(5))
    ]
    findings.add(alone("disk: 64 MiB written and synced", "GB/s", rates(len(payload), disk_s)))


@dataclass(frozen=True, slots=True)
class Model:
    """Weights that move between puts, and a copy of what they were."""

    weights: Weights
    previous: Weights
    rng: np.random.Generator

    def copy(self) -> None:
        """Copy all weights, as to the host."""
        for name, each in self.weights.items():
            np.copyto(self.previous[name].units, each.units)

    def move(self) -> None:
        """Change 1 % of them."""
        for each in self.weights.values():
            move(each.units, self.rng)

    def save(self, path: Path) -> None:
        """Write all of them as safetensors, and sync the file."""
        arrays = {n: each.units.reshape(each.spec.shape) for n, each in self.weights.items()}
        safetensors.numpy.save_file(arrays, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


class Turns:
    """Times each way to deal with one change; all values are milliseconds."""

    def __init__(self, model: Model, trainer: TrainerSession, folder: Path) -> None:
        self._model = model
        self._trainer = trainer
        self._folder = folder
        self._codec = PieceCodec()
        self._workers = threading.local()
        self._next_step = 0

    def put(self) -> tuple[float, float]:
        """Put a step; how long it blocks where `captured` comes at once, and all of it."""
        start = time.perf_counter()
        pending = self._begin()
        pending.captured()
        blocked_s = time.perf_counter() - start
        pending.result()
        return blocked_s * MS, (time.perf_counter() - start) * MS

    def put_beside(self, train: Callable[[], object]) -> float:
        """Put a step while training goes on; how long both calls block."""
        start = time.perf_counter()
        pending = self._begin()
        called_s = time.perf_counter() - start
        train()
        waited_s = seconds(pending.captured)
        pending.result()
        return (called_s + waited_s) * MS

    def all(self, threads: ThreadPoolExecutor, train: Callable[[], object]) -> dict[str, float]:
        """Take one turn."""
        copy_s = seconds(self._model.copy)
        self._model.move()
        path = self._folder / f"{self._next_step}.safetensors"
        save_s = seconds(lambda: self._model.save(path))
        path.unlink()
        inputs = piece_inputs(self._model.previous, self._model.weights)
        detect_s = seconds(lambda: list(threads.map(self._encode, inputs)))
        blocked_ms, put_ms = self.put()
        self._model.move()
        return {
            "bare": max(copy_s, detect_s) * MS,
            "save": save_s * MS,
            "blocked": blocked_ms,
            "put": put_ms,
            "beside": self.put_beside(train),
        }

    def _begin(self) -> PendingVersion:
        self._next_step += 1
        return self._trainer.put_step(self._next_step, self._model.weights)

    def _encode(self, each: PieceInput) -> int:
        if not hasattr(self._workers, "one"):
            self._workers.one = self._codec.worker()
        return each.encode(self._workers.one)


def measure_blocking(folder: Path, options: Options, findings: Findings) -> None:
    """Hold a put against the bare copy and detection, and against saving the whole model."""
    weights = normal_weights(large_shapes(2 if options.is_small else MODEL_MIB))
    previous = {name: HostTensor(each.spec, each.units.copy()) for name, each in weights.items()}
    model = Model(weights, previous, np.random.default_rng(1))
    train = backward_pass(is_small=options.is_small)
    with (
        WeightStore.open(folder / "store", create=True) as store,
        store.trainer(run="bench") as trainer,
        ThreadPoolExecutor(THREAD_COUNT) as threads,
    ):
        turns = Turns(model, trainer, folder)
        turns.put()
        turns.all(threads, train)
        found = [turns.all(threads, train) for _ in range(options.turns(TURN_COUNT))]
    taken = {name: [each[name] for each in found] for name in found[0]}
    size = f"{size_bytes_of(weights) // MIB} MiB of bf16, 1 % changed"
    findings.add(
        against(
            f"put_step blocks, captured() at once ({size})",
            "ms",
            taken["blocked"],
            "the longer of copying and bare detection",
            taken["bare"],
            target=at_most(1.2),
        ),
        against(
            "put_step blocks, captured() after a forward and backward pass",
            "ms",
            taken["beside"],
            "captured() at once",
            taken["blocked"],
            target=at_most(0.1),
        ),
        against(
            "put of a step until its verdict",
            "ms",
            taken["put"],
            "safetensors save of the whole model, synced",
            taken["save"],
        ),
    )


def backward_pass(*, is_small: bool) -> Callable[[], object]:
    """Make a forward and backward pass of a transformer: some tenths of a second."""
    import torch  # noqa: PLC0415 -- two seconds, which a child process need not pay

    from weightstore.cli.demo_model import DemoShape, DemoTransformer  # noqa: PLC0415 -- torch

    shape = DemoShape(vocabulary_size=1024, width=128, layer_count=1) if is_small else DemoShape()
    torch.manual_seed(0)
    model = DemoTransformer(shape)
    tokens = torch.randint(shape.vocabulary_size, (1 if is_small else 8, shape.context_count))

    def run_once() -> None:
        model(tokens).square().mean().backward()

    return run_once


def measure_memory(options: Options, findings: Findings) -> None:
    """Compare the peak of a trainer's process with its promise."""
    found = [
        BENCH.in_child({"mib": 2 if options.is_small else MEMORY_MODEL_MIB})
        for _ in range(options.turns(3))
    ]
    findings.add(
        against(
            f"trainer, peak memory over the caller's ({found[0]['model_mib']:.0f} MiB of bf16)",
            "MiB",
            [each["extra_mib"] for each in found],
            "1.1x baseline + 256 MiB + 4x delta",
            [each["allowed_mib"] for each in found],
            target=at_most(1),
            note="a first full version and four steps of 1 %, each in a process of its own",
        )
    )


def put_in_child(task: Task) -> Task:
    """Put a few steps, and say how high the memory of this process rose over what it held."""
    weights = normal_weights(large_shapes(task["mib"]))
    rng = np.random.default_rng(1)
    size_bytes = size_bytes_of(weights)
    delta_bytes = 0
    with tempfile.TemporaryDirectory() as folder:
        peak = PeakMemory()
        with (
            WeightStore.open(Path(folder) / "store", create=True) as store,
            store.trainer(run="bench") as trainer,
        ):
            for step in range(MEMORY_STEP_COUNT + 1):
                if step:
                    for each in weights.values():
                        move(each.units, rng)
                report = trainer.put_step(step, weights).report()
                delta_bytes = max(delta_bytes, report.wire_size_bytes if step else 0)
        extra_bytes = peak.extra_bytes()
    allowed_bytes = 1.1 * size_bytes + 256 * MIB + 4 * delta_bytes
    return {
        "model_mib": size_bytes / MIB,
        "extra_mib": extra_bytes / MIB,
        "allowed_mib": allowed_bytes / MIB,
    }


BENCH = Bench(
    name="commit",
    summary=(
        "Puts into a store on the local disk, with every fsync. A commit without payload is a "
        "step in which nothing changed: all that a put does but detection and packs. The bare "
        "detection encodes the same change with the codec alone on as many threads."
    ),
    measure=measure,
    child=put_in_child,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
