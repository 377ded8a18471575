"""A whole put and a whole checkout of 1 % steps on a 1 GiB model: times, memory, bytes.

python tools/bench/put_checkout.py --json FILE
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import safetensors.numpy

from tools.bench.bench import Bench, Findings, Options, Task, run
from tools.bench.peak_memory import PeakMemory
from tools.bench.report import Row, against, alone, at_most
from tools.bench.weights import Weights, move, normal_weights, size_bytes_of, small_shapes
from weightstore import WeightStore

VERSION_COUNT = 7
MIB = 1024 * 1024


def decoder_shapes(layer_count: int) -> dict[str, tuple[int, ...]]:
    """Tensors like those of a decoder: 1 GiB of bf16 with 12 layers."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (32768, 4096)}
    for layer in range(layer_count):
        shapes[f"layers.{layer:02d}.attention.weight"] = (2048, 4096)
        shapes[f"layers.{layer:02d}.mlp.weight"] = (5802, 4096)
        shapes[f"layers.{layer:02d}.norm.weight"] = (4096,)
    return shapes


def shapes_of(kind: str, *, is_small: bool) -> dict[str, tuple[int, ...]]:
    """Two shapes of the same size: large tensors, and 60,000 of 16 KiB."""
    if kind == "large tensors":
        return {"layer.weight": (256, 1024)} if is_small else decoder_shapes(12)
    return small_shapes(2 if is_small else 938)


def stepped(weights: Weights, rng: np.random.Generator) -> Weights:
    """Move 1 % of all elements, in place."""
    for each in weights.values():
        move(each.units, rng)
    return weights


def put(task: Task) -> Task:
    """Put a first version and steps of 1 %."""
    weights = normal_weights(shapes_of(task["kind"], is_small=task["is_small"]))
    rng = np.random.default_rng(1)
    peak = PeakMemory()
    seconds, reports = [], []
    with (
        WeightStore.open(task["store"], create=True) as store,
        store.trainer(run="bench") as trainer,
    ):
        for step in range(task["version_count"]):
            if step:
                stepped(weights, rng)
            start = time.perf_counter()
            reports.append(trainer.put_step(step, weights).report())
            seconds.append(time.perf_counter() - start)
    delta_bytes = max(report.wire_size_bytes for report in reports[1:])
    return {
        "model_bytes": size_bytes_of(weights),
        "extra_mib": peak.extra_bytes() / MIB,
        "allowed_mib": (1.1 * size_bytes_of(weights) + 256 * MIB + 4 * delta_bytes) / MIB,
        "first_s": seconds[0],
        "put_s": seconds[1:],
        "detect_s": [report.detect_s for report in reports[1:]],
        "write_s": [report.write_s for report in reports[1:]],
        "commit_s": [report.commit_s for report in reports[1:]],
        "bytes_a_change": [report.wire_size_bytes / report.changed_count for report in reports[1:]],
    }


def check_out(task: Task) -> Task:
    """Check the last version out, compare it with the weights made again, and save it elsewhere."""
    peak = PeakMemory()
    start = time.perf_counter()
    with WeightStore.open(task["store"]) as store:
        taken = store.checkout()
    checkout_s = time.perf_counter() - start
    extra_mib = peak.extra_bytes() / MIB
    weights = normal_weights(shapes_of(task["kind"], is_small=task["is_small"]))
    rng = np.random.default_rng(1)
    for _ in range(task["version_count"] - 1):
        stepped(weights, rng)
    exact = all(np.array_equal(each.units, taken.host[n].units) for n, each in weights.items())
    path = Path(task["store"]).with_suffix(".safetensors")
    arrays = {name: each.units.reshape(each.spec.shape) for name, each in weights.items()}
    del taken, weights
    safetensors.numpy.save_file(arrays, path)
    del arrays
    start = time.perf_counter()
    safetensors.numpy.load_file(path)
    return {
        "checkout_s": checkout_s,
        "load_s": time.perf_counter() - start,
        "extra_mib": extra_mib,
        "is_exact": exact,
    }


def do(task: Task) -> Task:
    """Do a phase in a process of its own."""
    return put(task) if task["phase"] == "put" else check_out(task)


def measure(options: Options, findings: Findings) -> None:
    """Measure both shapes."""
    for kind in ("large tensors", "16 KiB"):
        with tempfile.TemporaryDirectory(prefix="weightstore-bench-") as folder:
            task: Task = {
                "kind": kind,
                "store": str(Path(folder) / "store"),
                "is_small": options.is_small,
                "version_count": 3 if options.is_small else VERSION_COUNT,
            }
            wrote = BENCH.in_child({**task, "phase": "put"})
            read = BENCH.in_child({**task, "phase": "checkout"})
        if not read["is_exact"]:
            raise SystemExit(f"{kind}: the checkout is not what was put")
        findings.add(*rows_of(kind, wrote, read, task["version_count"]))


def rows_of(kind: str, wrote: Task, read: Task, version_count: int) -> list[Row]:
    """Rows of one shape."""
    model_bytes = wrote["model_bytes"]
    median = {name: statistics.median(wrote[name]) for name in ("detect_s", "write_s", "commit_s")}
    return [
        alone(
            f"{kind}: put of a step",
            "s",
            wrote["put_s"],
            note=f"detection {median['detect_s']:.3f} s, then writing {median['write_s']:.3f} s, "
            f"record and baseline {median['commit_s']:.3f} s (medians)",
        ),
        alone(f"{kind}: put of the first version", "GB/s", [model_bytes / wrote["first_s"] / 1e9]),
        alone(f"{kind}: bytes a change, all headers", "B", wrote["bytes_a_change"]),
        against(
            f"{kind}: trainer, peak memory over the caller's",
            "MiB",
            [wrote["extra_mib"]],
            "1.1x baseline + 256 MiB + 4x delta",
            [wrote["allowed_mib"]],
            target=at_most(1),
        ),
        against(
            f"{kind}: checkout of version {version_count} in a new process",
            "GB/s",
            [model_bytes / read["checkout_s"] / 1e9],
            "safetensors load of one file, nothing verified",
            [model_bytes / read["load_s"] / 1e9],
        ),
        alone(f"{kind}: checkout, peak memory", "MiB", [read["extra_mib"]]),
    ]


BENCH = Bench(
    name="put_checkout",
    summary=(
        "A model of about 1 GiB of bf16 on the local disk, in two shapes: tensors of 16 MiB and "
        "more, and 60,000 tensors of 16 KiB. Puts and the checkout run in processes of their own; "
        "the checkout is compared bit for bit."
    ),
    measure=measure,
    child=do,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
