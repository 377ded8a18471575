"""The command line's frame: one app, one place where errors become messages and codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import weightstore
from weightstore.cli import (
    commands_care,
    commands_fleet,
    commands_follow,
    commands_host,
    commands_read,
    commands_write,
    demo,
)
from weightstore.cli.exit_codes import ExitCode, exit_code_of
from weightstore.cli.output import end_at_broken_pipe, err, print_error
from weightstore.errors import WeightStoreError
from weightstore.format.records import FORMAT_NUMBER


class _Commands(TyperGroup):
    """Says what an interrupt leaves behind, and notices a closed pipe before the process ends."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 -- typer does not name these types
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt as error:
            err.print(INTERRUPTED_TEXT)
            raise typer.Exit(ExitCode.INTERRUPTED) from error
        except BrokenPipeError:
            end_at_broken_pipe()
        else:
            return result


INTERRUPTED_TEXT = "interrupted; what was committed stays, the rest left nothing visible"

app = typer.Typer(
    name="weightstore",
    cls=_Commands,
    help="A transactional, versioned store for the weights of a policy that is being trained.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 refused, 4 not found, 5 conflict, 6 fenced, "
    "7 corrupt, 8 unavailable, 9 outcome unknown, 10 doctor found warnings, "
    "11 doctor found errors, 130 interrupted, 141 output closed. "
    "Example: weightstore demo",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 -- called by typer with the value
    if wanted:
        sys.stdout.write(f"weightstore {weightstore.__version__}, store format {FORMAT_NUMBER}\n")
        raise typer.Exit


@app.callback()
def _options_of_all(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and end."
        ),
    ] = False,
) -> None:
    pass


commands_write.register(app)
commands_read.register(app)
commands_care.register(app)
commands_fleet.register(app)
commands_follow.register(app)
commands_host.register(app)
demo.register(app)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a code of `ExitCode`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=words, standalone_mode=True)
    except WeightStoreError as error:
        print_error(error, as_json="--json" in words)
        sys.exit(exit_code_of(error))
    except KeyboardInterrupt:
        err.print(INTERRUPTED_TEXT)
        sys.exit(ExitCode.INTERRUPTED)
