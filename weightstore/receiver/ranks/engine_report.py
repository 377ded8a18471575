"""What one refit of an engine did, as a whole and on each rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from weightstore.ids import VersionId
from weightstore.receiver.ranks.messages import Answer
from weightstore.receiver.reports import ByteCounts, spent_text

LOGGER = logging.getLogger("weightstore.receiver")


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank did.

    Attributes:
        rank: Which.
        way: How the version came there: a `Way` of live state.
        reason: Why it was no staged change; empty otherwise.
        is_redo: A change that had been cut was written again.
        applied_count: Units that were written.
        launch_count: Writes that live memory saw.
        wire_bytes: Bytes of the objects that were read.
        decoded_bytes: Bytes of positions and values of changes in them.
        applied_bytes: Bytes written to live memory.
        skipped_bytes: Bytes of changed units that do not live there.
        full_bytes: Bytes of everything that lives there.
        seconds: By name of the phase; those of `Phase`.
    """

    rank: int
    way: str
    reason: str = ""
    is_redo: bool = False
    applied_count: int = 0
    launch_count: int = 0
    wire_bytes: int = 0
    decoded_bytes: int = 0
    applied_bytes: int = 0
    skipped_bytes: int = 0
    full_bytes: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What one refit of an engine did.

    Attributes:
        base: The version that was open on every rank before; None where none was.
        target: The version that is open on every rank now.
        ranks: By rank; empty if nothing had to be done.
        is_redo: A round that had failed was finished.
        pause_s: From the order to close the gates until every rank has opened its own.
        stage_s: Before that, while the ranks served.
    """

    base: VersionId | None
    target: VersionId
    ranks: tuple[RankReport, ...] = ()
    is_redo: bool = False
    pause_s: float = 0.0
    stage_s: float = 0.0


def rank_reports(answers: Sequence[Answer]) -> tuple[RankReport, ...]:
    """What the last answers of a round say, by rank."""
    return tuple(_report(answer) for answer in answers)


def logged(report: EngineReport) -> EngineReport:
    """Log a refit of an engine, as a receiver does its own, and give the report back."""
    LOGGER.info(
        "version %s -> %s by %s%s on %d ranks, stage %.1f ms, pause %.1f ms; of the slowest rank "
        "and of all: %s",
        report.base,
        report.target,
        ", ".join(sorted({rank.way for rank in report.ranks})),
        " again" if report.is_redo else "",
        len(report.ranks),
        1000 * report.stage_s,
        1000 * report.pause_s,
        spent_text(_slowest(report.ranks), _all_bytes(report.ranks)),
    )
    return report


def _slowest(ranks: Sequence[RankReport]) -> dict[str, float]:
    """Of each phase the longest time of any rank."""
    found: dict[str, float] = {}
    for rank in ranks:
        for name, seconds in rank.seconds.items():
            found[name] = max(found.get(name, 0.0), seconds)
    return found


def _all_bytes(ranks: Sequence[RankReport]) -> ByteCounts:
    return ByteCounts(
        wire=sum(rank.wire_bytes for rank in ranks),
        decoded=sum(rank.decoded_bytes for rank in ranks),
        applied=sum(rank.applied_bytes for rank in ranks),
        skipped=sum(rank.skipped_bytes for rank in ranks),
        full=sum(rank.full_bytes for rank in ranks),
    )


def _report(answer: Answer) -> RankReport:
    work = answer.work
    if work is None:
        return RankReport(answer.rank, "")
    return RankReport(
        rank=answer.rank,
        way=work.way,
        reason=work.reason,
        is_redo=work.is_redo,
        applied_count=work.applied_count,
        launch_count=work.launch_count,
        wire_bytes=work.wire_bytes,
        decoded_bytes=work.decoded_bytes,
        applied_bytes=work.applied_bytes,
        skipped_bytes=work.skipped_bytes,
        full_bytes=work.full_bytes,
        seconds={name: us / 1e6 for name, us in work.seconds_us.items()},
    )
