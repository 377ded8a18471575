"""What judges a fleet notices each broken promise, and what dooms its processes counts right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weightstore.testing.fleet_kills.board import ANY_POINT, Board, Doom
from weightstore.testing.fleet_kills.campaign import Case, chosen
from weightstore.testing.fleet_kills.judge import Judge
from weightstore.testing.fleet_kills.outcome import phase_of
from weightstore.testing.fleet_kills.scrolls import Scroll
from weightstore.testing.fleet_kills.story import (
    MAX_STALENESS_S,
    RANKS,
    RECEIVERS,
    SEATS,
    TRAINER,
    expected_sha256,
)
from weightstore.testing.fleet_kills.table import Fault, Table

RECEIVER = RECEIVERS[0]


class WrittenFleet:
    """What a fleet has written down, without a fleet."""

    goal = 2

    def __init__(self, place: Path) -> None:
        self._place = place
        self.scrolls = {seat: Scroll(place / seat) for seat in SEATS}

    def write(self, seat: str, when_s: float, *words: object) -> None:
        """Add a line."""
        with (self._place / seat).open("a", encoding="ascii") as file:
            file.write(json.dumps([1, when_s, *words]) + "\n")

    def serve(self, seat: str, start_s: float, version: int, **wrong: str) -> None:
        """Add a block of one tenth of a second."""
        sha256 = wrong.get("sha256", expected_sha256(version, seat))
        state = wrong.get("state", "Whole")
        times_s = (start_s, start_s + 0.1)
        self.write(seat, start_s, "served", version, sha256, *times_s, state, start_s)

    def look(self) -> Judge:
        """Judge all of it."""
        for scroll in self.scrolls.values():
            scroll.read_on()
        judge = Judge(self)  # type: ignore[arg-type]
        judge.look()
        return judge


@pytest.fixture
def fleet(tmp_path: Path) -> WrittenFleet:
    found = WrittenFleet(tmp_path)
    found.write(TRAINER, 10.0, "active", 2, 7, 3, 3)
    return found


def test_what_keeps_every_promise_is_let_pass(fleet: WrittenFleet) -> None:
    for seat in (RECEIVER, *RANKS):
        fleet.serve(seat, 9.0, 1)
        fleet.serve(seat, 10.2, 2)
    assert fleet.look().block_count == 6


OTHER_BITS = expected_sha256(2, RECEIVER)
BROKEN: dict[str, list[tuple[str, float, int, dict[str, str]]]] = {
    "other bits": [(RECEIVER, 9.0, 1, {"sha256": OTHER_BITS})],
    "a mixture": [(RECEIVER, 9.0, 1, {"sha256": "00"})],
    "dirty": [(RECEIVER, 9.0, 1, {"state": "Dirty"})],
    "applying": [(RANKS[0], 9.0, 1, {"state": "Applying"})],
    "a version that was never active": [(RECEIVER, 11.0, 3, {})],
    "stale": [(RECEIVER, 10.1 + MAX_STALENESS_S, 1, {})],
    "back behind an activation": [(RECEIVER, 10.1, 2, {}), (RECEIVER, 10.3, 1, {})],
    "two versions on two ranks": [(RANKS[0], 10.1, 2, {}), (RANKS[1], 10.15, 1, {})],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_noticed(fleet: WrittenFleet, name: str) -> None:
    for seat, start_s, version, wrong in BROKEN[name]:
        fleet.serve(seat, start_s, version, **wrong)
    with pytest.raises(AssertionError):
        fleet.look()


def test_a_line_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    scroll = Scroll(tmp_path / "events")
    scroll.read_on()
    (tmp_path / "events").write_text('[1, 0.5, "started"]\n[1, 0.6, "ser')
    scroll.read_on()
    assert [one.word for one in scroll.said] == ["started"]
    with (tmp_path / "events").open("a") as file:
        file.write('ved", 3]\n')
    scroll.read_on()
    assert [(one.word, one.rest) for one in scroll.said] == [("started", ()), ("served", (3,))]


def test_a_process_dies_at_the_passing_it_was_doomed_to(tmp_path: Path) -> None:
    board = Board.make(tmp_path / "board")
    board.goal = 5
    other = Board(tmp_path / "board")
    assert (other.goal, other.is_over) == (5, False)
    doom = Doom(other, TRAINER)
    assert doom.passes("put: before") == (False, None)
    board.doom(TRAINER, "put: before", 2)
    is_end, counted = doom.passes("put: before")
    assert (is_end, counted) == (False, {"put: before": 1, ANY_POINT: 1})
    assert doom.passes("put: after") == (False, None)
    assert doom.passes("put: before") == (True, None)
    board.doom(TRAINER, ANY_POINT, 1)
    assert doom.passes("anything")[0]
    board.spare(TRAINER)
    assert not doom.passes("put: before")[0]
    board.end()
    assert (other.goal, other.is_over) == (5, True)
    assert not Doom(other, RECEIVER).passes("put: before")[0], "the doom is another seat's"


def test_a_table_adds_up_what_had_the_same_outcome() -> None:
    table = Table()
    for phase in ("apply", "launch", "apply"):
        table.add(Fault("receiver", phase, "its object: whole", "full"))
    table.add(Fault("trainer", "put", "no new version", "the same step"))
    assert table.kill_count == 4
    assert table.markdown().splitlines()[2:] == [
        "| receiver | apply, launch | its object: whole | full | yes | 3 |",
        "| trainer | put | no new version | the same step | yes | 1 |",
    ]


def test_cases_are_chosen_evenly_and_phases_are_named() -> None:
    cases = [Case(TRAINER, str(number), 1) for number in range(10)]
    assert [case.point for case in chosen(cases, 3)] == ["0", "3", "6"]
    assert chosen(cases, 100) == cases
    assert phase_of("round: apply: before") == "round: apply"
    assert phase_of("put: after fsync") == "put (storage)"
