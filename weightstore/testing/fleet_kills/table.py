"""What came of the kills: one row for each kind, with how many there were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from weightstore.testing import totals

TOTAL = "fleet_faults"
_HEAD = ("killed", "in", "seen by others", "healed by", "bytes equal", "kills")


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """A kind of death.

    Attributes:
        seat: Whose.
        phase: What it was doing.
        seen: What others saw of it then.
        healed: What its successor, or others, had to do.
    """

    seat: str
    phase: str
    seen: str
    healed: str


class Table:
    """Counts deaths by their kind. All bytes were equal in the end, or there is no table."""

    def __init__(self) -> None:
        self.counts: Counter[Fault] = Counter()

    @property
    def kill_count(self) -> int:
        """Deaths."""
        return self.counts.total()

    def add(self, fault: Fault, count: int = 1) -> None:
        """Count a death."""
        self.counts[fault] += count

    def markdown(self) -> str:
        """As in the documentation: phases with the same outcome share a row."""
        rows: dict[tuple[str, str, str], tuple[list[str], int]] = {}
        for fault, count in sorted(self.counts.items()):
            phases, sum_ = rows.setdefault((fault.seat, fault.seen, fault.healed), ([], 0))
            if fault.phase not in phases:
                phases.append(fault.phase)
            rows[fault.seat, fault.seen, fault.healed] = (phases, sum_ + count)
        lines = [_line(_HEAD), "|---" * len(_HEAD) + "|"]
        for (seat, seen, healed), (phases, count) in rows.items():
            lines.append(_line((seat, ", ".join(phases), seen, healed, "yes", str(count))))
        return "\n".join(lines) + "\n"

    def save(self) -> None:
        """Add it to the totals of the checkout.

        After a crash: some of it is counted; nothing twice.
        """
        for fault, count in self.counts.items():
            kind = f"{fault.seat}, {fault.phase}, {fault.seen}, {fault.healed}"
            totals.add(f"{TOTAL}: {kind}", count)
        totals.add(TOTAL, self.kill_count)
        totals.add("sigkills", self.kill_count)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
