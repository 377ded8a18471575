"""Put and checkout of 1 % steps on a 1 GB bf16 model: times, peak memory, bytes.

Two shapes of the same size: large tensors (16 MiB to 256 MiB), and 60,000 tensors of
16 KiB. Puts and the checkout run in processes of their own, so that peak memory is theirs.

    python tools/bench/put_checkout.py --json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from weightstore import WeightStore
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec

VERSION_COUNT = 20
CHANGED_RATIO = 0.01
MIB = 1024 * 1024


def large_shapes() -> dict[str, tuple[int, ...]]:
    """1 GiB of bf16 in 25 tensors like those of a decoder."""
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (32768, 4096)}
    for layer in range(12):
        shapes[f"layers.{layer:02d}.attention.weight"] = (2048, 4096)
        shapes[f"layers.{layer:02d}.mlp.weight"] = (5802, 4096)
        shapes[f"layers.{layer:02d}.norm.weight"] = (4096,)
    return shapes


def small_shapes() -> dict[str, tuple[int, ...]]:
    """60,000 tensors of 16 KiB of bf16, as a finely split mixture of experts has."""
    return {
        f"layers.{index // 1000:02d}.experts.{index % 1000:03d}.w": (128, 64)
        for index in range(60_000)
    }


SHAPES = {"large": large_shapes, "small": small_shapes}


def peak_mib() -> float:
    """Peak resident set of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_model(shapes: dict[str, tuple[int, ...]]) -> dict[str, HostTensor]:
    """Weights of standard deviation 0.02, cut to bf16."""
    rng = np.random.default_rng(0)
    model = {}
    pool = (rng.standard_normal(1 << 22, dtype=np.float32) * 0.02).view(np.uint32) >> 16
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        start = int(rng.integers(0, 1 << 21))
        units = np.resize(pool[start:], count).astype(np.uint16)
        model[name] = HostTensor(TensorSpec(name, DType.BF16, shape), units)
    return model


def change(model: dict[str, HostTensor], rng: np.random.Generator) -> None:
    """Move 1 % of all elements by one unit in the last place, up or down."""
    for tensor in model.values():
        count = len(tensor.units)
        wanted = rng.binomial(count, CHANGED_RATIO)
        chosen = rng.integers(0, count, wanted)
        signs = np.where(rng.integers(0, 2, wanted), 1, 0xFFFF).astype(np.uint16)
        tensor.units[chosen] += signs


def run_put(store: Path, shape: str) -> dict[str, Any]:
    """Put version 1 and 19 steps of 1 %."""
    model = make_model(SHAPES[shape]())
    model_mib = sum(t.units.nbytes for t in model.values()) / MIB
    before_mib = peak_mib()
    rng = np.random.default_rng(1)
    rows = []
    with WeightStore.open(store, create=True) as opened, opened.trainer(run="bench") as trainer:
        for step in range(VERSION_COUNT):
            if step:
                change(model, rng)
            start = time.perf_counter()
            report = trainer.put_step(step, model).report()
            rows.append((time.perf_counter() - start, report))
    steps = rows[1:]
    return {
        "model_mib": model_mib,
        "tensors": len(model),
        "first_put_s": rows[0][0],
        "put_s_median": statistics.median(seconds for seconds, _ in steps),
        "put_s_max": max(seconds for seconds, _ in steps),
        "detect_s_median": statistics.median(report.detect_s for _, report in steps),
        "commit_s_median": statistics.median(report.commit_s for _, report in steps),
        "changed_per_step": statistics.median(report.changed_count for _, report in steps),
        "pieces_per_step": statistics.median(report.piece_count for _, report in steps),
        "pack_bytes_per_step": statistics.median(report.wire_size_bytes for _, report in steps),
        "peak_mib_over_model": peak_mib() - before_mib,
    }


def run_checkout(store: Path, shape: str) -> dict[str, Any]:
    """Check version 20 out and compare it with the model, made again."""
    start = time.perf_counter()
    with WeightStore.open(store) as opened:
        taken = opened.checkout(VERSION_COUNT)
    seconds = time.perf_counter() - start
    peak = peak_mib()
    model = make_model(SHAPES[shape]())
    rng = np.random.default_rng(1)
    for _ in range(VERSION_COUNT - 1):
        change(model, rng)
    exact = all(np.array_equal(model[name].units, host.units) for name, host in taken.host.items())
    return {"checkout_s": seconds, "checkout_peak_mib": peak, "bit_exact": exact}


def metadata_bytes(store: Path) -> dict[str, int]:
    """Bytes of manifests, digest tables and schemas of the last version."""
    sizes: dict[str, int] = {}
    for path in (store / "manifests").rglob("*"):
        if path.is_file() and path.name.startswith(f"{VERSION_COUNT}-"):
            kind = path.suffix.lstrip(".") or "manifest"
            sizes[f"{kind}_bytes"] = path.stat().st_size
    return sizes


def child(phase: str, store: Path, shape: str) -> dict[str, Any]:
    """Run one phase in a process of its own."""
    command = [sys.executable, __file__, "--phase", phase, "--store", str(store), "--shape", shape]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    """Run both shapes and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="only this shape")
    parser.add_argument("--phase", choices=("put", "checkout"), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.phase:
        phase = run_put if options.phase == "put" else run_checkout
        print(json.dumps(phase(options.store, options.shape)))
        return
    results: dict[str, dict[str, Any]] = {}
    for shape in [options.shape] if options.shape else sorted(SHAPES):
        scratch = Path(tempfile.mkdtemp(prefix="weightstore-bench-"))
        try:
            store = scratch / "store"
            results[shape] = child("put", store, shape)
            results[shape] |= child("checkout", store, shape)
            results[shape] |= metadata_bytes(store)
        finally:
            shutil.rmtree(scratch)
    if options.json:
        print(json.dumps({"machine": platform.processor(), "results": results}, indent=2))
        return
    for shape, result in results.items():
        print(f"{shape}:")
        for name, value in result.items():
            shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
            print(f"  {name:<24} {shown}")


if __name__ == "__main__":
    main()
