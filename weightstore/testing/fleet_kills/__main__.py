"""Kill a fleet, and print what came of it as a table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weightstore.clock import SystemClock
from weightstore.testing.fleet_kills.campaign import run
from weightstore.testing.fleet_kills.fleet import Fleet
from weightstore.testing.fleet_kills.nest import Nest
from weightstore.testing.fleet_kills.story import RECEIVERS, SEATS
from weightstore.testing.fleet_kills.table import Table


def main(arguments: Sequence[str]) -> int:
    """Kill as often as was asked for."""
    parser = argparse.ArgumentParser(prog="python -m weightstore.testing.fleet_kills")
    parser.add_argument("--seed", type=int, default=1, help="for what is random")
    # Both receivers do the same: one is enough.
    seats = [seat for seat in SEATS if seat != RECEIVERS[1]]
    parser.add_argument("--seats", nargs="*", default=seats, choices=SEATS, metavar="SEAT")
    parser.add_argument("--cases", type=int, default=40, help="kills at points, of each seat")
    parser.add_argument("--random", type=int, default=6, help="kills at random, of each seat")
    given = parser.parse_args(arguments)
    clock, table, block_count = SystemClock(), Table(), 0
    start_s = clock.monotonic_s()
    with Nest() as nest:
        for seat in given.seats:
            with tempfile.TemporaryDirectory() as folder, Fleet(nest, Path(folder) / "f") as fleet:
                found = run(
                    fleet,
                    [seat],
                    case_count=given.cases,
                    random_count=given.random,
                    seed=given.seed,
                )
                table.counts.update(found.table.counts)
                block_count += found.judge.block_count
    taken_s = clock.monotonic_s() - start_s
    sys.stdout.write(table.markdown())
    sys.stdout.write(f"{table.kill_count} kills, {block_count} blocks served, {taken_s:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
