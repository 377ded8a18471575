"""How fast a version comes out: a full form against safetensors, and a chain of deltas.

The peer loads the same files with the safetensors library into private memory and computes
SHA-256 of every tensor on the same number of threads.

Each measurement is a process of its own, in a shuffled order: within one process the memory
that one row frees makes the next one up to twice as fast or slow. Kernels are loaded before
the clock starts. Wall and CPU seconds are medians with the least and the most; where the
machine is shared, CPU seconds are the steadier of the two. `blocks read` above 0 means that
the page cache did not hold the files.

    python tools/bench/checkout.py --json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import load_kernels
from weightstore.format.keys import anchor_key
from weightstore.history.chain import CheckoutPlan, plan_checkout
from weightstore.history.checkout import checkout, checkout_into, verify_plan
from weightstore.history.log import Log
from weightstore.history.versions import find_version
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Settings
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.real_versions import RealVersions
from weightstore.testing.toy_store import ToyStore

MIB = 1024 * 1024
CHANGED_RATIO = 0.01
COLUMNS = (
    "what",
    "tensors",
    "MiB",
    "wall s",
    "CPU s",
    "wall of the peer",
    "CPU of the peer",
    "faults",
    "blocks read",
)


@dataclass(frozen=True)
class Sample:
    """One process: seconds, page faults and blocks read from the disk."""

    wall_s: float
    cpu_s: float
    fault_count: int
    read_block_count: int


@dataclass(frozen=True)
class Row:
    """All samples of one measurement; a ratio is the peer's median over ours."""

    what: str
    tensor_count: int
    size_bytes: int
    samples: tuple[Sample, ...]
    wall_ratio: float
    cpu_ratio: float

    def spread(self, field: str) -> str:
        """Median, least and most of one field."""
        values = [getattr(sample, field) for sample in self.samples]
        return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def large(size_bytes: int) -> Schema:
    """Matrices of 16 MiB and small norms between them."""
    count = size_bytes // (16 * MIB)
    return Schema.build(
        [
            *(TensorSpec(f"layers.{n:03}.weight", DType.F16, (2048, 4096)) for n in range(count)),
            *(TensorSpec(f"layers.{n:03}.norm", DType.F16, (4096,)) for n in range(count)),
        ]
    )


def small(size_bytes: int) -> Schema:
    """Tensors of 16 KiB."""
    count = size_bytes // (16 * 1024)
    return Schema.build(TensorSpec(f"experts.{n:06}", DType.F16, (128, 64)) for n in range(count))


def weights_of(schema: Schema) -> dict[str, Units]:
    """Bits of bf16 weights, called F16, which is as wide and which NumPy knows."""
    pool = (np.random.default_rng(0).standard_normal(1 << 24, np.float32) * 0.02).view(np.uint32)
    bits = (pool >> 16).astype(np.uint16)
    return {
        spec.name: bits[start : start + spec.unit_count].copy()
        for index, spec in enumerate(schema.tensors)
        for start in [index * 4_099 % (bits.size // 2)]
    }


def step(weights: dict[str, Units], seed: int) -> None:
    """Move 1 % of all units by one unit in the last place."""
    generator = np.random.default_rng(seed)
    for units in weights.values():
        places = generator.integers(0, units.size, int(units.size * CHANGED_RATIO) or 1)
        units[places] += generator.choice(np.array([1, 0xFFFF], np.uint16), places.size)


def peer(blobs: LocalBlobStore, plan: CheckoutPlan, thread_count: int) -> None:
    """Load with safetensors into private memory and hash every tensor."""
    for file in plan.full_form.files:
        if file.role != "weights":
            continue
        path = blobs.local_path(anchor_key(plan.full_form.anchor_id, file.name))
        with safe_open(path, "np") as opened, ThreadPoolExecutor(thread_count) as pool:
            loaded = [opened.get_tensor(name) for name in opened.keys()]  # noqa: SIM118 -- no mapping
            list(pool.map(lambda array: hashlib.sha256(array.view(np.uint8)).digest(), loaded))


PEER = "safetensors + SHA-256"
FULL = "full form"
CHAIN = "full form and deltas"
VERIFY = "verify full form and deltas"
IN_PLACE = "in place, full form"
MEASURED = (PEER, FULL, CHAIN, VERIFY, IN_PLACE)


def measure(what: str, folder: Path, settings: Settings) -> Sample:
    """Run one measurement once, in this process."""
    blobs = LocalBlobStore(folder / "store")
    log = Log(blobs, settings.limits)
    selector = "latest" if what in {CHAIN, VERIFY} else 1
    record = find_version(log, log.tail(), selector)
    plan = plan_checkout(blobs, log, record, settings.limits)
    codec = PieceCodec(load_kernels())
    units = np.zeros(1 << 18, np.uint16)
    piece = codec.worker().encode(units, units + np.uint16(1)).piece
    assert piece is not None
    codec.worker().apply(piece, units)
    targets = {
        spec.name: np.zeros(spec.unit_count, spec.dtype.unit_dtype)
        for spec in (plan.schema.tensors if what == IN_PLACE else ())
    }
    runs: dict[str, Callable[[], object]] = {
        PEER: lambda: peer(blobs, plan, settings.thread_count),
        FULL: lambda: checkout(blobs, plan, settings, codec=codec),
        CHAIN: lambda: checkout(blobs, plan, settings, codec=codec),
        VERIFY: lambda: verify_plan(blobs, plan, settings, codec=codec),
        IN_PLACE: lambda: checkout_into(blobs, plan, targets, settings, codec=codec),
    }
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    runs[what]()
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(
        wall_s=wall_s,
        cpu_s=cpu_s,
        fault_count=after.ru_minflt - before.ru_minflt,
        read_block_count=after.ru_inblock - before.ru_inblock,
    )


def rows_of(name: str, schema: Schema, settings: Settings, chain: int, rounds: int) -> list[Row]:
    """Measure one shape of a model."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = LocalBlobStore(Path(folder) / "store", create=True)
        versions = RealVersions(blobs, schema, store=ToyStore(blobs, settings=settings))
        weights = weights_of(schema)
        versions.put(weights)
        for seed in range(chain):
            step(weights, seed)
            versions.put(weights)
        del weights, versions
        order = [what for what in MEASURED for _ in range(rounds)]
        np.random.default_rng(0).shuffle(order)
        samples: dict[str, list[Sample]] = {what: [] for what in MEASURED}
        for what in order:
            child = [sys.executable, __file__, "--child", what, "--folder", folder]
            child += ["--threads", str(settings.thread_count)]
            found = subprocess.run(child, capture_output=True, check=True, text=True)
            samples[what].append(Sample(**json.loads(found.stdout)))
    wall = statistics.median(sample.wall_s for sample in samples[PEER])
    cpu = statistics.median(sample.cpu_s for sample in samples[PEER])
    return [
        Row(
            what=f"{name}: {what}",
            tensor_count=len(schema.tensors),
            size_bytes=schema.size_bytes,
            samples=tuple(found),
            wall_ratio=wall / statistics.median(sample.wall_s for sample in found),
            cpu_ratio=cpu / statistics.median(sample.cpu_s for sample in found),
        )
        for what, found in samples.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--chain", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", choices=MEASURED, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    settings = Settings(thread_count=given.threads)
    if given.child:
        print(json.dumps(asdict(measure(given.child, given.folder, settings))))
        return
    rows = []
    for name, make in (("large", large), ("16 KiB", small)):
        schema = make(given.size_mib * MIB)
        rows += rows_of(name, schema, settings, given.chain, given.rounds)
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    machine = f"{platform.machine()}, {platform.system()} {platform.release()}, load {load}"
    if given.json:
        found = {"machine": machine, "chain": given.chain, "threads": given.threads}
        print(json.dumps({**found, "rows": [asdict(row) for row in rows]}))
        return
    print(f"{machine}; {given.threads} threads, n={given.rounds}, {given.chain} deltas")
    print(" | ".join(COLUMNS))
    for row in rows:
        faults = statistics.median(sample.fault_count for sample in row.samples)
        blocks = max(sample.read_block_count for sample in row.samples)
        print(
            f"{row.what} | {row.tensor_count} | {row.size_bytes // MIB} | {row.spread('wall_s')}"
            f" | {row.spread('cpu_s')} | {row.wall_ratio:.2f} | {row.cpu_ratio:.2f}"
            f" | {faults:.0f} | {blocks}"
        )


if __name__ == "__main__":
    main()
