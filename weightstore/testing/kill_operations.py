"""What the children of a `KillServer` do: every operation of the facade, as a user calls it.

An operation works in a folder of its own: the store is `store`, files for it are in
`given`, and what it writes outside goes to `out`. Doing it again is its recovery.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weightstore.errors import InputRefusedError
from weightstore.settings import Limits
from weightstore.store import WeightStore
from weightstore.testing.faults import When
from weightstore.testing.kill_points import Kill, KillPoints
from weightstore.testing.trainer_lab import (
    PIECE_UNIT_COUNT,
    Weights,
    changed,
    lab_settings,
    small_weights,
)

RUN = "run"
SETTINGS = lab_settings(
    # An index from the first records on, so that its files are among what a kill meets.
    limits=Limits(piece_element_count=PIECE_UNIT_COUNT, index_miss_count=2, cached_record_count=8),
    commit_timeout_s=30.0,
    pack_size_bytes=2048,
    anchor_file_size_bytes=100_000,
    full_after_chain_ratio=1e6,
)
LOOP_STEP_COUNT = 1000
OWNER_DIES_AT = 30

Say = Callable[..., None]
"""Tells the parent a word and what belongs to it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is killed.

    Attributes:
        prepare: Makes the folder that it starts from; not killed.
        run: The operation; says `"ack"` and what was acknowledged, as soon as it was.
        steps: The step of each version in the end, from version 1.
        acknowledged: What is acknowledged by a run to the end.
    """

    prepare: Callable[[Path, Say], None]
    run: Callable[[Path, Say], None]
    steps: tuple[int, ...]
    acknowledged: tuple[tuple[object, ...], ...]


def weights_of(step: int) -> Weights:
    """What every operation puts as a step."""
    return changed(small_weights(), step)


@contextmanager
def opened(place: Path, *, create: bool = False) -> Iterator[WeightStore]:
    """The store of an operation's folder."""
    with WeightStore.open(place / "store", create=create, settings=SETTINGS) as store:
        yield store


def warm_up() -> None:
    """Import and run once whatever operations need, so that children need not."""
    with tempfile.TemporaryDirectory() as folder:
        for name, operation in OPERATIONS.items():
            if name != "loop":
                place = Path(folder) / name
                operation.prepare(place, _nothing)
                operation.run(place, _nothing)


def _nothing(*_words: object) -> None:
    """Nobody listens."""


def _nowhere(place: Path, _say: Say = _nothing) -> None:
    for name in ("given", "out"):
        (place / name).mkdir(parents=True)


def _empty(place: Path, _say: Say = _nothing) -> None:
    _nowhere(place)
    with opened(place, create=True):
        pass


def _first(place: Path, _say: Say = _nothing) -> None:
    _empty(place)
    with opened(place) as store:
        store.put_step(1, weights_of(1), run=RUN)


def _five(place: Path, _say: Say = _nothing) -> None:
    """Full versions 1 and 4, deltas between, and what reading them is to give."""
    _first(place)
    with opened(place) as store:
        for step in (2, 3, 4, 5):
            store.put_step(step, weights_of(step), run=RUN, anchor=step == 4)  # noqa: PLR2004 -- one in the middle
        store.checkout_to_file(5, place / "given" / "5.safetensors")
        store.export(4, place / "given" / "4")
        store.export(5, place / "given" / "5")


def _owned(place: Path, _say: Say = _nothing) -> None:
    """A store whose owner was killed in the middle of a put, with its claim open."""
    _first(place)
    owner = os.fork()
    if owner == 0:
        try:
            KillPoints(Kill(OWNER_DIES_AT, When.AFTER), _nothing).install()
            _attach(place, _nothing)
        finally:
            os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1])
    assert ended == -signal.SIGKILL, "the owner outlived its end"
    with opened(place) as store:
        assert store.state().owner is not None
        assert store.state().newest == 1


def _checkpoint(place: Path, _say: Say = _nothing) -> None:
    """An empty store, and a checkpoint of several files."""
    _empty(place)
    with WeightStore.open(place / "source", create=True, settings=SETTINGS) as source:
        source.put_step(0, weights_of(0), run=RUN)
        source.export(1, place / "given" / "checkpoint")


def _create(place: Path, say: Say) -> None:
    with opened(place, create=True) as store:
        say("ack", "store", store.store_id)


def _put(place: Path, say: Say, step: int, *, anchor: bool = False) -> None:
    with opened(place) as store:
        version = store.put_step(step, weights_of(step), run=RUN, anchor=anchor)
        say("ack", step, version)


def _put_two(place: Path, say: Say) -> None:
    with opened(place) as store:
        for step in (2, 3):
            say("ack", step, store.put_step(step, weights_of(step), run=RUN))


def _loop(place: Path, say: Say) -> None:
    """Put steps until killed, from the newest on; each puts the one before again."""
    with opened(place) as store:
        newest = store.state().newest or 0
        for step in range(max(newest, 1), newest + LOOP_STEP_COUNT):
            say("ack", step, store.put_step(step, weights_of(step), run=RUN))


def _import(place: Path, say: Say) -> None:
    with opened(place) as store:
        found = store.import_checkpoint(place / "given" / "checkpoint", run=RUN, step=0)
        say("ack", 0, found.version)


def _to_file(place: Path, say: Say) -> None:
    with opened(place) as store:
        with suppress(InputRefusedError):  # it is there already, whole
            store.checkout_to_file(5, place / "out" / "5.safetensors")
        say("ack", "5.safetensors")


def _export(place: Path, say: Say, version: int) -> None:
    with opened(place) as store:
        with suppress(InputRefusedError):  # it is there already, whole
            store.export(version, place / "out" / str(version))
        say("ack", str(version))


def _tag(place: Path, say: Say) -> None:
    with opened(place) as store:
        for version in (2, 3):
            store.tag("best", version, owner="me")
            say("ack", "tag", version)


def _retire(place: Path, say: Say) -> None:
    with opened(place) as store:
        store.retire()
        say("ack", "retired")


def _attach(place: Path, say: Say) -> None:
    baseline = place / "out" / "baseline"
    with opened(place) as store, store.trainer(RUN, baseline_path=baseline) as trainer:
        say("ack", "attached")
        say("ack", 2, trainer.put_step(2, weights_of(2)).result())


def _verify(place: Path, say: Say) -> None:
    with opened(place) as store:
        for version in (4, 5):
            store.verify(version, scan=True)
        say("ack", "verified")


OPERATIONS = {
    "create": Operation(_nowhere, _create, (), ()),
    "first put": Operation(_empty, lambda place, say: _put(place, say, 1), (1,), ((1, 1),)),
    "delta": Operation(_first, lambda place, say: _put(place, say, 2), (1, 2), ((2, 2),)),
    "delta and full form": Operation(
        _first, lambda place, say: _put(place, say, 2, anchor=True), (1, 2), ((2, 2),)
    ),
    "two puts": Operation(_first, _put_two, (1, 2, 3), ((2, 2), (3, 3))),
    "loop": Operation(_first, _loop, (), ()),
    "import": Operation(_checkpoint, _import, (0,), ((0, 1),)),
    "checkout to file": Operation(_five, _to_file, (1, 2, 3, 4, 5), (("5.safetensors",),)),
    "export of a full form": Operation(
        _five, lambda place, say: _export(place, say, 4), (1, 2, 3, 4, 5), (("4",),)
    ),
    "export of a delta": Operation(
        _five, lambda place, say: _export(place, say, 5), (1, 2, 3, 4, 5), (("5",),)
    ),
    "tag": Operation(_five, _tag, (1, 2, 3, 4, 5), (("tag", 2), ("tag", 3))),
    "retire": Operation(_five, _retire, (1, 2, 3, 4, 5), (("retired",),)),
    "attach": Operation(_owned, _attach, (1, 2), (("attached",), (2, 2))),
    "verify": Operation(_five, _verify, (1, 2, 3, 4, 5), (("verified",),)),
}
