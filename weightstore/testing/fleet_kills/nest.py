"""The warm process that the fleet's processes are forked from.

It has no threads and no torch, so that each costs a few milliseconds and is a process as the
operating system made it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weightstore.store import WeightStore
from weightstore.testing.fleet_kills import seats
from weightstore.testing.fleet_kills.story import (
    RUN,
    SETTINGS,
    empty_units,
    receiver_settings,
    weights_of,
)

END_TIMEOUT_S = 60.0


class Nest:
    """The warm process, as its user sees it. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 -- our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, seat: str, place: Path) -> int:
        """Start the process of a seat.

        Returns:
            Its number, which is nobody else's until it is reaped.
        """
        return self._ask({"seat": seat, "place": str(place)})

    def reap(self, process: int) -> int:
        """Wait for the end of a process; its exit code, or minus the number of its signal."""
        return self._ask({"reap": process})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=END_TIMEOUT_S)

    def _ask(self, request: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the nest has ended"
        return int(line)


def _warm_up() -> None:
    """Import and run once whatever the seats need."""
    with tempfile.TemporaryDirectory() as folder, _warm_store(Path(folder)) as store:
        live = empty_units("")
        socket = Path(folder) / "agent"
        with store.host_agent(socket), store.host_files(Path(folder) / "live") as files:
            receiver = store.receiver(live, settings=receiver_settings("", str(socket)))
            for version in (1, 2, 3):
                receiver.refit(version)
                files.refit(version)


@contextmanager
def _warm_store(place: Path) -> Iterator[WeightStore]:
    with WeightStore.open(place / "store", create=True, settings=SETTINGS) as store:
        for step in (1, 2, 3):
            store.put_step(step, weights_of(step), run=RUN)
        store.activate(1, timeout_s=0.0)
        yield store


def _serve() -> None:
    _warm_up()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    assert "torch" not in sys.modules
    gc.collect()
    gc.freeze()
    living: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "reap" in request:
            process = request["reap"]
            answer = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            living.remove(process)
        else:
            answer = os.fork()
            if answer == 0:
                _be_child(request["seat"], Path(request["place"]))
            living.add(answer)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    for process in living:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _be_child(seat: str, place: Path) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        said = os.open(place / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(said, 1)
        os.dup2(said, 2)
        seats.be(seat, place)
        code = 0
    except BaseException as error:  # noqa: BLE001 -- nothing of a child may go on in its parent
        line = json.dumps([os.getpid(), 0.0, "error", type(error).__name__, repr(error)[:2000]])
        with (place / "events" / seat).open("a") as file:
            file.write(line + "\n")
    finally:
        os._exit(code)


if __name__ == "__main__":
    _serve()
