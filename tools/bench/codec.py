"""Detecting, encoding and applying one step's change, and the bytes that it takes.

python tools/bench/codec.py --json FILE
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from tools.bench import modelexpress_peer, published_formats
from tools.bench.bandwidth import Reading, compute, memory_folder
from tools.bench.bench import Bench, Findings, Options, run
from tools.bench.modelexpress_peer import ModelExpress, PeerReader
from tools.bench.published_step import HostCopy, PieceInput, piece_inputs
from tools.bench.report import Side, against, alone, at_least
from tools.bench.step_bytes import Data, make_data, measure_bytes
from tools.bench.turns import Timed, in_turns, rates, seconds, timed
from tools.bench.weights import even_steps, large_shapes, training_steps
from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.format.pack import PackReader

TURN_COUNT = 15
STEP_COUNT = 3
THREAD_COUNT = 2
WAKING_COUNT = 3

PEER_FACTOR = 5
READ_SHARE = 0.45

ONE_CORE, TWO_CORES = "encode, one core", "encode, two cores"
READ_ONE, READ_TWO = "one core reading", "two cores reading"
MEMCPY = "memcpy, one core"
COMPUTE_ONE, COMPUTE_TWO = "one core computing", "two cores computing"
OURS = "decode + verify + apply, one core"
OURS_TWO = "decode + verify + apply, two cores"
"""Names of what is timed; the peers have their own."""


class Encoding:
    """Detects and encodes pieces, in this thread or in several."""

    def __init__(self, inputs: Sequence[PieceInput]) -> None:
        self._inputs = inputs
        self._codec = PieceCodec()
        self._own = self._codec.worker()
        self._workers = threading.local()

    def by_one(self) -> int:
        """Encode everything in this thread; the number of changes."""
        return sum(each.encode(self._own) for each in self._inputs)

    def by(self, threads: ThreadPoolExecutor) -> int:
        """Encode everything in threads; each takes the next piece when it is done."""
        return sum(threads.map(self._encode, self._inputs))

    def _encode(self, each: PieceInput) -> int:
        return each.encode(_worker_of(self._workers, self._codec.worker))


class Applying:
    """Applies the packs of a step to a copy of the version before."""

    def __init__(self, data: Data) -> None:
        self._copy = HostCopy(data.before, data.published.packs)
        self._own = self._copy.worker()
        self._workers = threading.local()

    def by_one(self) -> float:
        """Apply everything in this thread; the seconds."""
        self._copy.reset()
        return seconds(lambda: self._copy.apply_all(self._own))

    def by(self, threads: ThreadPoolExecutor) -> float:
        """Apply everything in threads; the seconds."""
        self._copy.reset()
        return awake(threads, lambda: self._apply_in(threads))()

    def check(self, data: Data) -> None:
        """End the bench if a step does not come back bit for bit."""
        self.by_one()
        if not self._copy.holds(data.after):
            raise SystemExit(f"{data.name}: the step did not come back bit for bit")

    def _apply_in(self, threads: ThreadPoolExecutor) -> None:
        jobs = [
            partial(self._apply, reader, index)
            for reader in self._copy.readers()
            for index in range(reader.piece_count)
        ]
        for job in [threads.submit(job) for job in jobs]:
            job.result()

    def _apply(self, reader: PackReader, index: int) -> None:
        self._copy.apply(reader, index, _worker_of(self._workers, self._copy.worker))


def _worker_of(workers: threading.local, make: Callable[[], PieceWorker]) -> PieceWorker:
    """This thread's own worker."""
    if not hasattr(workers, "one"):
        workers.one = make()
    found: PieceWorker = workers.one
    return found


def measure(options: Options, findings: Findings) -> None:
    """Measure both kinds of steps."""
    small = options.is_small
    peer = modelexpress_peer.load()
    step_count = 1 if small else STEP_COUNT
    real = make_data("training step", training_steps(step_count, is_small=small))
    measure_bytes(real, findings)
    even = make_data("1 % anywhere", even_steps(large_shapes(2 if small else 48), 1))
    for data in (real, even):
        measure_encode(data, peer, options, findings)
        measure_apply(data, peer, options, findings)


def measure_encode(
    data: Data, peer: ModelExpress | None, options: Options, findings: Findings
) -> None:
    """Time detection and encoding; rates count the bytes of both versions."""
    inputs = piece_inputs(data.before, data.after)
    encoding, reading = Encoding(inputs), Reading(inputs)
    copying = copier(inputs)
    pairs = [(data.before[name].units, each.units) for name, each in data.after.items()]
    with ThreadPoolExecutor(THREAD_COUNT) as threads:
        work: dict[str, Timed] = {
            ONE_CORE: timed(encoding.by_one),
            READ_ONE: timed(reading.by_one),
            TWO_CORES: awake(threads, lambda: encoding.by(threads)),
            READ_TWO: awake(threads, lambda: reading.by(threads, THREAD_COUNT)),
            MEMCPY: timed(copying),
            COMPUTE_ONE: timed(compute),
            COMPUTE_TWO: awake(threads, lambda: compute(threads, THREAD_COUNT)),
            published_formats.U16_XOR: timed(
                lambda: [published_formats.encode_u16_xor(*pair) for pair in pairs]
            ),
        }
        if peer is not None:
            views = [(old.view(np.uint8), new.view(np.uint8)) for old, new in pairs]
            work[modelexpress_peer.NAME] = timed(lambda: [peer.encode(*pair) for pair in views])
        taken = in_turns(work, options.turns(TURN_COUNT))
    speed = {name: rates(2 * data.size_bytes, each) for name, each in taken.items()}
    add_encode_rows(data.name, speed, findings)


def awake(threads: ThreadPoolExecutor, work: Callable[[], object]) -> Timed:
    """Time work of several threads after they were set to work.

    Threads that sleep may wake on one core, and take longer to part than the work does.
    """

    def once() -> float:
        for _ in range(WAKING_COUNT):
            compute(threads, THREAD_COUNT)
        return seconds(work)

    return once


def copier(inputs: Sequence[PieceInput]) -> Callable[[], None]:
    """Make what copies all new bits by one core."""
    targets = [each.new.copy() for each in inputs]

    def copy() -> None:
        for target, each in zip(targets, inputs, strict=True):
            np.copyto(target, each.new)

    return copy


def add_encode_rows(name: str, speed: dict[str, list[float]], findings: Findings) -> None:
    """Rows of rates in GB/s."""
    one, two = f"{name}: {ONE_CORE}", f"{name}: {TWO_CORES}"
    u16, read_one = published_formats.U16_XOR, speed[READ_ONE]
    if modelexpress_peer.NAME in speed:
        peer = speed[modelexpress_peer.NAME]
        share = PEER_FACTOR * median(peer) / median(read_one)
        note = f"{PEER_FACTOR}x would be {share:.0%} of all that one core reads in this run"
        findings.add(
            against(
                one,
                "GB/s",
                speed[ONE_CORE],
                modelexpress_peer.NAME,
                peer,
                target=at_least(PEER_FACTOR),
                note=note,
            )
        )
    else:
        findings.leave_out(f"{one}, against the peer", modelexpress_peer.NOT_INSTALLED)
    bound = median(speed[READ_TWO]) / median(speed[ONE_CORE])
    gain = median(speed[READ_TWO]) / median(read_one)
    computing = THREAD_COUNT * median(speed[COMPUTE_TWO]) / median(speed[COMPUTE_ONE])
    findings.add(
        against(one, "GB/s", speed[ONE_CORE], u16, speed[u16]),
        against(one, "GB/s", speed[ONE_CORE], READ_ONE, read_one, target=at_least(READ_SHARE)),
        against(
            two,
            "GB/s",
            speed[TWO_CORES],
            ONE_CORE,
            speed[ONE_CORE],
            target=at_least(1.7),
            note=(
                f"in this run two cores read {gain:.2f}x what one reads and compute "
                f"{computing:.2f}x; since everything is read once, {bound:.2f}x is the most that "
                "a second core can give here"
            ),
        ),
        against(
            two,
            "GB/s",
            speed[TWO_CORES],
            READ_TWO,
            speed[READ_TWO],
            target=at_least(READ_SHARE),
            note="the same share of what the cores read, which says what two cores can give",
        ),
        against(f"{name}: {READ_TWO}", "GB/s", speed[READ_TWO], READ_ONE, read_one),
        alone(
            f"{name}: {MEMCPY}",
            "GB/s",
            speed[MEMCPY],
            note="counts what is read and what is written",
        ),
    )


def measure_apply(
    data: Data, peer: ModelExpress | None, options: Options, findings: Findings
) -> None:
    """Time decode + verify + apply; rates count the bytes of the tensors."""
    applying = Applying(data)
    applying.check(data)
    with (
        ThreadPoolExecutor(THREAD_COUNT) as threads,
        tempfile.TemporaryDirectory(dir=memory_folder()) as folder,
    ):
        work: dict[str, Timed] = {
            OURS: applying.by_one,
            OURS_TWO: lambda: applying.by(threads),
            published_formats.U16_XOR: _u16_apply(data),
        }
        if peer is not None:
            work[modelexpress_peer.NAME] = _peer_apply(peer, data, Path(folder))
        taken = in_turns(work, options.turns(TURN_COUNT))
    speed = {name: rates(data.size_bytes, each) for name, each in taken.items()}
    ours = f"{data.name}: {OURS}"
    sizes = [each.new.nbytes for each in piece_inputs(data.before, data.after)]
    pieces = f"{len(sizes)} pieces of {sum(sizes) / len(sizes) / 2**20:.1f} MiB on average"
    u16 = published_formats.U16_XOR
    findings.add(
        alone(ours, "GB/s", speed[OURS], target=at_least(8, of=Side.MEASURED), note=pieces),
        against(ours, "GB/s", speed[OURS], f"{u16}, nothing verified", speed[u16]),
        against(f"{data.name}: {OURS_TWO}", "GB/s", speed[OURS_TWO], "one core", speed[OURS]),
    )
    if peer is None:
        findings.leave_out(f"{ours}, against the peer", modelexpress_peer.NOT_INSTALLED)
        return
    theirs = speed[modelexpress_peer.NAME]
    findings.add(
        against(ours, "GB/s", speed[OURS], modelexpress_peer.NAME, theirs, target=at_least(6))
    )


def _u16_apply(data: Data) -> Timed:
    """Apply the published format to arrays in memory."""
    deltas = [
        (published_formats.encode_u16_xor(data.before[name].units, each.units), name)
        for name, each in data.after.items()
    ]
    arrays = {name: each.units.copy() for name, each in data.before.items()}

    def work() -> None:
        for delta, name in deltas:
            published_formats.apply_u16_xor(delta, arrays[name])

    def once() -> float:
        for name, each in data.before.items():
            arrays[name][:] = each.units
        taken = seconds(work)
        if not all(np.array_equal(arrays[name], each.units) for name, each in data.after.items()):
            raise SystemExit(f"{data.name}: the published format did not come back bit for bit")
        return taken

    return once


def _peer_apply(peer: ModelExpress, data: Data, folder: Path) -> Timed:
    """Apply by the peer's receiver, whose file lies in memory."""
    shard, names = peer.shard(data.before, data.after)
    reader = PeerReader(peer, data.before, folder)
    reader.apply(shard, names)
    if not reader.holds(data.after):
        raise SystemExit(f"{data.name}: the peer's step did not come back bit for bit")

    def once() -> float:
        reader.reset()
        return seconds(lambda: reader.apply(shard, names))

    return once


BENCH = Bench(
    name="codec",
    summary=(
        "One step's change, detected, encoded and applied in memory. Encode rates count the bytes "
        "of both versions, apply rates those of the tensors. Training steps are those of a "
        "transformer of 117.6 million parameters with fp32 masters at a learning rate of 1e-6. "
        "Applying counts the SHA-256 of each pack, its index, all streams and the base check. "
        "The peer's file lies in memory too, and it works with one thread."
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
