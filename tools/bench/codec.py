"""How fast the codec is, and how small its pieces are.

Encode rates count the bytes of both inputs, decode rates those of the tensor. Each is the
median over several passes through all pieces, with the slowest and the fastest; the data is
larger than the cache. The bandwidth reads the same bytes and does nothing else: where two cores
read hardly more than one, two threads cannot encode much faster either. The load average at
the start says whether the machine was doing other work.

`adam` rows: fp32 masters of normal weights take one step of the size and shape of Adam's,
and are cast to bf16 before and after; the learning rate is set for the share of units that
is to change. `iid` rows: units change by +1 or -1, with equal chances, anywhere.

    python tools/bench/codec.py --json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numba
import numpy as np
import zstandard
from numpy.typing import NDArray

from weightstore.codec.cast import cast_units
from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.codec.kernels import Kernels, load_kernels, numpy_kernels
from weightstore.codec.piece import Piece
from weightstore.layout.dtypes import DType

UNIT_COUNT = 8 << 20
INDEX_SIZE_BYTES = 88
"""What the piece index of a pack adds to each piece."""
WEIGHT_SCALE = 0.02
BISECTION_COUNT = 40
SAMPLE_COUNT = 1 << 18
GIGA = 1e9
COLUMNS = (
    "data",
    "changed",
    "B per change",
    "order-0 bound",
    "u16 gaps + XOR + zstd 1",
    "encode, 1 thread",
    "of reading",
    "2 threads",
    "apply, 1 thread",
    "2 threads",
    "NumPy encode",
    "NumPy apply",
)

Bits = NDArray[np.uint16]
Pair = tuple[Bits, Bits]


@dataclass(frozen=True)
class Rate:
    """A rate in GB/s over several passes."""

    median: float
    slowest: float
    fastest: float

    def __str__(self) -> str:
        return f"{self.median:5.1f} ({self.slowest:.1f} to {self.fastest:.1f})"


@dataclass(frozen=True)
class Row:
    """Everything measured on one data set."""

    data: str
    changed_percent: float
    bytes_per_change: float
    entropy_bytes_per_change: float
    u16_xor_bytes_per_change: float
    encode_1: Rate
    encode_2: Rate
    apply_1: Rate
    apply_2: Rate
    numpy_encode_1: Rate
    numpy_apply_1: Rate


def adam_pairs(rng: np.random.Generator, piece_count: int, changed_ratio: float) -> list[Pair]:
    """Make bf16 bits before and after one step, from fp32 masters."""
    masters, updates = _masters(rng, SAMPLE_COUNT)
    low, high = 0.0, 1.0
    for _ in range(BISECTION_COUNT):
        rate = (low + high) / 2
        before, after = _to_bf16(masters), _to_bf16(masters - rate * updates)
        low, high = (low, rate) if np.mean(before != after) > changed_ratio else (rate, high)
    pairs = []
    for _ in range(piece_count):
        masters, updates = _masters(rng, UNIT_COUNT)
        pairs.append((_to_bf16(masters), _to_bf16(masters - np.float32(high) * updates)))
    return pairs


def iid_pairs(rng: np.random.Generator, piece_count: int, changed_ratio: float) -> list[Pair]:
    """Make bits that change by one, anywhere."""
    pairs = []
    for _ in range(piece_count):
        old = _to_bf16(_masters(rng, UNIT_COUNT)[0])
        new = old.copy()
        changed = np.flatnonzero(rng.random(UNIT_COUNT, dtype=np.float32) < changed_ratio)
        new[changed] += rng.choice(np.array([1, 0xFFFF], dtype=np.uint16), changed.size)
        pairs.append((old, new))
    return pairs


def _masters(
    rng: np.random.Generator, count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Draw fp32 weights, and updates whose ratio of moments lies within plus and minus one."""
    masters = rng.standard_normal(count, dtype=np.float32) * np.float32(WEIGHT_SCALE)
    return masters, np.tanh(rng.standard_normal(count, dtype=np.float32))


def _to_bf16(values: NDArray[np.float32]) -> Bits:
    """Round as the detection pass does."""
    bits = np.empty(values.size, dtype=np.uint16)
    cast_units(values.astype(np.float32).view(np.uint32), DType.F32, DType.BF16, bits)
    return bits


def rate_of(size_bytes: int, pass_count: int, one_pass: Callable[[], object]) -> Rate:
    """Time passes; the first, which compiles and faults pages in, does not count."""
    one_pass()
    rates = []
    for _ in range(pass_count):
        start = time.perf_counter()
        one_pass()
        rates.append(size_bytes / (time.perf_counter() - start) / GIGA)
    return Rate(statistics.median(rates), min(rates), max(rates))


@numba.njit(nogil=True)
def _read_all(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> np.uint64:
    """Read two arrays as a comparison does."""
    seen = np.uint64(0)
    for index in range(left.size):
        seen |= left[index] ^ right[index]
    return seen


def bandwidth(pairs: Sequence[Pair], thread_count: int, pass_count: int) -> Rate:
    """Measure what cores can read."""
    views = [(old.view(np.uint64), new.view(np.uint64)) for old, new in pairs]
    shares = [views[thread::thread_count] for thread in range(thread_count)]
    size_bytes = sum(old.nbytes + new.nbytes for old, new in pairs)

    def read(share: Sequence[tuple[NDArray[np.uint64], NDArray[np.uint64]]]) -> None:
        for view in share:
            _read_all(*view)

    with ThreadPoolExecutor(thread_count) as threads:
        return rate_of(size_bytes, pass_count, lambda: list(threads.map(read, shares)))


def encode_rate(
    kernels: Kernels, pairs: Sequence[Pair], thread_count: int, pass_count: int
) -> Rate:
    """Measure detect + encode, by threads that take pieces in turn."""
    codec = PieceCodec(kernels)
    shares = [(codec.worker(), pairs[thread::thread_count]) for thread in range(thread_count)]

    def encode(share: tuple[PieceWorker, Sequence[Pair]]) -> None:
        worker, mine = share
        for old, new in mine:
            worker.encode(old, new)

    size_bytes = sum(old.nbytes + new.nbytes for old, new in pairs)
    with ThreadPoolExecutor(thread_count) as threads:
        return rate_of(size_bytes, pass_count, lambda: list(threads.map(encode, shares)))


def apply_rate(
    kernels: Kernels, work: Sequence[tuple[Bits, Piece]], thread_count: int, pass_count: int
) -> Rate:
    """Measure decode + all checks + apply; the targets are put back outside the clock."""
    codec = PieceCodec(kernels)
    originals = [target.copy() for target, _ in work]
    shares = [(codec.worker(), work[thread::thread_count]) for thread in range(thread_count)]

    def apply(share: tuple[PieceWorker, Sequence[tuple[Bits, Piece]]]) -> None:
        worker, mine = share
        for target, piece in mine:
            worker.apply(piece, target)

    size_bytes = sum(target.nbytes for target, _ in work)
    rates = []
    with ThreadPoolExecutor(thread_count) as threads:
        for _ in range(pass_count + 1):
            start = time.perf_counter()
            list(threads.map(apply, shares))
            rates.append(size_bytes / (time.perf_counter() - start) / GIGA)
            for (target, _), original in zip(work, originals, strict=True):
                target[:] = original
    return Rate(statistics.median(rates[1:]), min(rates[1:]), max(rates[1:]))


def entropy_bytes(pairs: Sequence[Pair]) -> float:
    """Order-0 entropy of gaps plus that of differences, in bytes a change."""
    gaps, differences = [], []
    for old, new in pairs:
        positions = np.flatnonzero(old != new)
        gaps.append(np.diff(positions, prepend=-1) - 1)
        differences.append((new - old)[positions])
    return (_entropy(np.concatenate(gaps)) + _entropy(np.concatenate(differences))) / 8


def _entropy(symbols: NDArray[Any]) -> float:
    """Empirical bits a symbol."""
    counts = np.unique(symbols, return_counts=True)[1]
    shares = counts / symbols.size
    return float(-np.sum(shares * np.log2(shares)))


def u16_xor_bytes(pairs: Sequence[Pair]) -> float:
    """Size of two-byte gaps and XOR words under zstd level 1, in bytes a change."""
    compressor = zstandard.ZstdCompressor(level=1)
    size_bytes = change_count = 0
    for old, new in pairs:
        positions = np.flatnonzero(old != new)
        gaps = (np.diff(positions, prepend=-1) - 1).astype(np.uint16)
        words = (old ^ new)[positions]
        size_bytes += len(compressor.compress(gaps.tobytes()))
        size_bytes += len(compressor.compress(words.tobytes()))
        change_count += positions.size
    return size_bytes / change_count


def measure(data: str, pairs: Sequence[Pair], pass_count: int) -> Row:
    """Fill one row, after comparing every piece bit for bit."""
    fast, oracle = load_kernels(), numpy_kernels()
    worker = PieceCodec(fast).worker()
    work: list[tuple[Bits, Piece]] = []
    for old, new in pairs:
        piece = worker.encode(old, new).piece
        target = old.copy()
        if piece is not None:
            worker.apply(piece, target)
            work.append((old.copy(), piece))
        if not np.array_equal(target, new):
            raise SystemExit(f"{data}: a piece did not come back bit for bit")
    change_count = sum(piece.changed_count for _, piece in work)
    size_bytes = sum(piece.size_bytes + INDEX_SIZE_BYTES for _, piece in work)
    return Row(
        data=data,
        changed_percent=100 * change_count / (UNIT_COUNT * len(pairs)),
        bytes_per_change=size_bytes / change_count,
        entropy_bytes_per_change=entropy_bytes(pairs),
        u16_xor_bytes_per_change=u16_xor_bytes(pairs),
        encode_1=encode_rate(fast, pairs, 1, pass_count),
        encode_2=encode_rate(fast, pairs, 2, pass_count),
        apply_1=apply_rate(fast, work, 1, pass_count),
        apply_2=apply_rate(fast, work, 2, pass_count),
        numpy_encode_1=encode_rate(oracle, pairs, 1, 3),
        numpy_apply_1=apply_rate(oracle, work, 1, 3),
    )


def table(rows: Sequence[Row], read: tuple[Rate, Rate], load: float) -> str:
    """Print rows as a Markdown table."""
    machine = (
        f"{platform.machine()}, Python {platform.python_version()}, numba {numba.__version__}, "
        f"zstandard {zstandard.__version__}; one core reads {read[0]} GB/s, two {read[1]}; "
        f"load {load:.1f}"
    )
    lines = [machine, "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        above = row.bytes_per_change / row.entropy_bytes_per_change - 1
        share = row.encode_1.median / read[0].median
        lines.append(
            f"| {row.data} | {row.changed_percent:.2f} % | {row.bytes_per_change:.3f} "
            f"| {row.entropy_bytes_per_change:.3f} ({above:+.1%}) "
            f"| {row.u16_xor_bytes_per_change:.3f} | {row.encode_1} | {share:.0%} "
            f"| {row.encode_2} | {row.apply_1} | {row.apply_2} | {row.numpy_encode_1} "
            f"| {row.numpy_apply_1} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pieces", type=int, default=6, help="pieces of 16 MiB per data set")
    parser.add_argument("--passes", type=int, default=7, help="passes per rate")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    rng = np.random.default_rng(1)
    rows: list[Row] = []
    read: tuple[Rate, Rate] | None = None
    for name, make, ratio in (
        ("adam", adam_pairs, 0.0024),
        ("adam", adam_pairs, 0.01),
        ("adam", adam_pairs, 0.024),
        ("iid", iid_pairs, 0.01),
    ):
        pairs = make(rng, arguments.pieces, ratio)
        if read is None:
            read = (
                bandwidth(pairs, 1, arguments.passes),
                bandwidth(pairs, 2, arguments.passes),
            )
        rows.append(measure(name, pairs, arguments.passes))
    assert read is not None
    if arguments.json:
        result = {
            "read_gb_per_s": [asdict(rate) for rate in read],
            "rows": [asdict(row) for row in rows],
        }
        print(json.dumps({**result, "load": load, "machine": platform.platform()}, indent=2))
    else:
        print(table(rows, read, load))


if __name__ == "__main__":
    main()
