"""Run seeds and say what happened; one seed replays with its story."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from weightstore.clock import SystemClock
from weightstore.testing.simulation.run import Outcome, simulate


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; 1 if a seed breaks anything."""
    parser = argparse.ArgumentParser(prog="python -m weightstore.testing.simulation")
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first of several")
    parser.add_argument("--count", type=int, default=1, help="how many seeds")
    parser.add_argument("--quiet", action="store_true", help="no story of a single seed")
    given = parser.parse_args(arguments)
    clock = SystemClock()
    begin_s, counts, broken_count, event_count = clock.monotonic_s(), Counter[str](), 0, 0
    is_single = given.count == 1 and not given.quiet
    for seed in range(given.seed, given.seed + given.count):
        found = simulate(seed, keep_story=is_single)
        counts.update(found.counts)
        event_count += found.event_count
        broken_count += bool(found.broken)
        lines = _story(found) if is_single else _failure(found)
        sys.stdout.writelines(line + "\n" for line in lines)
    taken_s = clock.monotonic_s() - begin_s
    told = ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
    sys.stdout.write(
        f"{given.count} seeds, {broken_count} of them broken, {event_count} turns, "
        f"{taken_s:.1f} s: {told}\n"
    )
    return 1 if broken_count else 0


def _story(found: Outcome) -> Iterator[str]:
    for when_s, who, what in found.story:
        yield f"{when_s:9.3f}  {who:<22} {what}"
    yield from _failure(found)


def _failure(found: Outcome) -> Iterator[str]:
    for each in found.broken:
        yield f"seed {found.seed}: {each}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
