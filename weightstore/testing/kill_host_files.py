"""What the children of a `KillServer` do to a directory that is followed: `out/live`.

As for the other operations: doing it again is its recovery. What each version's files are is in
`given`, by its number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from weightstore.testing.kill_operations import RUN, Operation, Say, opened, weights_of

LINK = "live"
FULL_FORM_AT = 4
VERSION_COUNT = 5


def _nothing(*_words: object) -> None:
    """Nobody listens."""


def _follow(place: Path, say: Say, wanted: tuple[int, ...]) -> None:
    with opened(place) as store, store.host_files(place / "out" / LINK) as files:
        for version in wanted:
            files.refit(version)
            say("ack", LINK, version)
        assert files.refit(wanted[-1]).target == wanted[-1]


def _prepare(place: Path, _say: Say = _nothing, *, at: int | None) -> None:
    """Five versions, the first and the fourth in full, and a directory at one of them."""
    for name in ("given", "out"):
        (place / name).mkdir(parents=True)
    with opened(place, create=True) as store:
        for step in range(1, VERSION_COUNT + 1):
            store.put_step(step, weights_of(step), run=RUN, anchor=step == FULL_FORM_AT)
            store.export(step, place / "given" / str(step))
    if at is not None:
        _follow(place, _nothing, (at,))


def _operation(at: int | None, *wanted: int) -> Operation:
    run: Callable[[Path, Say], None] = partial(_follow, wanted=wanted)
    acknowledged = tuple((LINK, version) for version in wanted)
    steps = tuple(range(1, VERSION_COUNT + 1))
    return Operation(partial(_prepare, at=at), run, steps, acknowledged)


FOLLOWING = {
    "follow into a new directory": _operation(None, 5),
    "follow a change": _operation(4, 5),
    "follow a chain": _operation(1, 3, 5),
    "follow back": _operation(5, 4),
}


def warm_up_following() -> None:
    """Import and run once whatever these operations need, so that children need not."""
    with tempfile.TemporaryDirectory() as folder:
        for number, operation in enumerate(FOLLOWING.values()):
            place = Path(folder) / str(number)
            operation.prepare(place, _nothing)
            operation.run(place, _nothing)
