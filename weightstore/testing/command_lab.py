"""The command line in this process, as a test looks at it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from weightstore.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command left behind.

    Attributes:
        code: Its exit code.
        out: What it printed.
        err: What it printed on standard error.
    """

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 -- a document
        """What it printed, as a JSON document."""
        return json.loads(self.out)


Run = Callable[..., Ran]
"""Runs a command, given as its words."""


def run_command(capsys: pytest.CaptureFixture[str], *words: object) -> Ran:
    """Run a command to its end, which is never a traceback."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    streams = capsys.readouterr()
    assert "Traceback" not in streams.out + streams.err
    code = ended.value.code
    assert code is None or isinstance(code, int)
    return Ran(int(code or 0), streams.out, streams.err)
