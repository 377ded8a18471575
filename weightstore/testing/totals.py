"""Totals of what test runs have done, in one file that any number of processes add to."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from weightstore.storage.durable import replace_durably

FILE_NAME = "faults.json"
MINIMA = {
    "crash_states": 200_000,
    "fleet_faults": 380,
    "fuzzed_inputs": 500_000,
    "hypothesis_examples": 5_000,
    "mutations_caught": 100,
    "sigkills": 1_500,
    "simulation_seeds": 2_000,
}
"""What a run of all tests goes through at least; of fleet faults what those tests ask for."""

_EXAMPLES = re.compile(r"- (\d+) passing, (\d+) failing, and \d+ invalid test cases")


def add(name: str, count: int, *, path: Path | None = None) -> None:
    """Add to a total, beginning at 0.

    May be called from several processes and threads at once: no count is lost, and a reader
    of the file sees it whole at any time.

    After a crash: the file as it was, or with the count.

    Args:
        name: What was counted, such as `"sigkills"`.
        count: How many more; 0 makes the total exist.
        path: The file; by default `faults.json` at the top of the checkout.

    Raises:
        ValueError: the count is below 0, or the file holds something else than totals.
        FileNotFoundError: no path is given and the package lies in no checkout.
    """
    if count < 0:
        raise ValueError(f"a total only grows, but {name} would grow by {count}")
    file = path or default_path()
    with _locked(file.parent):
        found = totals(file)
        found[name] = found.get(name, 0) + count
        text = json.dumps(dict(sorted(found.items())), indent=2) + "\n"
        temporary = file.with_name(f".{file.name}.partial")
        temporary.write_text(text, encoding="ascii")
        replace_durably(temporary, file)


def union_when_complete(
    folder: Path, part: str, numbers: Collection[int], parts: Collection[str]
) -> frozenset[int] | None:
    """Keep what one part has seen, and tell whoever comes last what all have seen together.

    The parts may be in several processes, at once and in any order.

    After a crash: the part is kept or not; the union is told to nobody or to one.

    Args:
        folder: Of one run, the same for all its parts.
        part: Whose numbers they are; each part is kept once.
        numbers: 64 bits each.
        parts: Everybody who is waited for.

    Returns:
        All numbers, each once, if this was the last part; else None.

    Raises:
        ValueError: the part is none of those, or was kept already.
    """
    if part not in parts:
        raise ValueError(f"{part} is none of the parts that are waited for")
    folder.mkdir(exist_ok=True)
    with _locked(folder):
        file = folder / f"{part}.u64"
        if file.exists():
            raise ValueError(f"{part} was kept already")
        np.array(sorted(numbers), np.uint64).tofile(file)
        files = [folder / f"{one}.u64" for one in parts]
        if not all(one.exists() for one in files):
            return None
        return frozenset().union(*(np.fromfile(one, np.uint64).tolist() for one in files))


def totals(path: Path | None = None) -> dict[str, int]:
    """All totals so far; none if there is no file.

    Raises:
        ValueError: the file holds something else than totals.
        FileNotFoundError: no path is given and the package lies in no checkout.
    """
    file = path or default_path()
    try:
        found = json.loads(file.read_text(encoding="ascii"))
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict) or not all(type(count) is int for count in found.values()):
        raise ValueError(f"{file} holds no totals: remove it")
    return found


def too_few(found: Mapping[str, int]) -> tuple[str, ...]:
    """Totals that are below what a run of all tests goes through, in words.

    Args:
        found: As of `totals`.
    """
    return tuple(
        f"{name} is {found.get(name, 0)}, and must be {least} at least"
        for name, least in MINIMA.items()
        if found.get(name, 0) < least
    )


def main() -> int:
    """Print all totals, and what there is too few of; 1 if anything is."""
    found = totals()
    missing = too_few(found)
    sys.stdout.write("\n".join([json.dumps(found, indent=2), *missing, ""]))
    return bool(missing)


def default_path() -> Path:
    """`faults.json` in the nearest directory above the package that has a `pyproject.toml`.

    Raises:
        FileNotFoundError: there is none, as for an installed package.
    """
    for parent in Path(__file__).resolve().parents:
        if (parent / "pyproject.toml").is_file():
            return parent / FILE_NAME
    raise FileNotFoundError(f"no pyproject.toml above {__file__}: say where the totals are")


def example_count(statistics: str) -> int:
    """How many examples a test has run, as hypothesis' pytest plugin describes them.

    Those that hypothesis threw away as invalid do not count.

    Args:
        statistics: The text that the plugin gives each test, `item.hypothesis_statistics`.
    """
    return sum(int(passing) + int(failing) for passing, failing in _EXAMPLES.findall(statistics))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep everybody else out; the kernel ends it with the process, however that ends."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


if __name__ == "__main__":
    raise SystemExit(main())
