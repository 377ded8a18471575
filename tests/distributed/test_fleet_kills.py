"""A fleet of real processes, killed at every point of their work, in their recovery and at random.

After each kill everybody comes to the newest active version, bit for bit; what was served
meanwhile was committed, active and whole; and no activation has counted what was not staged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.testing.fleet_kills.campaign import Campaign, run
from weightstore.testing.fleet_kills.fleet import Fleet
from weightstore.testing.fleet_kills.nest import Nest
from weightstore.testing.fleet_kills.story import AGENT, FILES, RANKS, RECEIVERS, SEATS, TRAINER

pytestmark = pytest.mark.crash

ALL_POINTS = 1000
SERVED_PER_KILL = 10


@pytest.fixture(scope="module")
def nest() -> Iterator[Nest]:
    with Nest() as running:
        yield running


def finished(campaign: Campaign, least: int) -> None:
    """Look at what was done, and add it to the totals."""
    sys.stdout.write(campaign.table.markdown())
    assert campaign.table.kill_count >= least
    assert campaign.judge.block_count > SERVED_PER_KILL * campaign.table.kill_count
    assert campaign.judge.counted_count >= least
    campaign.table.save()


@pytest.mark.timeout(300)
def test_a_fleet_heals_from_kills_of_everybody(nest: Nest, tmp_path: Path) -> None:
    with Fleet(nest, tmp_path / "fleet") as fleet:
        campaign = run(fleet, SEATS, case_count=20, random_count=7, seed=1)
        finished(campaign, 27)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seats", "least"),
    [
        ([TRAINER], 60),
        ([RECEIVERS[0]], 50),
        ([RANKS[0]], 80),
        ([RANKS[1]], 40),
        ([AGENT], 8),
        ([FILES], 50),
    ],
    ids=["trainer", "receiver", "leader", "rank", "agent", "files"],
)
def test_a_fleet_heals_from_a_kill_at_any_point(
    nest: Nest, tmp_path: Path, seats: list[str], least: int
) -> None:
    with Fleet(nest, tmp_path / "fleet") as fleet:
        finished(run(fleet, seats, case_count=ALL_POINTS, random_count=6, seed=2), least)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [3, 4])
def test_a_fleet_heals_from_kills_at_random(nest: Nest, tmp_path: Path, seed: int) -> None:
    with Fleet(nest, tmp_path / "fleet") as fleet:
        finished(run(fleet, SEATS, case_count=0, random_count=35, seed=seed), 35)
