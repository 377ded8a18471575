"""A fleet on virtual time comes through every seed; without a safety step some seed breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from weightstore.testing import totals
from weightstore.testing.simulation import __main__ as command
from weightstore.testing.simulation import mutations
from weightstore.testing.simulation.mutations import Removed, caught
from weightstore.testing.simulation.run import Outcome, simulate

SHORT_COUNT, SHORT_PARTS = 100, 4
LONG_FIRST, LONG_COUNT, LONG_PARTS = 10_000, 2_000, 16
SEARCH_COUNT = 300
"""Seeds in which a removed step must be noticed; most are in the first ten."""
REPLAYED = 20
EVERYTHING = (
    "activations",
    "agent_packs",
    "cut_writes",
    "delayed",
    "killed",
    "invalidated",
    "lost_answer",
    "lost_request",
    "outage",
    "puts",
    "refused",
    "repeated",
    "requests",
    "retires",
    "rewinds",
    "served",
    "short_listing",
    "slow_answer",
    "stall",
    "unavailable",
    "waits",
)
SELDOM = ("agent_distrusted", "agent_killed", "fenced", "wrong_segments")


def run_seeds(seeds: range) -> Counter[str]:
    """Every seed comes to its end with nothing broken; one line replays any that does not."""
    broken, counts = [], Counter[str]()
    for seed in seeds:
        found = simulate(seed)
        counts.update(found.counts)
        if found.broken:
            broken.append(f"python -m weightstore.testing.simulation --seed {seed}: {found.broken}")
    totals.add("simulation_seeds", len(seeds))
    assert not broken, "\n".join(broken)
    return counts


@pytest.mark.parametrize("part", range(SHORT_PARTS))
def test_a_fleet_comes_through_a_hundred_seeds_with_everything_that_goes_wrong(part: int) -> None:
    counts = run_seeds(range(part, SHORT_COUNT, SHORT_PARTS))
    assert {name for name in EVERYTHING if not counts[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_a_fleet_comes_through_two_thousand_seeds(part: int) -> None:
    counts = run_seeds(range(LONG_FIRST + part, LONG_FIRST + LONG_COUNT, LONG_PARTS))
    assert {name for name in (*EVERYTHING, *SELDOM) if not counts[name]} == set()


@pytest.mark.slow
@pytest.mark.parametrize("step", Removed, ids=lambda step: step.name.lower())
def test_a_removed_safety_step_is_noticed(step: Removed) -> None:
    found = caught(step, 0, SEARCH_COUNT)
    assert found is not None, f"no seed needs it: {step.value}"
    totals.add("mutations_caught", 1)


def test_a_safety_step_that_is_removed_at_once_is_noticed_at_once() -> None:
    """The quick one of those above, so that a run without the slow tests has one too."""
    assert caught(Removed.POLICY, 0, 20) is not None


def test_an_error_that_nobody_expected_is_not_what_a_step_protects_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A removed step is not noticed by a run that breaks in any other way."""
    broken = "1.000 s: engine#1 serves version 1, has seen version 2, and may be 0 behind"
    ends: list[str] = []

    def simulated(seed: int, *, weather: object) -> Outcome:
        del weather
        return Outcome(seed, tuple(ends), {}, (), 1)

    monkeypatch.setattr(mutations, "simulate", simulated)
    others = (
        f"engine#1: Traceback (most recent call last):\nRuntimeError: {broken}",
        "not over after 162.0 s",
        "engine#1 served version 1 from 1.000 s: its bits are others",
    )
    for end in others:
        ends[:] = [end]
        assert caught(Removed.POLICY, 0, 2) is None, end
    ends[:] = [*others, broken]
    found = caught(Removed.POLICY, 3, 2)
    assert found is not None
    assert found.seed == 3


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    words = [sys.executable, "-m", "weightstore.testing.simulation", "--seed", str(REPLAYED)]
    stories = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            words,
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        stories.append(done.stdout.splitlines()[:-1])
    assert stories[0] == stories[1]
    assert len(stories[0]) > 100


def test_the_command_names_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int, *, keep_story: bool) -> Outcome:
        story = ((1.0, "engine", "serves"),) if keep_story else ()
        return Outcome(seed, ("it is broken",), {"puts": 1}, story, 3)

    monkeypatch.setattr(command, "simulate", broken)
    assert command.main(["--seed", "4", "--count", "2"]) == 1
    shown = capsys.readouterr().out
    assert "seed 4: it is broken\nseed 5: it is broken\n2 seeds, 2 of them broken" in shown
    assert command.main(["--seed", "4"]) == 1
    assert "1.000  engine" in capsys.readouterr().out
