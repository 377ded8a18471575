"""What live weights are, and what is staged for them: two values and their few transitions.

`live` says what the memory holds. `staged` says what is ready to be written over it. While
`live` is dirty and a change is staged, that change heals it: it was cut on its way in.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from weightstore.history.delta_path import VersionRef

__all__ = [
    "Applying",
    "Building",
    "Dirty",
    "Empty",
    "Live",
    "NothingStaged",
    "Ready",
    "Staged",
    "VersionRef",
    "Way",
    "Whole",
    "begin",
    "finish",
    "held_version",
    "soil",
    "why_unknown",
]


@dataclass(frozen=True, slots=True)
class Empty:
    """Nobody has said what the memory holds."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Exactly one committed version, proved by a checkout or a scan of this process."""

    ref: VersionRef


@dataclass(frozen=True, slots=True)
class Applying:
    """Between two versions.

    Attributes:
        base: Where it comes from; None where the whole version is written.
        target: Where it goes.
    """

    base: VersionRef | None
    target: VersionRef


@dataclass(frozen=True, slots=True)
class Dirty:
    """Nothing that can be proved.

    Attributes:
        reason: What happened.
    """

    reason: str


Live = Empty | Whole | Applying | Dirty


class Way(enum.Enum):
    """How a version gets into place."""

    NOTHING = "nothing"
    """It is there already."""
    CHANGE = "change"
    """A staged change is written over the units that differ."""
    STREAMED = "streamed"
    """The change does not fit the pool: it goes piece by piece into place while closed."""
    OVERWRITE = "overwrite"
    """A mixture that a cut change left is overwritten where it may differ, from the store."""
    FULL = "full"
    """The whole version is written in place."""


@dataclass(frozen=True, slots=True)
class NothingStaged:
    """Nothing is ready."""


@dataclass(frozen=True, slots=True)
class Building:
    """Something is being made ready.

    Attributes:
        target: For this version.
    """

    target: VersionRef


@dataclass(frozen=True, slots=True)
class Ready:
    """Something is ready to be applied.

    Attributes:
        base: What the memory must hold; None where anything will do.
        target: What it holds afterwards.
        way: How.
    """

    base: VersionRef | None
    target: VersionRef
    way: Way


Staged = NothingStaged | Building | Ready


def begin(live: Live, ready: Ready) -> Applying:
    """Start to write what is ready.

    A change needs its base below it, or a mixture that the same change left.
    """
    is_at_base = isinstance(live, Whole) and live.ref == ready.base
    assert ready.base is None or is_at_base or isinstance(live, Dirty), (live, ready)
    return Applying(ready.base, ready.target)


def finish(live: Live) -> Whole:
    """End what `begin` has begun."""
    assert isinstance(live, Applying), live
    return Whole(live.target)


def soil(live: Live, reason: str) -> Live:
    """Give up what is known; an empty memory stays empty."""
    return live if isinstance(live, Empty) else Dirty(reason)


def why_unknown(live: Live) -> str:
    """Why nothing is known of the live weights, in words."""
    return f"dirty: {live.reason}" if isinstance(live, Dirty) else "the receiver is empty"


def held_version(live: Live) -> VersionRef | None:
    """The version that is wholly there, or None."""
    return live.ref if isinstance(live, Whole) else None
