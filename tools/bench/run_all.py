"""Runs the benches one after the other, keeps their results, and writes the page of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tools.bench.benchmarks_page import page
from tools.bench.report import Report

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
PAGE = FOLDER.parents[1] / "docs" / "benchmarks.md"
BENCHES = (
    "codec",
    "commit",
    "checkout",
    "put_checkout",
    "refit",
    "scale",
    "piece_index",
    "startup",
)


def stored_reports(folder: Path) -> list[Report]:
    """The results that there are, in the order of the page.

    Raises:
        pydantic.ValidationError: a file is no report.
    """
    paths = (folder / f"{name}.json" for name in BENCHES)
    return [Report.read(path) for path in paths if path.exists()]


def run_bench(name: str, size: str, folder: Path) -> bool:
    """Run one bench in a process of its own; whether it ended well."""
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"tools.bench.{name}", "--size", size]
    command += ["--json", str(folder / f"{name}.json")]
    return subprocess.run(command, check=False, cwd=FOLDER.parents[1]).returncode == 0


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="tools/bench/run_all", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="BENCH", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--folder", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--write-docs", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--no-run", action="store_true", help="use the results that there are")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args()
    if unknown := set(given.names) - set(BENCHES):
        parser.error(f"no such bench: {', '.join(sorted(unknown))}")
    given.folder.mkdir(parents=True, exist_ok=True)
    names = () if given.no_run else given.names or BENCHES
    broken = [name for name in names if not run_bench(name, given.size, given.folder)]
    reports = stored_reports(given.folder)
    if given.write_docs:
        PAGE.write_text(page(reports), encoding="utf-8")
    failures = [f"{each.bench}: {line}" for each in reports for line in each.failures]
    for line in (*(f"{name}: it did not run to its end" for name in broken), *failures):
        print(line, file=sys.stderr)
    return 1 if broken or (given.check and failures) else 0


if __name__ == "__main__":
    sys.exit(main())
