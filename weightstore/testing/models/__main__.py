"""Explore every model, then every mutation, and print what was seen."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weightstore.clock import SystemClock
from weightstore.testing.models.explore import Exploration, Model, explore
from weightstore.testing.models.mutations import MODELS, MUTATIONS
from weightstore.testing.models.world import PRODUCT, World


@dataclass(frozen=True, slots=True)
class Row:
    """One search: what was searched, what was seen, how long it took."""

    title: str
    model: str
    bounds: str
    seen: Exploration
    duration_s: float


def main(arguments: Sequence[str]) -> int:
    """Print the state counts and the mutation table; 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="python -m weightstore.testing.models")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    models = [_row("the product's rules", model(PRODUCT)) for model in MODELS]
    mutations = [_row(mutation.what, mutation.build()) for mutation in MUTATIONS]
    if options.json:
        out = {"models": [_facts(row) for row in models], "mutations": [*map(_facts, mutations)]}
        sys.stdout.write(json.dumps(out, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in _table(models, mutations))
    holds = all(row.seen.counterexample is None for row in models)
    is_caught = all(row.seen.counterexample is not None for row in mutations)
    return 0 if holds and is_caught else 1


def _row(title: str, model: Model[World]) -> Row:
    clock = SystemClock()
    begin_s = clock.monotonic_s()
    seen = explore(model)
    return Row(title, model.name, model.bounds, seen, clock.monotonic_s() - begin_s)


def _facts(row: Row) -> dict[str, object]:
    found = row.seen.counterexample
    return {
        "title": row.title,
        "model": row.model,
        "bounds": row.bounds,
        "state_count": row.seen.state_count,
        "move_count": row.seen.move_count,
        "depth": row.seen.depth,
        "duration_s": round(row.duration_s, 2),
        "broken": found.broken if found else None,
        "trace": found.trace if found else None,
    }


def _table(models: list[Row], mutations: list[Row]) -> Iterator[str]:
    yield "Every reachable state, with the product's rules:"
    for row in models:
        yield f"  {_counts(row)}  {_finding(row, 'nothing is broken')}"
        yield f"      {row.bounds}"
    total = sum(row.seen.state_count for row in models)
    yield f"  {total} states in {sum(row.duration_s for row in models):.1f} s"
    yield ""
    yield "One safety step left out, the shortest way to a broken state:"
    for number, row in enumerate(mutations, 1):
        yield f"{number:>3}. {row.title}"
        yield f"     {_counts(row)}  {_finding(row, 'NOT CAUGHT')}"
        if row.seen.counterexample is not None:
            yield f"     {' > '.join(row.seen.counterexample.trace)}"
    caught = sum(row.seen.counterexample is not None for row in mutations)
    seconds = sum(row.duration_s for row in mutations)
    yield f"{caught} of {len(mutations)} mutations caught in {seconds:.1f} s"


def _counts(row: Row) -> str:
    seen = row.seen
    return (
        f"{row.model:<10} {seen.state_count:>7} states {seen.move_count:>8} moves"
        f" depth {seen.depth:>2} {row.duration_s:>6.2f} s"
    )


def _finding(row: Row, otherwise: str) -> str:
    found = row.seen.counterexample
    return otherwise if found is None else f"broken: {found.broken}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
