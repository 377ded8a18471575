"""`docs/benchmarks.md`, made from the results of all benches."""

from __future__ import annotations

from collections.abc import Sequence

from tools.bench.report import Report, Row

INTRODUCTION = """\
# Benchmarks

This page is generated from `tools/bench/results/*.json` by `tools/bench/run_all --write-docs`;
a test compares the two.

Values are medians, with the least and the most in parentheses; n is the number of values. A
ratio is the measured value over its peer's. Both sides of a pair are measured in turns in one
run (A B A B ...), and the ratio is taken turn by turn: absolute figures are those of this
machine, ratios carry further. A target speaks of the median.

Encoding reads everything once and is bound by memory. The target for a second core (1.7x) presumes
that two cores read about twice what one reads. Where they do not, no encoder can meet it: the row
"two cores reading" says how much they read, and the row below the target holds encoding against
that, at the share that one core has to reach. The note says how much two cores *compute*
compared with one: well below 2x means that the machine was doing other work, as does a load
above 0 at the start, and that rows of two cores then say little.
"""
HEADER = "| what | measured | peer | ratio | target | n |\n|---|---|---|---|---|---|"
RUNNING = """\
## Running them

```
tools/bench/setup                     # the released peer, in a folder of its own
tools/bench/run_all --write-docs      # all benches, minutes; then this page
.venv/bin/python tools/bench/codec.py --check --json codec.json
```

Every bench takes `--size small`, which runs in seconds to see that it works; `--check` exits
with 1 if a target is missed or a peer is not installed.
"""


def page(reports: Sequence[Report]) -> str:
    """The page as Markdown."""
    parts = [INTRODUCTION, *(f"- {line}" for line in machine_lines(reports)), ""]
    parts += ["## Missed targets", "", *missed_lines(reports), ""]
    for report in reports:
        parts += section(report)
    return "\n".join([*parts, RUNNING])


def machine_lines(reports: Sequence[Report]) -> list[str]:
    """Each machine once, with the benches that ran on it and the load when they began."""
    benches: dict[str, list[str]] = {}
    for report in reports:
        benches.setdefault(str(report.machine), []).append(f"{report.bench} {report.load}")
    return [f"{machine}. Load at the start: {', '.join(on)}." for machine, on in benches.items()]


def missed_lines(reports: Sequence[Report]) -> list[str]:
    """Every missed target and every row that is not there."""
    lines = []
    for report in reports:
        for row in report.rows:
            if row.is_missed:
                found = row.ratio if row.target_text.endswith("x") else f"{row.measured} {row.unit}"
                note = f" Note: {row.note.rstrip('.')}." if row.note else ""
                against = f" of {row.peer_name}" if row.peer_name else ""
                lines.append(f"- {row.name}: {row.target_text}{against}, found {found}.{note}")
        lines += [f"- {each.name}: {each.reason}." for each in report.missing]
    return lines or ["None."]


def section(report: Report) -> list[str]:
    """One bench."""
    lines = [f"## {report.bench}", "", report.summary, "", HEADER]
    lines += [table_line(row) for row in report.rows]
    notes = [f"- {row.name}: {row.note}" for row in report.rows if row.note]
    return [*lines, "", *notes, ""] if notes else [*lines, ""]


def table_line(row: Row) -> str:
    """One row of the table."""
    peer = f"{row.peer}: {row.peer_name}" if row.peer is not None else ""
    target = f"{row.target_text}: **{row.verdict}**" if row.target is not None else ""
    cells = (
        row.name,
        f"{row.measured} {row.unit}",
        peer,
        str(row.ratio) if row.ratio is not None else "",
        target,
        str(row.measured.count),
    )
    return f"| {' | '.join(cells)} |"
