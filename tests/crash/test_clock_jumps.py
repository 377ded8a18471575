"""Clocks that jump by years, both ways, in the middle of everything: nothing depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import cycle
from pathlib import Path

import pytest

from weightstore.clock import SystemEntropy
from weightstore.history.log import Log
from weightstore.history.store_format import open_store
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.store.reading import Components
from weightstore.testing.history_check import Acknowledged, History, check_history
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened, weights_of
from weightstore.testing.trainer_lab import bits_of

YEAR_MS = 365 * 24 * 3600 * 1000
NOW_MS = 1_700_000_000_000
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


class JumpingClock:
    """Another year at each look; the monotonic one leaps ahead, as after a suspended night."""

    def __init__(self, *years: int) -> None:
        self._walls_ms = cycle(NOW_MS + year * YEAR_MS for year in years)
        self._monotonic_s = 0.0
        self.look_count = 0

    def monotonic_s(self) -> float:
        self._monotonic_s += 12 * 3600.0
        return self._monotonic_s

    def unix_ms(self) -> int:
        self.look_count += 1
        return next(self._walls_ms)

    def sleep(self, duration_s: float, /) -> None:
        self._monotonic_s += duration_s


def _check(place: Path, steps: list[int]) -> None:
    with opened(place) as store:
        assert [(info.version, info.step) for info in store.versions()] == [
            (version, steps[version - 1]) for version in range(len(steps), 0, -1)
        ]
        for version, step in enumerate(steps, start=1):
            host = store.checkout(version).host
            found = {name: each.units.tobytes() for name, each in host.items()}
            assert found == bits_of(weights_of(step))
        assert [(tag.name, tag.version) for tag in store.tags()] == [("best", 2)]
    history = History(
        acknowledged=tuple(
            Acknowledged(version=version, run=RUN, step=step)
            for version, step in enumerate(steps, start=1)
        )
    )
    check_history(LocalBlobStore(place / "store"), history, limits=SETTINGS.limits)


@pytest.mark.parametrize("years", [(-30, 0), (0, 60, -40), (100, 50, 0, -50)])
def test_a_clock_that_jumps_at_every_look_changes_nothing(
    folder: Path, years: tuple[int, ...]
) -> None:
    OPERATIONS["first put"].prepare(folder / "place", lambda *_: None)
    place = folder / "place"
    clock = JumpingClock(*years)

    def handle() -> WeightStore:
        blobs = LocalBlobStore(place / "store")
        store_id = open_store(blobs, Log(blobs, SETTINGS.limits))
        components = Components(blobs, clock, SystemEntropy())
        return WeightStore(components, store_id, settings=SETTINGS, cast={})

    with handle() as store:
        for step in (1, 2):
            assert store.put_step(step, weights_of(step), run=RUN) == step
        store.tag("best", 1)
        store.tag("best", 2)
    first = handle()
    assert first.put_step(3, weights_of(3), run=RUN) == 3
    with handle() as store, store.trainer(RUN, take_over=True) as trainer:
        assert trainer.put_step(4, weights_of(4), anchor=True).result() == 4
        assert trainer.put_step(4, weights_of(4)).result() == 4
    first.close()
    assert clock.look_count > 10
    _check(place, [1, 2, 3, 4])


_CHILD = """
import sys, time
from pathlib import Path
from weightstore.testing.kill_operations import RUN, opened, weights_of

place, begin = Path(sys.argv[1]), time.time()
years = set()
with opened(place) as store:
    newest = store.state().newest or 0
    for step in (newest + 1, newest + 2):
        assert store.put_step(step, weights_of(step), run=RUN) == step
        years.add(time.gmtime().tm_year)
    if newest:
        store.tag("best", 2)
print(min(years), max(years))
"""


@pytest.mark.skipif(not FAKETIME, reason="libfaketime is not installed")
@pytest.mark.parametrize("speed", [1, 100_000_000])
def test_processes_of_other_centuries_write_one_history(folder: Path, speed: int) -> None:
    """The real clocks of the process are false, the monotonic one with them, and rush."""
    OPERATIONS["first put"].prepare(folder / "place", lambda *_: None)
    for start in ("2031-06-01 00:00:00", "1975-01-01 00:00:00", "2004-02-29 12:00:00"):
        fake = {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": f"@{start} x{speed}"}
        child = subprocess.run(
            [sys.executable, "-c", _CHILD, str(folder / "place")],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **fake, "FAKETIME_DONT_RESET": "1"},
        )
        assert child.returncode == 0, child.stderr
        first, last = map(int, child.stdout.split())
        assert first >= int(start[:4])
        assert speed > 1 or last == int(start[:4])
    _check(folder / "place", [1, 2, 3, 4, 5, 6])
