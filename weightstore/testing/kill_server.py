"""A warm process that forks children, lets them work on stores, and has them killed.

It has no threads and no torch, so that a child costs a few milliseconds and is a process
as the operating system made it: what a kill leaves is on the disk and nowhere else.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weightstore.clock import SystemClock
from weightstore.errors import WeightStoreError
from weightstore.testing.faults import When
from weightstore.testing.kill_host_files import FOLLOWING, warm_up_following
from weightstore.testing.kill_operations import OPERATIONS, warm_up
from weightstore.testing.kill_points import Kill, KillPoints
from weightstore.testing.kill_receivers import RECEIVING, warm_up_receiving

CHILD_TIMEOUT_S = 60.0
PREPARE = "prepare "
"""Before the name of an operation: make what it starts from."""
_READ_SIZE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended, and what it said before.

    Attributes:
        exit_code: 0, 1 after an error, or minus the number of the signal that killed it.
        said: What it said, in order: lists of a word and what belongs to it.
    """

    exit_code: int
    said: tuple[tuple[Any, ...], ...]

    @property
    def was_killed(self) -> bool:
        """Whether it died of SIGKILL."""
        return self.exit_code == -signal.SIGKILL

    @property
    def acknowledged(self) -> tuple[tuple[Any, ...], ...]:
        """What it had been told to be done, in order."""
        return self.all_of("ack")

    @property
    def died_at(self) -> str:
        """The name of the storage call that it died at; empty if it did not."""
        return next((str(one[0]) for one in self.all_of("died")), "")

    def all_of(self, word: str) -> tuple[tuple[Any, ...], ...]:
        """What belongs to every saying of a word."""
        return tuple(one[1:] for one in self.said if one[0] == word)


class KillServer:
    """The warm process, as its user sees it. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 -- our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, operation: str, place: Path, kill: Kill | None = None) -> Ended:
        """Let a child do an operation, and perhaps die in it.

        Args:
            operation: A name in `OPERATIONS`, `FOLLOWING` or `RECEIVING`; with `PREPARE` before
                it, what precedes it.
            place: The folder that it works in.
            kill: When it dies.

        Raises:
            RuntimeError: the server itself has ended.
        """
        request: dict[str, object] = {"operation": operation, "place": str(place)}
        if kill is not None:
            request |= {"at": kill.at, "when": kill.when.value, "delay_us": kill.delay_us}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the kill server ended with {self._process.wait()}")
        reply = json.loads(line)
        return Ended(reply["exit_code"], tuple(tuple(each) for each in reply["said"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate(timeout=CHILD_TIMEOUT_S)


def _serve() -> None:
    warm_up()
    warm_up_following()
    warm_up_receiving()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    assert "torch" not in sys.modules
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        kill = None
        if "at" in request:
            kill = Kill(request["at"], When(request["when"]), request["delay_us"])
        ended = _run_child(request["operation"], Path(request["place"]), kill)
        reply = {"exit_code": ended.exit_code, "said": ended.said}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def _run_child(operation: str, place: Path, kill: Kill | None) -> Ended:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _be_child(writing, operation, place, kill)
    os.close(writing)
    try:
        said = _hear(reading, child, kill.delay_us if kill else None)
    finally:
        os.close(reading)
        ended = os.waitpid(child, 0)[1]
    return Ended(os.waitstatus_to_exitcode(ended), said)


def _be_child(writing: int, operation: str, place: Path, kill: Kill | None) -> None:
    def say(*words: object) -> None:
        os.write(writing, json.dumps(words).encode("ascii") + b"\n")

    code = 1
    try:
        os.close(0)
        points = KillPoints(kill, say)
        chosen = {**OPERATIONS, **FOLLOWING, **RECEIVING}[operation.removeprefix(PREPARE)]
        if operation.startswith(PREPARE):
            chosen.prepare(place, say)
        else:
            points.install()
            chosen.run(place, say)
        say("done", *points.names)
        assert "torch" not in sys.modules
        code = 0
    except WeightStoreError as error:
        say("error", type(error).__name__, error.message)
    except BaseException as error:  # noqa: BLE001 -- nothing of a child may go on in its parent
        say("error", type(error).__name__, repr(error))
    finally:
        os._exit(code)


def _hear(reading: int, child: int, delay_us: int | None) -> tuple[tuple[Any, ...], ...]:
    """Everything that a child says until it ends; one that hangs is killed, and named."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + CHILD_TIMEOUT_S
    heard = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline_s - clock.monotonic_s()))
        if not ready:
            os.kill(child, signal.SIGTERM)
            return (("error", "Hung", f"no end after {CHILD_TIMEOUT_S} s"),)
        part = os.read(reading, _READ_SIZE_BYTES)
        if not part:
            break
        heard += part
        if delay_us is not None and b'"mark"' in part:
            until_s = clock.monotonic_s() + delay_us / 1e6
            while clock.monotonic_s() < until_s:
                pass
            os.kill(child, signal.SIGKILL)
            delay_us = None
    lines = heard.splitlines()
    return tuple(tuple(json.loads(line)) for line in lines)


if __name__ == "__main__":
    _serve()
