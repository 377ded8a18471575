"""What an examination of a store says: findings, each with what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weightstore.settings import GIB, KIB, MIB


class Severity(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Worth knowing; nothing has to be done."""
    WARNING = "warning"
    """Works, and will not for ever, or not for everybody."""
    ERROR = "error"
    """Something that is asked of the store does not work."""


_ORDER = tuple(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        severity: How much it matters.
        check: Stable name of what was looked at, such as `"log"`.
        what: What was found.
        do: What to do, with a command where there is one; empty if nothing.
    """

    severity: Severity
    check: str
    what: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Everything that an examination found, in the order in which it looked.

    Attributes:
        location: The store.
        is_deep: Whether every stored byte of every kept version was hashed.
        findings: What was found.
    """

    location: str
    is_deep: bool
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> Severity:
        """The highest severity of all findings."""
        return max((each.severity for each in self.findings), key=_ORDER.index)


def ok(check: str, what: str) -> Finding:
    """As it should be."""
    return Finding(Severity.OK, check, what)


def note(check: str, what: str, do: str = "") -> Finding:
    """Worth knowing."""
    return Finding(Severity.NOTE, check, what, do)


def warning(check: str, what: str, do: str) -> Finding:
    """Will not work for ever."""
    return Finding(Severity.WARNING, check, what, do)


def error(check: str, what: str, do: str) -> Finding:
    """Does not work."""
    return Finding(Severity.ERROR, check, what, do)


def some(things: tuple[str, ...] | list[str], *, at_most: int = 5) -> str:
    """The first things of a list, and how many more there are."""
    more = len(things) - at_most
    return ", ".join(things[:at_most]) + (f" and {more} more" if more > 0 else "")


def size_said(size_bytes: int) -> str:
    """A size in words: 12 B, 3.4 KiB, 5.6 MiB, 7.8 GiB."""
    if size_bytes < KIB:
        return f"{size_bytes} B"
    for unit, name in ((GIB, "GiB"), (MIB, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:,.1f} {name}"
    return f"{size_bytes / KIB:.1f} KiB"
