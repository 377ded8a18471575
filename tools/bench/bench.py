"""The command line that all benches share: sizes, tables, JSON, and a check of the targets."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.bench.machine import this_machine
from tools.bench.report import Missing, Report, Row

ROOT = Path(__file__).parents[2]
COLUMNS = ("what", "measured", "peer", "ratio", "target", "", "n")
VERDICT_STYLES = {"met": "green", "missed": "bold red", "": ""}
Task = dict[str, Any]
"""What a child process is to do, and what it found: plain JSON."""


@dataclass(frozen=True, slots=True)
class Options:
    """How much to measure.

    Attributes:
        is_small: Seconds in all, to see that everything works; its figures mean nothing.
        turn_count: How often each pair is measured; None leaves it to the bench.
    """

    is_small: bool
    turn_count: int | None = None

    def turns(self, full: int) -> int:
        """Turns to take, where the bench takes `full` of them by itself."""
        if self.turn_count is not None:
            return self.turn_count
        return 2 if self.is_small else full


@dataclass(slots=True)
class Findings:
    """What a bench collects while it runs."""

    rows: list[Row] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def add(self, *rows: Row) -> None:
        """Take rows."""
        self.rows += rows

    def leave_out(self, name: str, reason: str) -> None:
        """Say that a row is missing, and why."""
        self.missing.append(Missing(name=name, reason=reason))


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench.

    Attributes:
        name: Of its file and of its results.
        summary: What it measures and how, for the reader of its figures.
        measure: Fills the findings.
        child: Does a task in a process of its own.
    """

    name: str
    summary: str
    measure: Callable[[Options, Findings], None]
    child: Callable[[Task], Task] | None = None

    def in_child(self, task: Task, *, here: bool = False) -> Task:
        """Do a task in a process of its own, whose memory and caches are new.

        Args:
            task: What to do.
            here: Do it in this process after all, where no figure counts.

        Raises:
            subprocess.CalledProcessError: the child failed; it said why on stderr.
        """
        assert self.child is not None
        if here:
            return self.child(task)
        command = [sys.executable, "-m", f"tools.bench.{self.name}", "--child", json.dumps(task)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
        found: Task = json.loads(done.stdout)
        return found


def run(bench: Bench, arguments: Sequence[str] | None = None) -> int:
    """Run a bench as its command line says; returns the exit code."""
    given = _parser(bench).parse_args(arguments)
    if given.child is not None:
        assert bench.child is not None
        print(json.dumps(bench.child(json.loads(given.child))))
        return 0
    report = measured(bench, Options(given.size == "small", given.turns))
    if given.json is not None:
        report.write(given.json)
    show(report)
    if not given.check:
        return 0
    for failure in report.failures:
        print(f"{bench.name}: {failure}", file=sys.stderr)
    return 1 if report.failures else 0


def measured(bench: Bench, options: Options) -> Report:
    """Measure, and give the report."""
    load = os.getloadavg()[0]
    findings = Findings()
    bench.measure(options, findings)
    return Report(
        bench=bench.name,
        summary=bench.summary,
        size="small" if options.is_small else "full",
        load=round(load, 2),
        machine=this_machine(),
        rows=tuple(findings.rows),
        missing=tuple(findings.missing),
    )


def show(report: Report) -> None:
    """Print a report as a table."""
    console = Console()
    if not console.is_terminal:
        # Where the output is kept, no row is to be broken at 80 columns.
        console = Console(width=180)
    console.print(f"[bold]{report.bench}[/]: {report.machine}; load {report.load}")
    if report.size == "small":
        console.print("[yellow]small sizes: the figures mean nothing[/]")
    table = Table(*COLUMNS)
    for row in report.rows:
        peer = f"{row.peer} {row.peer_name}" if row.peer is not None else ""
        style = VERDICT_STYLES[row.verdict]
        table.add_row(
            row.name,
            f"{row.measured} {row.unit}",
            peer,
            str(row.ratio) if row.ratio is not None else "",
            row.target_text,
            f"[{style}]{row.verdict}[/]" if style else "",
            str(row.measured.count),
        )
    console.print(table)
    for row in report.rows:
        if row.note:
            console.print(f"- {row.name}: {row.note}")
    for each in report.missing:
        console.print(f"[yellow]left out[/] {each.name}: {each.reason}")


def _parser(bench: Bench) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"tools/bench/{bench.name}.py", description=bench.summary)
    parser.add_argument(
        "--size", choices=("small", "full"), default="full", help="small: seconds, no figures"
    )
    parser.add_argument("--turns", type=int, help="how often each pair is measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 if a target is missed or a peer missing"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser
