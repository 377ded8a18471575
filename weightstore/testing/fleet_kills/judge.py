"""What must be true of everything that a fleet has written down, whoever was killed when."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from weightstore.format.member import Member, MemberVersion, members_sha256
from weightstore.format.records import ActivateRecord, VersionRecord
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.activation import has_staged
from weightstore.history.log import Log
from weightstore.testing.fleet_kills.fleet import Fleet
from weightstore.testing.fleet_kills.scrolls import Said
from weightstore.testing.fleet_kills.story import (
    MAX_STALENESS_S,
    MEMBERS,
    RANKS,
    RUN,
    SERVING,
    SETTINGS,
    TRAINER,
    expected_sha256,
    weights_of,
)
from weightstore.testing.history_check import (
    Acknowledged,
    History,
    bits_sha256_of,
    check_history,
)
from weightstore.testing.trainer_lab import bits_of


class Judge:
    """Holds what was served against what was committed and activated.

    Args:
        fleet: It.

    Attributes:
        block_count: Serving blocks that were looked at.
        counted_count: Activations whose count was looked at.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.block_count = 0
        self.counted_count = 0
        self._fleet = fleet
        self._firsts = dict.fromkeys(SERVING, 0)
        self._last: dict[str, Said] = {}
        self._spans: dict[int, tuple[float, float]] = {}

    def look(self) -> None:
        """Look at every block since the last look.

        Raises:
            AssertionError: one of them breaks a promise.
        """
        fleet = self._fleet
        until_s = self._activated_s()
        for seat in SERVING:
            said = fleet.scrolls[seat].of("served", first=self._firsts[seat])
            self._firsts[seat] = len(fleet.scrolls[seat].said)
            self.block_count += len(said)
            for one in said:
                self._check_block(seat, one, until_s)
            # Activations name ever later versions: these in order are those in order.
            before = self._last.get(seat)
            line = said if before is None else [before, *said]
            for earlier, later in pairwise(line):
                assert earlier.rest[0] <= later.rest[0], (seat, earlier, later)
            if seat in RANKS:
                self._add_spans(said)
            if said:
                self._last[seat] = said[-1]
        self._check_engines()

    def end(self) -> None:
        """Look at the store, and at what each activation has counted.

        Raises:
            AssertionError: the history is broken, or an activation has counted what was not.
        """
        self.look()
        acknowledged = tuple(
            Acknowledged(
                version=int(one.rest[1]),
                run=RUN,
                step=int(one.rest[0]),
                bits_sha256=bits_sha256_of(bits_of(weights_of(int(one.rest[0])))),
            )
            for one in self._fleet.scrolls[TRAINER].of("put")
        )
        check_history(
            self._fleet.blobs,
            History(acknowledged=acknowledged),
            deep=True,
            limits=SETTINGS.limits,
        )
        self._check_counts()

    def _add_spans(self, said: list[Said]) -> None:
        for one in said:
            version, _, start_s, end_s, *_ = one.rest
            first_s, last_s = self._spans.get(version, (start_s, end_s))
            self._spans[version] = (min(first_s, start_s), max(last_s, end_s))

    def _check_block(self, seat: str, one: Said, until_s: dict[int, float]) -> None:
        version, sha256, _, _, state, asked_s = one.rest
        assert state == "Whole", (seat, one)
        assert sha256 == expected_sha256(version, seat), (seat, one)
        assert version in until_s or version == self._fleet.goal, (seat, one)
        next_s = min((when_s for other, when_s in until_s.items() if other > version), default=None)
        # Whoever has not heard of the next activation begins no block after that time; one that
        # has begun is cut by nobody, however long the machine stands still in it.
        assert next_s is None or asked_s <= next_s + MAX_STALENESS_S, (seat, one, next_s)

    def _activated_s(self) -> dict[int, float]:
        """By version, a time at which the record of its activation was there."""
        found = {1: 0.0}
        for one in self._fleet.scrolls[TRAINER].of("active"):
            found.setdefault(int(one.rest[0]), one.when_s)
        # A trainer that died before it could say so left it to the next, which went on after it.
        for one in self._fleet.scrolls[TRAINER].of("reached"):
            found.setdefault(int(one.rest[0]), one.when_s)
        return found

    def _check_engines(self) -> None:
        """Two ranks of one engine never serve two versions at once."""
        for (before, (_, end_s)), (after, (start_s, _)) in pairwise(sorted(self._spans.items())):
            assert end_s <= start_s, f"{after} was served while a rank still served {before}"

    def _check_counts(self) -> None:
        """An activation counted those alone whose object then said staged."""
        objects = {
            (one.rest[0], one.rest[1]): Member.model_validate_json(one.rest[2])
            for seat in MEMBERS
            for one in self._fleet.scrolls[seat].of("member")
        }
        listings = {
            members_sha256(members): members
            for members in (
                [objects[member_id, counter] for member_id, counter in one.rest[0]]
                for one in self._fleet.scrolls[TRAINER].of("listed")
            )
        }
        digests: dict[int, MemberVersion] = {}
        for record in self._records():
            if isinstance(record, VersionRecord):
                digests[record.version] = MemberVersion(
                    version=record.version, digest=record.digest
                )
            elif record.version > 1:
                listed = listings[record.members_sha256]
                staged = [one for one in listed if has_staged(one, digests[record.version])]
                assert len(listed) == record.listed_count, record
                assert len(staged) == record.staged_count, record
                self.counted_count += 1

    def _records(self) -> Iterator[VersionRecord | ActivateRecord]:
        log = Log(self._fleet.blobs, SETTINGS.limits)
        for step in log.steps(EMPTY_PREFIX):
            if isinstance(step.stored.record, VersionRecord | ActivateRecord):
                yield step.stored.record
