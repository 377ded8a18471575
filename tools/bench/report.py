"""What a bench found: rows of measured values, each beside a peer and a target, as JSON.

A ratio is always the measured value over the peer's, so a rate is held "at least" and a time
"at most". Both sides of a pair are measured in turns in one run, and the ratio is taken turn
by turn: what slows the machine for a while slows both.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from tools.bench.machine import Machine

_LARGE, _MIDDLE, _SMALL = 100, 10, 0.1


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Spread(_Model):
    """Median, least and most of `count` values."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Sum values up; at least one."""
        return cls(
            median=statistics.median(values), least=min(values), most=max(values), count=len(values)
        )

    def __str__(self) -> str:
        if self.least == self.most:
            return number(self.median)
        return f"{number(self.median)} ({number(self.least)} to {number(self.most)})"


class Side(StrEnum):
    """What a target speaks of."""

    MEASURED = "measured"
    RATIO = "ratio"


class Bound(StrEnum):
    """Which way a target holds."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


class Target(_Model):
    """A limit for the median of a value or a ratio."""

    side: Side
    bound: Bound
    limit: float

    def is_met(self, value: float) -> bool:
        """Whether a median keeps the limit."""
        return value >= self.limit if self.bound is Bound.AT_LEAST else value <= self.limit


class Row(_Model):
    """One thing that was measured.

    Attributes:
        name: What it is.
        unit: Of both values.
        measured: Ours.
        peer_name: What it is held against.
        peer: The same unit.
        ratio: Ours over the peer's, turn by turn.
        target: None for a row that only informs.
        note: What bounds it, or how it is to be read.
    """

    name: str
    unit: str
    measured: Spread
    peer_name: str = ""
    peer: Spread | None = None
    ratio: Spread | None = None
    target: Target | None = None
    note: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether there is a target, and the median does not keep it."""
        if self.target is None:
            return False
        spread = self.measured if self.target.side is Side.MEASURED else self.ratio
        assert spread is not None
        return not self.target.is_met(spread.median)

    @property
    def target_text(self) -> str:
        """The target in words, or nothing."""
        if self.target is None:
            return ""
        unit = "x" if self.target.side is Side.RATIO else f" {self.unit}"
        return f"{self.target.bound} {number(self.target.limit)}{unit}"

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing."""
        if self.target is None:
            return ""
        return "missed" if self.is_missed else "met"


class Missing(_Model):
    """A row that could not be measured, and what to do about it."""

    name: str
    reason: str


class Report(_Model):
    """Everything that one run of one bench found."""

    bench: str
    summary: str
    size: str
    load: float
    machine: Machine
    rows: tuple[Row, ...]
    missing: tuple[Missing, ...]

    @property
    def failures(self) -> list[str]:
        """One line for each missed target and each missing row."""
        missed = [
            f"{row.name}: {row.target_text}, found {row.ratio if _is_ratio(row) else row.measured}"
            for row in self.rows
            if row.is_missed
        ]
        return [*missed, *(f"{each.name}: {each.reason}" for each in self.missing)]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a report.

        Raises:
            pydantic.ValidationError: the file is no report.
        """
        return cls.model_validate_json(path.read_bytes())

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _is_ratio(row: Row) -> bool:
    return row.target is not None and row.target.side is Side.RATIO


def at_least(limit: float, *, of: Side = Side.RATIO) -> Target:
    """Make a target for a rate or a share."""
    return Target(side=of, bound=Bound.AT_LEAST, limit=limit)


def at_most(limit: float, *, of: Side = Side.RATIO) -> Target:
    """Make a target for a time or a size."""
    return Target(side=of, bound=Bound.AT_MOST, limit=limit)


def alone(
    name: str,
    unit: str,
    measured: Sequence[float],
    *,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """Make a row without a peer."""
    return Row(name=name, unit=unit, measured=Spread.of(measured), target=target, note=note)


def against(
    name: str,
    unit: str,
    measured: Sequence[float],
    peer_name: str,
    peer: Sequence[float],
    *,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """Make a row with a peer; values of one place were measured in one turn."""
    ratios = [ours / theirs for ours, theirs in zip(measured, peer, strict=True)]
    return Row(
        name=name,
        unit=unit,
        measured=Spread.of(measured),
        peer_name=peer_name,
        peer=Spread.of(peer),
        ratio=Spread.of(ratios),
        target=target,
        note=note,
    )


def number(value: float) -> str:
    """Three or four digits, without exponents where they can be avoided."""
    size = abs(value)
    if value == int(value) and size < 1e15:  # noqa: PLR2004 -- a whole number is exact below it
        return f"{int(value):,}"
    if size >= _LARGE:
        return f"{value:,.0f}"
    if size >= _MIDDLE:
        return f"{value:.1f}"
    return f"{value:.3f}" if size >= _SMALL else f"{value:.3g}"
