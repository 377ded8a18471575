"""What the command line prints: tables and progress bars for people, JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console, HighlighterType, JustifyMethod, OverflowMethod
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.style import Style
from rich.table import Table
from rich.text import Text

from weightstore.cli.advice import command_line_advice
from weightstore.cli.exit_codes import ExitCode, exit_code_of
from weightstore.errors import WeightStoreError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP = 1024

_PLAIN_WIDTH = 200
"""Columns where no terminal is: files and pipes must not lose text to a narrow guess."""

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What a terminal obeys, or what turns the direction of text; tab and line feed are not."""


class PlainConsole(Console):
    """A console that stored text cannot command: whatever is printed, controls are escaped.

    Names of tensors and files are what some writer chose, and a terminal obeys what it reads.
    """

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """Text as it will be shown."""
        return super().render_str(
            _UNPRINTABLE.sub(_escaped, text),
            style=style,
            justify=justify,
            overflow=overflow,
            emoji=emoji,
            markup=markup,
            highlight=highlight,
            highlighter=highlighter,
        )

    def on_broken_pipe(self) -> None:
        """Whoever read has seen enough, as `head` does."""
        end_at_broken_pipe()


def end_at_broken_pipe() -> NoReturn:
    """End as a command that nobody reads any more does, without a word.

    What is still in the buffers goes nowhere, so that the end of the process does not try
    again.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())
    raise SystemExit(ExitCode.BROKEN_PIPE)


def _escaped(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


out = PlainConsole(highlight=False, emoji=False)
err = PlainConsole(stderr=True, highlight=False, emoji=False)
if not out.is_terminal:
    out = PlainConsole(highlight=False, emoji=False, width=_PLAIN_WIDTH)


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, sort_keys=True) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; columns of numbers are aligned to the right."""
    out.print(table_of(title, columns, rows))


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """What `print_table` prints."""
    table = Table(title=escape(title) or None, title_justify="left")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        table.add_column(column, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_one_line(cell) for cell in row))
    return table


def print_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one a line."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        out.print(f"{escape(name):<{width}}  {_one_line(value)}", soft_wrap=True)


def _one_line(value: object) -> str:
    """A stored name with a line feed must not look like another row."""
    return escape(str(value).replace("\n", "\\n"))


def print_error(error: WeightStoreError, *, as_json: bool) -> None:
    """The error on standard error: message, advice, code. With JSON, all facts too."""
    do = command_line_advice(error.do)
    if as_json:
        text = json.dumps(error_document(error), indent=2, sort_keys=True)
        sys.stderr.write(text + "\n")
        return
    err.print(f"[bold red]error[/] [dim]{error.code}[/]: {escape(error.message)}", soft_wrap=True)
    if do:
        err.print(f"  [bold]->[/] {escape(do)}", soft_wrap=True)


def error_document(error: WeightStoreError) -> dict[str, object]:
    """An error for programs."""
    return {
        "error": type(error).__name__,
        "code": error.code,
        "exit_code": int(exit_code_of(error)),
        "message": error.message,
        "do": command_line_advice(error.do),
        "facts": error.facts,
    }


def size_text(size_bytes: float) -> str:
    """12.3 MiB."""
    for unit in _UNITS[:-1]:
        if abs(size_bytes) < _STEP:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= _STEP
    return f"{size_bytes:.1f} {_UNITS[-1]}"


def time_text(unix_ms: int) -> str:
    """UTC, to the second; a stored number that is no date stays a number."""
    try:
        moment = dt.datetime.fromtimestamp(unix_ms / 1000, tz=dt.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


class BarReporter:
    """Turns progress calls of the library into one bar per phase."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        """Show how far a phase has come."""
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=total_bytes)
        self._bars.update(self._tasks[phase], completed=done_bytes, total=total_bytes)


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[BarReporter]:
    """Bars with bytes, rate and time left, on standard error and only on a terminal."""
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    )
    with bars:
        yield BarReporter(bars)
