"""`weightstore follow`: a checkpoint directory that is kept at the newest version."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from weightstore.cli.environment import environment_settings
from weightstore.cli.options import JsonOption, QuietOption, StoreArgument
from weightstore.cli.output import BarReporter, err, out, print_error, progress_bars, size_text
from weightstore.clock import SystemClock
from weightstore.receiver.host_files.following import Hindrance
from weightstore.receiver.host_files.following import follow as follow_files
from weightstore.receiver.host_files.host_files import HostFiles, Recovery
from weightstore.receiver.reports import Phase, RefitReport
from weightstore.store import WeightStore

POLL_S_MIN, POLL_S_MAX = 0.05, 3600.0


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        epilog="Examples: weightstore follow /data/policy ./live; "
        "weightstore follow /data/policy ./live --once"
    )(follow)


def follow(
    store: StoreArgument,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIRECTORY", help="What the engine loads: a new place, or one followed before."
        ),
    ],
    *,
    mode: Annotated[
        Literal["latest", "active"],
        typer.Option(help="Which version: the newest, or the one that is activated."),
    ] = "latest",
    once: Annotated[bool, typer.Option("--once", help="Bring it there, and end.")] = False,
    poll: Annotated[
        float,
        typer.Option(
            min=POLL_S_MIN, max=POLL_S_MAX, help="Seconds between two looks at the store."
        ),
    ] = 1.0,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Keep a checkpoint directory at a version, in place; heals itself after any cut.

    DIRECTORY is a link. It is away while a change is written, so that a load fails instead of
    mixing versions.
    """
    with (
        WeightStore.open(store, settings=environment_settings()) as opened,
        opened.host_files(directory) as files,
        ExitStack() as at_end,
    ):
        progress = _Bars(quiet=quiet or as_json)
        at_end.callback(progress.stop)
        _tell_found(files.last_recovery, as_json=as_json)
        if once:
            report = files.refit(mode, progress=progress)
            progress.stop()
            _tell(files, report, as_json=as_json)
            return
        for seen in follow_files(
            files,
            mode,
            clock=SystemClock(),
            poll_s=poll,
            is_wanted=lambda: True,  # until it is interrupted
            progress=progress,
        ):
            progress.stop()
            if isinstance(seen, Hindrance):
                print_error(seen.error, as_json=as_json)
            else:
                _tell(files, seen, as_json=as_json)


class _Bars:
    """Bars while a whole version is written; lines of text come between."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._shown = ExitStack()
        self._reporter: BarReporter | None = None

    def __call__(self, phase: str, done_bytes: int, total_bytes: int, /) -> None:
        if self._reporter is None:
            self._reporter = self._shown.enter_context(progress_bars(quiet=self._quiet))
        self._reporter(phase, done_bytes, total_bytes)

    def stop(self) -> None:
        """Take the bars away; the next phase brings new ones."""
        self._reporter = None
        self._shown.close()


def _tell_found(found: Recovery, *, as_json: bool) -> None:
    """What an earlier process has left, where it has left something."""
    if found.version is None and not found.reason:
        return
    if as_json:
        _print_line(
            {"found": found.version, "written_again": found.is_redo, "reason": found.reason}
        )
    elif found.version is None:
        err.print(
            f"what is there is of no use: {found.reason}; the whole version follows",
            markup=False,
            soft_wrap=True,
        )
    else:
        how = "a change that was cut was written again" if found.is_redo else "nothing was cut"
        out.print(f"version {found.version} is there: {how}, every byte was looked at")


def _tell(files: HostFiles, report: RefitReport, *, as_json: bool) -> None:
    seconds = _total_s(report)
    if as_json:
        _print_line(
            {
                "version": report.target,
                "base": report.base,
                "way": report.way.value,
                "reason": report.reason,
                "wire_bytes": report.size_bytes.wire,
                "applied_bytes": report.size_bytes.applied,
                "applied_count": report.applied_count,
                "away_s": round(report.pause_s, 6),
                "total_s": round(seconds, 6),
                "directory": str(files.directory),
            }
        )
        return
    line = (
        f"version {report.target}  {report.way.value}  {size_text(report.size_bytes.wire)} read  "
        f"{seconds:.3f} s"
    )
    if report.pause_s:
        line += f", the link was away for {report.pause_s:.3f} s"
    out.print(line, soft_wrap=True)


def _print_line(value: dict[str, object]) -> None:
    """One document a line, out at once: whoever reads them waits for them."""
    sys.stdout.write(json.dumps(value, sort_keys=True) + "\n")
    sys.stdout.flush()


def _total_s(report: RefitReport) -> float:
    """Seconds of all phases; those of the pause hold the writing."""
    inner_s = report.seconds.get(Phase.APPLY, 0.0) if report.pause_s else 0.0
    return sum(report.seconds.values()) - inner_s
