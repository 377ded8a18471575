"""Whether a long history costs anything: 10,000 versions against 100.

python tools/bench/scale.py --json FILE
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from tools.bench.bandwidth import memory_folder
from tools.bench.bench import Bench, Findings, Options, run
from tools.bench.report import against, alone, at_most
from tools.bench.turns import seconds
from tools.bench.weights import normal_weights
from weightstore import WeightStore

SHORT_COUNT, LONG_COUNT = 100, 10_000
SMALL_SHORT_COUNT, SMALL_LONG_COUNT = 10, 40
TURN_COUNT = 30
CHECKOUT_COUNT = 3
"""Checkouts in one turn, each of another version."""
SHAPES = {"layer.weight": (256, 512), "layer.norm": (512,)}
MS = 1000


class History:
    """A store with so many versions, each a step in which one element moved.

    Attributes:
        put_ms: Of each put.
        by_chain: Versions by the number of deltas that a checkout of them replays.
    """

    def __init__(self, location: Path, version_count: int) -> None:
        self.location = location
        self.put_ms: list[float] = []
        self.by_chain: dict[int, list[int]] = {}
        weights = normal_weights(SHAPES)
        units = weights["layer.weight"].units
        places = np.random.default_rng(0).integers(0, units.size, version_count)
        chain_count = 0
        with (
            WeightStore.open(location, create=True) as store,
            store.trainer(run="bench") as trainer,
        ):
            for step, place in enumerate(places.tolist()):
                units[place] += np.uint16(1)
                start = time.perf_counter()
                report = trainer.put_step(step, weights).report()
                self.put_ms.append((time.perf_counter() - start) * MS)
                chain_count = 0 if report.full_size_bytes else chain_count + 1
                self.by_chain.setdefault(chain_count, []).append(int(report.version))

    def turn(self, chain_counts: list[int], rng: np.random.Generator) -> dict[str, float]:
        """Open the store anew, ask for the latest version, and check others out."""
        start = time.perf_counter()
        with closing(WeightStore.open(self.location)) as store:
            opened_s = time.perf_counter() - start
            latest_s = seconds(store.version)
            versions = [int(rng.choice(self.by_chain[count])) for count in chain_counts]
            checkout_s = sum(seconds(partial(store.checkout, version)) for version in versions)
            find_s = seconds(lambda: store.version(versions[0]))
        return {
            "open": opened_s * MS,
            "latest": latest_s * MS,
            "checkout of any": checkout_s * MS / len(versions),
            "finding a version again": find_s * MS,
        }


def chain_lengths(short: History, rng: np.random.Generator) -> Iterator[list[int]]:
    """Lengths of chains to check out in a turn: such as both histories have, of all kinds."""
    known = sorted(short.by_chain)
    while True:
        yield [int(each) for each in rng.choice(known, CHECKOUT_COUNT)]


def measure(options: Options, findings: Findings) -> None:
    """Make both histories, and measure them in turns."""
    small = options.is_small
    counts = (SMALL_SHORT_COUNT, SMALL_LONG_COUNT) if small else (SHORT_COUNT, LONG_COUNT)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        short, long = (History(Path(folder) / str(count), count) for count in counts)
        lengths = chain_lengths(short, rng)
        found: dict[str, tuple[list[float], list[float]]] = {}
        for turn in range(options.turns(TURN_COUNT) + 1):
            chosen = next(lengths)
            pair = (long.turn(chosen, rng), short.turn(chosen, rng))
            for name in pair[0] if turn else ():
                sides = found.setdefault(name, ([], []))
                for side, each in zip(sides, pair, strict=True):
                    side.append(each[name])
    peer = f"{counts[0]:,} versions"
    findings.add(
        *(
            against(f"{name}, {counts[1]:,} versions", "ms", *_with_peer(sides, peer), target=limit)
            for (name, sides), limit in zip(
                found.items(), (at_most(1.2), at_most(1.2), at_most(1.2), None), strict=True
            )
        ),
        against(
            f"put, the last {counts[0]:,} of {counts[1]:,} versions",
            "ms",
            long.put_ms[-counts[0] :],
            f"the first {counts[0]:,}",
            long.put_ms[: counts[0]],
        ),
        alone("all versions put, one after the other", "s", [sum(long.put_ms) / MS]),
    )


def _with_peer(
    sides: tuple[list[float], list[float]], peer: str
) -> tuple[list[float], str, list[float]]:
    return sides[0], peer, sides[1]


BENCH = Bench(
    name="scale",
    summary=(
        "Two stores of one shape, with 100 and with 10,000 versions, in memory, so that neither "
        "waits for a disk. Each turn opens both anew, and checks versions out whose chains have "
        "the same lengths in both, chosen at random from the whole history."
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
