"""How long a new process takes until weightstore is there, against an empty Python process.

Rows are wall times of whole processes: the median of several, with the fastest and slowest.
The ratio is to the first row, so that figures of different machines can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

COMMAND = Path(sys.executable).with_name("weightstore")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Seconds of one command over all its runs."""

    what: str
    median_s: float
    fastest_s: float
    slowest_s: float
    ratio: float


def seconds_of(command: list[str], count: int) -> list[float]:
    """Wall seconds of `count` runs, after one that fills the file caches.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    taken = []
    for _ in range(count + 1):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begin)
    return taken[1:]


def measure(count: int) -> list[Row]:
    """Run every command `count` times."""
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="weightstore-startup-") as folder:
        place = str(Path(folder) / "store")
        subprocess.run([COMMAND, "init", place], check=True, stdout=subprocess.DEVNULL)
        commands: dict[str, list[str]] = {
            "python -c pass": [python, "-c", "pass"],
            "import weightstore": [python, "-c", "import weightstore"],
            "weightstore --help": [str(COMMAND), "--help"],
            "weightstore log": [str(COMMAND), "log", place],
        }
        taken = {what: seconds_of(command, count) for what, command in commands.items()}
    empty_s = statistics.median(taken["python -c pass"])
    return [
        Row(
            what=what,
            median_s=statistics.median(times),
            fastest_s=min(times),
            slowest_s=max(times),
            ratio=statistics.median(times) / empty_s,
        )
        for what, times in taken.items()
    ]


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10, help="runs of each command")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()

    rows = measure(options.count)
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    if options.json:
        report = {"machine": machine, "count": options.count, "rows": [asdict(row) for row in rows]}
        print(json.dumps(report, indent=2))
        return
    print(f"{machine}; {options.count} runs each")
    print(f"{'':22}{'median s':>10}{'fastest':>10}{'slowest':>10}{'ratio':>8}")
    for row in rows:
        print(
            f"{row.what:22}{row.median_s:10.3f}{row.fastest_s:10.3f}{row.slowest_s:10.3f}"
            f"{row.ratio:8.1f}"
        )


if __name__ == "__main__":
    main()
