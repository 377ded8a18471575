"""What the children of a `KillServer` do as receivers, and as the trainer that they follow.

Live memory dies with its process, as on a device; so each life begins empty. What a child
serves it says with a hash of all bits, while the gate holds them still.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import NotReadyError
from weightstore.layout.tensors import Units
from weightstore.receiver.follower import Follower
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.store import WeightStore
from weightstore.testing.kill_operations import RUN, Operation, Say, opened, weights_of

ACTIVE = ReceiverSettings(
    mode="active", max_staleness_s=60.0, poll_s=0.001, stage_hold_s=0.0, heartbeat_s=0.0
)
FULL_FORM_AT = 4
VERSION_COUNT = 5
FIRST_ACTIVE = 2
PUBLISHED_COUNT = 4
STEP_COUNT = 150


def bits_sha256(units: Mapping[str, Units]) -> str:
    """A hash of all bits, by name."""
    found = hashlib.sha256()
    for name in sorted(units):
        found.update(name.encode())
        found.update(units[name].tobytes())
    return found.hexdigest()


def sha256_of_step(step: int) -> str:
    """What whoever serves the version of a step must say."""
    return bits_sha256({name: _units(array) for name, array in weights_of(step).items()})


class Rollout:
    """A receiver of empty memory that follows, and says what it serves.

    Args:
        store: It follows this.
        say: Tells the parent.
    """

    def __init__(self, store: WeightStore, say: Say) -> None:
        self._say = say
        self._said: int | None = None
        self.units = {name: _units(array) * 0 for name, array in weights_of(1).items()}
        self.receiver: Receiver = store.receiver(self.units, settings=ACTIVE)
        self.follower: Follower = self.receiver.follow()

    def step(self) -> int | None:
        """Follow one step, and say what is served if that is news."""
        self.follower.step()
        status = self.receiver.status()
        try:
            with self.receiver.serving() as version:
                sha256 = bits_sha256(self.units)
        except NotReadyError:
            return None
        if version != self._said:
            self._say("served", version, status.active, status.activate_slot, sha256)
            self._said = version
        return version


def _units(array: NDArray[Any]) -> Units:
    flat: Units = np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
    return flat


def _nothing(*_words: object) -> None:
    """Nobody listens."""


def _prepare(place: Path, _say: Say = _nothing) -> None:
    """Five versions, the first and the fourth in full; the second is active."""
    for name in ("given", "out"):
        (place / name).mkdir(parents=True)
    with opened(place, create=True) as store:
        for step in range(1, VERSION_COUNT + 1):
            store.put_step(step, weights_of(step), run=RUN, anchor=step == FULL_FORM_AT)
        store.activate(FIRST_ACTIVE, timeout_s=0.0)


def _receive(place: Path, say: Say) -> None:
    """Serve what is active, then two more versions that this process activates itself."""
    with opened(place) as store:
        rollout = Rollout(store, say)
        for _ in range(2):
            rollout.step()
        for version in (3, 5):
            store.activate(version, timeout_s=0.0)
            say("ack", "active", version)
            for _ in range(2):
                rollout.step()
            assert rollout.step() == version
        rollout.follower.close()


def _publish(place: Path, say: Say) -> None:
    """Put a few versions after the newest, and activate each."""
    with opened(place) as store:
        newest = store.state().newest or 0
        for step in range(newest + 1, newest + 1 + PUBLISHED_COUNT):
            say("ack", step, store.put_step(step, weights_of(step), run=RUN))
            store.activate(step, timeout_s=0.05)
            say("active", step)


def _follow(place: Path, say: Say) -> None:
    with opened(place) as store:
        rollout = Rollout(store, say)
        for _ in range(STEP_COUNT):
            rollout.step()
        rollout.follower.close()


def _operation(run: Callable[[Path, Say], None], *acknowledged: tuple[object, ...]) -> Operation:
    return Operation(_prepare, run, tuple(range(1, VERSION_COUNT + 1)), acknowledged)


RECEIVING = {
    "receive": _operation(_receive, ("active", 3), ("active", 5)),
    "publish": _operation(_publish),
    "follow": _operation(_follow),
}


def warm_up_receiving() -> None:
    """Import and run once whatever these operations need, so that children need not."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "place"
        _prepare(place)
        _receive(place, _nothing)
        _publish(place, _nothing)
