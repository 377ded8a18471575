"""The `weightstore` command. `main` is its entry point, and loads the rest of it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weightstore.cli.exit_codes import ExitCode

__all__ = ["main"]

_EARLY_TEXT = "interrupted; nothing was begun\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a code of `ExitCode`."""
    try:
        with _ending_at_once():
            from weightstore.cli.app import main as run  # noqa: PLC0415 -- guarded from Ctrl-C
        run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(ExitCode.INTERRUPTED)


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process where it stands, as long as there is nothing to tidy up.

    An exception would come out of the middle of an import, which may take it for a failure
    of its own, and native code may drop it.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        # Whoever ignores or handles interrupts goes on doing so.
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signal: int, _frame: object) -> None:
    os.write(2, _EARLY_TEXT.encode())
    os._exit(ExitCode.INTERRUPTED)
