"""System calls that do less than they were asked for, or are interrupted by signals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import Buffer

from weightstore.storage.durable import SYSCALLS
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened, weights_of
from weightstore.testing.store_lab import store_on, tree
from weightstore.testing.trainer_lab import bits_of

WRITE_SIZE_BYTES_MAX = 777
COPY_SIZE_BYTES_MAX = 4001


def _write(file: int, data: Buffer) -> int:
    return os.write(file, memoryview(data)[:WRITE_SIZE_BYTES_MAX])


def _copy_range(source: int, target: int, size_bytes: int) -> int:
    return os.copy_file_range(source, target, min(size_bytes, COPY_SIZE_BYTES_MAX))


def test_a_disk_that_takes_a_little_at_a_time_gets_all(folder: Path) -> None:
    """Every kind of write of a store: objects of puts, copies of an import, the hint."""
    OPERATIONS["import"].prepare(folder / "place", lambda *_: None)
    place = folder / "place"
    syscalls = replace(SYSCALLS, write=_write, copy_range=_copy_range)
    blobs = LocalBlobStore(place / "store", syscalls=syscalls)
    with store_on(blobs, settings=SETTINGS) as store:
        assert store.import_checkpoint(place / "given" / "checkpoint", run=RUN).version == 1
        assert store.put_step(1, weights_of(1), run=RUN) == 2
        assert store.put_step(2, weights_of(2), run=RUN, anchor=True) == 3
    with opened(place) as store:
        for step in (0, 1, 2):
            host = store.checkout(step + 1).host
            found = {name: each.units.tobytes() for name, each in host.items()}
            assert found == bits_of(weights_of(step))
            store.verify(step + 1, scan=True)


_CHILD = """
import signal, sys
from pathlib import Path
from weightstore.testing.kill_operations import RUN, opened, weights_of

place = Path(sys.argv[1])
seen = 0
def count(*_):
    global seen
    seen += 1

signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]), float(sys.argv[2]))
with opened(place) as store:
    store.import_checkpoint(place / "given" / "checkpoint", run=RUN)
    for step in range(1, 6):
        store.put_step(step, weights_of(step), run=RUN, anchor=step == 3)
    store.checkout_to_file(6, place / "out" / "6.safetensors")
    store.export(6, place / "out" / "6")
    store.tag("best", 4)
    store.verify(6, scan=True)
signal.setitimer(signal.ITIMER_REAL, 0)
print(seen)
"""


def _run_child(place: Path, period_s: float, *before: str) -> int:
    child = subprocess.run(
        [*before, sys.executable, "-c", _CHILD, str(place), str(period_s)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "ptrace" in child.stderr:
        pytest.skip(f"strace may not look at processes here: {child.stderr[:100]}")
    assert child.returncode == 0, child.stderr
    return int(child.stdout)


def _check(place: Path) -> None:
    with opened(place) as store:
        for version in range(1, 7):
            host = store.checkout(version).host
            found = {name: each.units.tobytes() for name, each in host.items()}
            assert found == bits_of(weights_of(version - 1))
        store.checkout_to_file(6, place / "again.safetensors")
        store.export(6, place / "again")
    assert (place / "again.safetensors").read_bytes() == (
        place / "out" / "6.safetensors"
    ).read_bytes()
    assert tree(place / "again") == tree(place / "out" / "6")


def test_a_storm_of_signals_changes_nothing(folder: Path) -> None:
    OPERATIONS["import"].prepare(folder / "place", lambda *_: None)
    assert _run_child(folder / "place", 0.0005) > 50
    _check(folder / "place")


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
def test_system_calls_that_say_interrupted_are_made_again(folder: Path) -> None:
    """Every third write, sync, copy and read of each thread, as the kernel may do it."""
    OPERATIONS["import"].prepare(folder / "place", lambda *_: None)
    seen = folder / "strace"
    calls = "write,fsync,copy_file_range,preadv,preadv2"
    _run_child(
        folder / "place",
        0,
        *("strace", "-f", "-o", str(seen), "-e", f"trace={calls}"),
        *("-e", f"inject={calls}:error=EINTR:when=1+3"),
    )
    assert seen.read_text(encoding="utf-8", errors="replace").count("(INJECTED)") > 50
    _check(folder / "place")
