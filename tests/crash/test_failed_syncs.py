"""An fsync that fails, at every place of every operation: what is said of it is true.

Refused means that nothing is there; unknown means that a handle opened anew finds out; and
the failed fsync is not repeated on the handle, since the kernel would answer with success.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from weightstore.errors import StoreClosedError, UnavailableError, UnknownOutcomeError
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.disk import DiskCall, FaultyDisk
from weightstore.testing.history_check import History, check_history
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened, weights_of
from weightstore.testing.store_lab import store_on
from weightstore.testing.trainer_lab import bits_of

FIVE = {version: version for version in range(1, 6)}


@dataclass(frozen=True)
class Syncing:
    """An operation in which an fsync fails.

    Attributes:
        before: The operation of `OPERATIONS` whose start it starts from.
        run: The operation on an open handle; the second argument is the place.
        is_done: Whether it is, by what a fresh reader finds.
    """

    before: str
    run: Callable[[WeightStore, Path], object]
    is_done: Callable[[WeightStore], bool]


def _put(step: int, *, anchor: bool = False) -> Syncing:
    return Syncing(
        "first put" if step == 1 else "delta",
        lambda store, _: store.put_step(step, weights_of(step), run=RUN, anchor=anchor),
        lambda store: store.state().newest == step,
    )


SYNCINGS = {
    "first put": _put(1),
    "delta": _put(2),
    "delta and full form": _put(2, anchor=True),
    "import": Syncing(
        "import",
        lambda store, place: store.import_checkpoint(
            place / "given" / "checkpoint", run=RUN, step=0
        ),
        lambda store: store.state().newest == 1,
    ),
    "tag": Syncing(
        "tag",
        lambda store, _: store.tag("best", 2),
        lambda store: [tag.name for tag in store.tags()] == ["best"],
    ),
    "retire": Syncing(
        "retire",
        lambda store, _: store.retire(),
        lambda store: [info.kept for info in store.versions()].count(True) == 2,
    ),
}


class _Fault:
    """Fails one fsync, by its number from the moment that it is armed."""

    def __init__(self, at: int) -> None:
        self.failed: DiskCall | None = None
        self.is_armed = False
        self._left = at

    def __call__(self, call: DiskCall) -> OSError | None:
        if call.name != "fsync" or not self.is_armed or self.failed is not None:
            return None
        self._left -= 1
        if self._left >= 0:
            return None
        self.failed = call
        return OSError(errno.EIO, os.strerror(errno.EIO))


def _check_whole(place: Path) -> None:
    """Every version that a reader finds is whole, and the log with them."""
    with opened(place) as store:
        for info in store.versions():
            if info.kept:
                host = store.checkout(info.version).host
                found = {name: each.units.tobytes() for name, each in host.items()}
                assert found == bits_of(weights_of(info.step))
    check_history(LocalBlobStore(place / "store"), History(), limits=SETTINGS.limits)


def _outcome(syncing: Syncing, store: WeightStore, place: Path) -> str:
    try:
        syncing.run(store, place)
    except UnknownOutcomeError:
        return "unknown"
    except UnavailableError:
        return "refused"
    return "done"


@pytest.mark.parametrize("name", SYNCINGS)
def test_a_failed_sync_is_told_and_never_repeated_on_the_handle(folder: Path, name: str) -> None:
    syncing = SYNCINGS[name]
    OPERATIONS[syncing.before].prepare(folder / "start", lambda *_: None)
    outcomes = []
    unknown_and_done = 0
    for at in count():
        place = folder / str(at)
        shutil.copytree(folder / "start", place)
        fault = _Fault(at)
        disk = FaultyDisk(before=fault)
        blobs = LocalBlobStore(place / "store", syscalls=disk.syscalls)
        dying = store_on(blobs, seed=at, settings=SETTINGS)
        fault.is_armed = True
        outcome = _outcome(syncing, dying, place)
        if fault.failed is None:
            assert outcome == "done"
            break
        outcomes.append(outcome)
        later = disk.calls[fault.failed.index + 1 :]
        assert not [call for call in later if call.name == "fsync"], (at, outcome)
        with pytest.raises(StoreClosedError):
            syncing.run(dying, place)
        with suppress(UnavailableError):
            dying.close()
        _check_whole(place)
        with opened(place) as store:
            is_done = syncing.is_done(store)
            assert is_done or outcome != "done"
            assert not (is_done and outcome == "refused"), (at, fault.failed)
            unknown_and_done += is_done and outcome == "unknown"
            syncing.run(store, place)
            assert syncing.is_done(store)
        _check_whole(place)
        shutil.rmtree(place)
    with suppress(UnavailableError, UnknownOutcomeError):  # the fault may come as late as this
        dying.close()
    # Where the name of the record could not be synced, it is there and nobody could know.
    assert unknown_and_done > 0
    assert outcomes.count("refused") > (1 if name in {"tag", "retire"} else 4)


_CHILD = """
import sys
from pathlib import Path
from weightstore.errors import UnavailableError, UnknownOutcomeError
from weightstore.testing.kill_operations import RUN, opened, weights_of

try:
    with opened(Path(sys.argv[1])) as store:
        print("done", store.put_step(2, weights_of(2), run=RUN))
except UnknownOutcomeError as error:
    print("unknown", type(error).__name__)
except UnavailableError as error:
    print("refused", type(error).__name__)
"""


@pytest.mark.crash
@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=[pytest.mark.slow] * (at not in {3, 14})) for at in range(1, 26)]
)
def test_a_sync_that_the_kernel_fails_in_a_real_process_is_told(folder: Path, at: int) -> None:
    place = folder / "place"
    OPERATIONS["delta"].prepare(place, lambda *_: None)
    seen = folder / "strace"
    inject = f"inject=fsync:error=EIO:when={at}"
    child = subprocess.run(
        [
            *("strace", "-f", "-o", str(seen), "-e", "trace=fsync", "-e", inject),
            *(sys.executable, "-c", _CHILD, str(place)),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "ptrace" in child.stderr:
        pytest.skip(f"strace may not look at processes here: {child.stderr[:100]}")
    assert child.returncode == 0, child.stderr
    outcome = child.stdout.split()[0]
    lines = seen.read_text(encoding="utf-8").splitlines()
    failed = [number for number, line in enumerate(lines) if "(INJECTED)" in line]
    assert failed or outcome == "done"
    if failed:
        assert not [line for line in lines[failed[-1] + 1 :] if "fsync(" in line]
    _check_whole(place)
    with opened(place) as store:
        newest = store.state().newest
        assert newest == {"done": 2, "refused": 1}.get(outcome, newest)
        assert store.put_step(2, weights_of(2), run=RUN) == 2
    _check_whole(place)
