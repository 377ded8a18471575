"""Every check and step that a promise rests on is needed: without it, a named test turns red.

Each fsync has `test_fsyncs.py` beside this, the protocol between processes has
`tests/stateful/test_simulation.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weightstore.testing import totals
from weightstore.testing.removed_steps import OPTION, STEPS, why_not_missed

ROOT = Path(__file__).parents[2]
PLUGIN = "weightstore.testing.removed_steps"
TIMEOUT_S = 240
QUICK = ("read-back-of-records", "pack-sha256", "digest-difference-at-staging")
"""Those that a run without the slow tests has too."""


def run(base: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run tests in a process of their own, of which no outer run of pytest knows."""
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--tb", "line", "--basetemp", str(base)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        check=False,
        cwd=ROOT,
        env={name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def missed(name: str, base: Path) -> None:
    """Without the step its test fails, by what it checks itself."""
    done = run(base, "-p", PLUGIN, OPTION, name, STEPS[name].test)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not why_not_missed(done.stdout), done.stdout
    totals.add("mutations_caught", 1)


@pytest.mark.parametrize("name", QUICK)
def test_without_this_step_its_test_turns_red(name: str, tmp_path: Path) -> None:
    missed(name, tmp_path / "base")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in STEPS if name not in QUICK])
def test_without_this_step_too_its_test_turns_red(name: str, tmp_path: Path) -> None:
    missed(name, tmp_path / "base")


@pytest.mark.slow
def test_with_every_step_all_these_tests_pass(tmp_path: Path) -> None:
    tests = {step.test for step in STEPS.values()}
    done = run(tmp_path / "base", "-p", PLUGIN, *sorted(tests))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(tests)} passed in " in done.stdout, done.stdout
