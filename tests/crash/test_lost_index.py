"""The index of a store is deleted or replaced again and again while processes use the store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from weightstore.storage.local import LocalBlobStore
from weightstore.testing.history_check import Acknowledged, History, check_history
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened

TRAINED_STEP_COUNT = 25

_TRAINER = """
import sys
from pathlib import Path
from weightstore.testing.kill_operations import RUN, opened, weights_of

with opened(Path(sys.argv[1])) as store:
    for step in range(2, 2 + int(sys.argv[2])):
        version = store.put_step(step, weights_of(step), run=RUN)
        store.tag(f"step-{step}", version)
        print(step, version, flush=True)
"""

_READER = """
import sys
from pathlib import Path
from weightstore.testing.kill_operations import opened, weights_of
from weightstore.testing.trainer_lab import bits_of

last = 0
while last < int(sys.argv[2]):
    with opened(Path(sys.argv[1])) as store:
        listed = [(info.version, info.step) for info in store.versions()]
        assert listed == [(number, number) for number in range(len(listed), 0, -1)], listed
        assert len(listed) >= last
        last = len(listed)
        for version in {1, (last + 1) // 2, last}:
            host = store.checkout(version).host
            found = {name: each.units.tobytes() for name, each in host.items()}
            assert found == bits_of(weights_of(version))
        assert [row.slot for row in store.log()][-1] == 0
    print(last, flush=True)
"""


def _child(code: str, place: Path, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(place), str(number)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _harm(index: Path, other: Path, kind: int) -> None:
    """Delete the index, or put something else in its place."""
    gone = index.with_name("gone")
    if index.is_dir():
        index.rename(gone)
        shutil.rmtree(gone)
    else:
        index.unlink(missing_ok=True)
    if kind == 1:
        shutil.copytree(other, index)
    elif kind == 2:
        index.mkdir(exist_ok=True)
        (index / "data.mdb").write_bytes(bytes(range(256)) * 64)
    elif kind == 3:
        index.touch()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_trainers_and_readers_go_on_whatever_becomes_of_the_index(folder: Path, seed: int) -> None:
    place, other = folder / "place", folder / "other"
    OPERATIONS["delta"].prepare(place, lambda *_: None)
    OPERATIONS["tag"].prepare(other, lambda *_: None)
    with opened(other) as store:
        for _ in range(3):
            assert len(list(store.log())) > 6
    assert (other / "store" / "index").is_dir()
    rng = np.random.default_rng(seed)
    trainer = _child(_TRAINER, place, TRAINED_STEP_COUNT)
    reader = _child(_READER, place, 1 + TRAINED_STEP_COUNT)
    assert trainer.stdout is not None
    acknowledged = []
    harm_count = 0
    for line in trainer.stdout:
        step, version = map(int, line.split())
        acknowledged.append(Acknowledged(version=version, run=RUN, step=step))
        # What a process makes at the same moment may be in the way; that is part of it.
        for _ in range(int(rng.integers(1, 4))):
            try:
                _harm(place / "store" / "index", other / "store" / "index", int(rng.integers(4)))
            except OSError:
                continue
            harm_count += 1
    ended = [(each.communicate(timeout=120)[1], each.returncode) for each in (trainer, reader)]
    assert ended == [("", 0), ("", 0)]
    assert len(acknowledged) == TRAINED_STEP_COUNT
    assert harm_count > TRAINED_STEP_COUNT // 2
    history = History(acknowledged=tuple(acknowledged))
    check_history(LocalBlobStore(place / "store"), history, limits=SETTINGS.limits)
