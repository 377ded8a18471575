"""How fast a version comes out: a full form against safetensors, and a chain of deltas.

python tools/bench/checkout.py --json FILE
"""

from __future__ import annotations

import hashlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import safe_open

from tools.bench.bench import Bench, Findings, Options, Task, run
from tools.bench.report import against, at_least
from tools.bench.weights import even_steps, large_shapes, small_shapes
from weightstore import WeightStore
from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import load_kernels
from weightstore.format.keys import anchor_key
from weightstore.history.chain import CheckoutPlan, plan_checkout
from weightstore.history.checkout import checkout, checkout_into, verify_plan
from weightstore.history.log import Log
from weightstore.history.versions import find_version
from weightstore.layout.dtypes import DType
from weightstore.settings import Settings
from weightstore.storage.local import LocalBlobStore

MODEL_MIB = 256
DELTA_COUNT = 20
TURN_COUNT = 9
THREAD_COUNT = 2

PEER = "safetensors load + SHA-256"
FULL = "full form"
CHAIN = "full form and deltas"
VERIFY = "verify full form and deltas"
IN_PLACE = "full form, in place"
WORK = (PEER, FULL, CHAIN, VERIFY, IN_PLACE)


def measure(options: Options, findings: Findings) -> None:
    """Measure two shapes of a model."""
    mib = 2 if options.is_small else MODEL_MIB
    delta_count = 1 if options.is_small else DELTA_COUNT
    for name, shapes in (("large tensors", large_shapes(mib)), ("16 KiB", small_shapes(mib))):
        with tempfile.TemporaryDirectory() as folder:
            with (
                WeightStore.open(Path(folder) / "store", create=True) as store,
                store.trainer(run="bench") as trainer,
            ):
                # The peer loads into NumPy, which has no bf16; the bits are those of bf16.
                steps = even_steps(shapes, delta_count, dtype=DType.F16)
                for step, weights in enumerate(steps):
                    trainer.put_step(step, weights).result()
            found = measure_work(Path(folder), options)
            add_rows(name, found, mib, delta_count, findings)


def measure_work(folder: Path, options: Options) -> dict[str, list[Task]]:
    """Measure everything about one model in turns, each time in a process of its own.

    Within one process the memory that one measurement frees makes the next one faster or
    slower.
    """
    found: dict[str, list[Task]] = {what: [] for what in WORK}
    warm_up_count = 0 if options.is_small else 1
    for turn in range(options.turns(TURN_COUNT) + warm_up_count):
        for what in WORK:
            task = {"what": what, "folder": str(folder)}
            sample = BENCH.in_child(task, here=options.is_small)
            if turn >= warm_up_count:
                found[what].append(sample)
    return found


def add_rows(
    name: str, found: dict[str, list[Task]], mib: int, delta_count: int, findings: Findings
) -> None:
    """Rows of one model, in GB of its full form a second."""
    size_bytes = mib * 1024 * 1024
    speed = {
        what: [size_bytes / sample["wall_s"] / 1e9 for sample in samples]
        for what, samples in found.items()
    }
    cpu_s = {what: [sample["cpu_s"] for sample in samples] for what, samples in found.items()}
    blocks = max(sample["read_block_count"] for each in found.values() for sample in each)
    cached = f"{blocks} blocks came from the disk" if blocks else "all of it was in the page cache"
    shares = statistics.median(cpu_s[FULL]) / statistics.median(cpu_s[PEER])
    findings.add(
        against(
            f"{name}: checkout of a {FULL}",
            "GB/s",
            speed[FULL],
            PEER,
            speed[PEER],
            target=at_least(0.9),
            note=f"it takes {shares:.2f}x the CPU seconds of the peer; {cached}",
        ),
        *(
            against(f"{name}: {what}", "GB/s", speed[what], PEER, speed[PEER], note=note)
            for what, note in (
                (CHAIN, f"{delta_count} deltas of 1 % each"),
                (VERIFY, ""),
                (IN_PLACE, "everything is read twice: verified, then written"),
            )
        ),
    )


def load_with_peer(blobs: LocalBlobStore, plan: CheckoutPlan) -> None:
    """Load with safetensors into private memory and hash every tensor."""
    for file in plan.full_form.files:
        if file.role != "weights":
            continue
        path = blobs.local_path(anchor_key(plan.full_form.anchor_id, file.name))
        with safe_open(path, "np") as opened, ThreadPoolExecutor(THREAD_COUNT) as pool:
            loaded = [opened.get_tensor(name) for name in opened.keys()]  # noqa: SIM118 -- no mapping
            list(pool.map(lambda array: hashlib.sha256(array.view(np.uint8)).digest(), loaded))


def work_of(what: str, folder: Path) -> Callable[[], object]:
    """Prepare one measurement; kernels are loaded before the clock starts."""
    settings = Settings(thread_count=THREAD_COUNT)
    blobs = LocalBlobStore(folder / "store")
    log = Log(blobs, settings.limits)
    record = find_version(log, log.tail(), "latest" if what in {CHAIN, VERIFY} else 1)
    plan = plan_checkout(blobs, log, record, settings.limits)
    codec = PieceCodec(load_kernels())
    units = np.zeros(1 << 18, np.uint16)
    piece = codec.worker().encode(units, units + np.uint16(1)).piece
    assert piece is not None
    codec.worker().apply(piece, units)
    if what == PEER:
        return partial(load_with_peer, blobs, plan)
    if what in {FULL, CHAIN}:
        return partial(checkout, blobs, plan, settings, codec=codec)
    if what == VERIFY:
        return partial(verify_plan, blobs, plan, settings, codec=codec)
    targets = {
        spec.name: np.zeros(spec.unit_count, spec.dtype.unit_dtype) for spec in plan.schema.tensors
    }
    return partial(checkout_into, blobs, plan, targets, settings, codec=codec)


def measure_in_child(task: Task) -> Task:
    """Run one measurement once, in this process."""
    work = work_of(task["what"], Path(task["folder"]))
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return {
        "wall_s": wall_s,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "read_block_count": after.ru_inblock - before.ru_inblock,
    }


BENCH = Bench(
    name="checkout",
    summary=(
        "Versions of 256 MiB of bf16 checked out of a local store on two threads. The peer loads "
        "the same files with the safetensors library into private memory and computes SHA-256 "
        "of every tensor on as many threads. Each value is of a process of its own."
    ),
    measure=measure,
    child=measure_in_child,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
