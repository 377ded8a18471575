"""Killing a fleet: at every point, again in the recovery, and at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weightstore.testing.fleet_kills.board import ANY_POINT
from weightstore.testing.fleet_kills.fleet import Fleet
from weightstore.testing.fleet_kills.judge import Judge
from weightstore.testing.fleet_kills.outcome import healed_by, phase_of, seat_kind, seen_of
from weightstore.testing.fleet_kills.points import IDLE
from weightstore.testing.fleet_kills.table import Fault, Table

ROUND_COUNT_MAX = 5
"""A doomed process that outlives so many rounds is let live."""
REHEARSAL_COUNT = 3
RECOVERY_POINT_COUNT = 120
"""A process that starts passes about so many points until it is where the others are."""
RANDOM_DELAY_US_MAX = 250_000
IDLE_PHASES = (IDLE, "look at the log", "hear", "take back")
"""Phases that go on for ever; a few kills in them do."""

IN_VAIN = "withdraw member"
"""The phase that is there only when a newer version replaces what is staged."""


@dataclass(frozen=True, slots=True)
class Case:
    """One death that is tried.

    Attributes:
        seat: Whose.
        point: Where.
        number: At which passing of it.
    """

    seat: str
    point: str
    number: int


class Campaign:
    """Kills the processes of one fleet, one after the other, and lets each heal.

    Args:
        fleet: It.
        seed: For what is random.

    Attributes:
        table: What came of it.
        judge: Has looked at everything that was served.
    """

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.table = Table()
        self.judge = Judge(fleet)
        self._fleet = fleet
        self._rng = np.random.default_rng(seed)

    def cases(self, seats: Sequence[str]) -> Iterator[Case]:
        """Every point that processes pass in a round: its first, second and last passing."""
        fleet = self._fleet
        for seat in seats:
            fleet.board.spare(seat)
        for number in range(REHEARSAL_COUNT):
            fleet.next_round(is_double=number == 1)
            fleet.settle()
        marks = fleet.marks()
        for seat in seats:
            fleet.board.spare(seat)
        fleet.next_round()
        fleet.settle()
        # A thread may stand still between the point that it counts and what it says of it.
        fleet.until(
            lambda: all(fleet.scrolls[seat].of("counted", first=marks[seat]) for seat in seats),
            "all say what they have counted",
        )
        for seat in seats:
            counted = fleet.scrolls[seat].of("counted", first=marks[seat])[0]
            for point, total in sorted(counted.rest[0].items()):
                if point != ANY_POINT:
                    yield from _passings(seat, point, total)

    def die(self, case: Case, *, again: bool) -> None:
        """Let a process die at a point while a version is published; and perhaps once more.

        Args:
            case: Where.
            again: Its successor dies too, at a random point of its start.
        """
        fleet = self._fleet
        marks = fleet.marks()
        fleet.board.doom(case.seat, case.point, case.number)
        for _ in range(ROUND_COUNT_MAX):
            fleet.next_round(is_double=case.point.startswith(IN_VAIN))
            fleet.until(lambda: not fleet.behind(), "the round ends", doomed=case.seat)
            if fleet.has_ended(case.seat):
                break
        else:
            self._spare(case.seat)
        if fleet.has_ended(case.seat):
            self._heal(case.seat, phase_of(case.point), marks, again=again)

    def die_at_random(self, seat: str, *, again: bool) -> None:
        """Kill a process from outside, at any moment of a round."""
        fleet = self._fleet
        marks = fleet.marks()
        fleet.next_round()
        delay_s = int(self._rng.integers(RANDOM_DELAY_US_MAX)) / 1e6
        fleet.pause(delay_s)
        fleet.kill(seat)
        self._heal(seat, "at random", marks, again=again)

    def _heal(self, seat: str, phase: str, marks: dict[str, int], *, again: bool) -> None:
        fleet = self._fleet
        process = fleet.bury(seat)
        seen = seen_of(fleet, seat, process)
        if again:
            fleet.board.doom(seat, ANY_POINT, 1 + int(self._rng.integers(RECOVERY_POINT_COUNT)))
        else:
            fleet.board.spare(seat)
        fleet.start(seat)
        if again:
            self._die_again(seat)
        fleet.settle()
        fleet.forget_dead()
        self.judge.look()
        healed = healed_by(fleet, seat, marks)
        self.table.add(Fault(seat_kind(seat), phase, seen, healed))

    def _die_again(self, seat: str) -> None:
        """Let the successor die at its start, if it comes to that point."""
        fleet = self._fleet
        fleet.until(lambda: not fleet.behind(), "the successor heals", doomed=seat)
        if not fleet.has_ended(seat):
            self._spare(seat)
        if fleet.has_ended(seat):
            process = fleet.bury(seat)
            self.table.add(
                Fault(
                    seat_kind(seat),
                    "its start, after another kill",
                    seen_of(fleet, seat, process),
                    "the next start",
                )
            )
            fleet.board.spare(seat)
            fleet.start(seat)

    def _spare(self, seat: str) -> None:
        """Let a process live, and wait until it has taken note, or has died just before."""
        fleet = self._fleet
        first = len(fleet.scrolls[seat].said)
        fleet.board.spare(seat)
        fleet.until(
            lambda: bool(fleet.scrolls[seat].of("counted", first=first)), "a reprieve", doomed=seat
        )


def chosen(cases: Sequence[Case], count: int) -> list[Case]:
    """So many cases, evenly of all; seats, phases and passings mixed."""
    if count >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // count] for index in range(count)]


def run(
    fleet: Fleet, seats: Sequence[str], *, case_count: int, random_count: int, seed: int
) -> Campaign:
    """Kill processes of some seats so often, and look at everything.

    Args:
        fleet: It.
        seats: Whose.
        case_count: Kills at points, evenly of all there are; every third heals twice.
        random_count: Kills at random moments, of any seat among them.
        seed: For what is random.
    """
    campaign = Campaign(fleet, seed)
    cases = list(campaign.cases(seats))
    for number, case in enumerate(chosen(cases, case_count)):
        campaign.die(case, again=number % 3 == 0)
    for number in range(random_count):
        campaign.die_at_random(seats[number % len(seats)], again=number % 3 == 1)
    campaign.judge.end()
    return campaign


def _passings(seat: str, point: str, total: int) -> Iterator[Case]:
    numbers = {1, 2, max(1, total // REHEARSAL_COUNT)}
    if point.partition(":")[0] in IDLE_PHASES:
        numbers = {2}
    for number in sorted(numbers):
        yield Case(seat, point, number)
