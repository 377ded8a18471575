"""Commands that run in this process."""

from __future__ import annotations

from functools import partial

import pytest

from weightstore.testing.command_lab import Run, run_command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""
    return partial(run_command, capsys)
