"""A receiver's lab with host agents: in threads, and as processes that die where they are told.

Run as a module it is a warm process that forks agents, so that each costs milliseconds and is a
process as the operating system made it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.ids import StoreId
from weightstore.receiver.host_agent import pack_maker, segments
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.channel import Channel
from weightstore.receiver.host_agent.client import AgentClient
from weightstore.receiver.host_agent.segment_cache import SegmentCache
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.settings import MIB, Limits, Settings
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.receiver_lab import ReceiverLab

WAIT_S = 20.0
"""Of a rank in tests: a busy machine must not make an agent late."""
REPLY_TIMEOUT_S = 60.0


class AgentLab(ReceiverLab):
    """A store in memory, its receivers, and host agents in threads of this process."""

    @property
    def store_id(self) -> StoreId:
        """Of the store."""
        return self.versions.store.create()

    def agent(
        self,
        place: Path,
        bounds: HostAgentSettings | None = None,
        *,
        store_id: StoreId | None = None,
    ) -> HostAgent:
        """An agent of the store; enter it."""
        return HostAgent(
            self.blobs,
            store_id or self.store_id,
            place,
            agent_settings=bounds,
            settings=self.source.settings,
            clock=SystemClock(),
            entropy=SystemEntropy(),
        )

    def client(self, place: Path, *, wait_s: float = WAIT_S) -> AgentClient:
        """A rank's side of an agent; its back-off is on the lab's virtual clock."""
        return AgentClient(
            place,
            lambda: self.store_id,
            clock=self.versions.store.clock,
            size_bytes_max=Limits().small_object_size_bytes,
            wait_s=wait_s,
            answer_s=WAIT_S,
        )


def with_agent(place: Path, **given: Any) -> ReceiverSettings:  # noqa: ANN401 -- fields of it
    """Settings of a receiver that asks an agent."""
    return ReceiverSettings(agent_socket=place, agent_wait_s=WAIT_S, agent_answer_s=WAIT_S, **given)


class AgentForks:
    """A warm process that forks agents. A context manager."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603 -- our own module
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._handles: dict[int, int] = {}

    def start(self, store: Path, place: Path, *, die_at: int | None = None) -> int:
        """Start an agent, and wait until it serves.

        Args:
            store: Directory of the store.
            place: Where it listens.
            die_at: It kills itself at the so-manieth point of its work; None never.

        Returns:
            Its process number.
        """
        assert self._process.stdin is not None
        request = {"store": str(store), "place": str(place), "die_at": die_at}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        number = int(self._line())
        # It serves, so that the number is its own; later the kernel may give it to another.
        self._handles[number] = os.pidfd_open(number)
        return number

    def end(self, number: int) -> None:
        """Kill an agent, if it still lives, and wait until it has ended.

        Args:
            number: Of a process that `start` has given, once.
        """
        handle = self._handles.pop(number)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return  # by itself
        else:
            ended, _, _ = select.select([handle], [], [], REPLY_TIMEOUT_S)
            assert ended, f"agent {number} outlives its kill"
        finally:
            os.close(handle)

    def died_at(self) -> str:
        """The point at which the agent that was started last has killed itself, if it has."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], 0)[0]:
            return ""
        return self._line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in list(self._handles):
            self.end(number)
        self._process.communicate(timeout=REPLY_TIMEOUT_S)

    def _line(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], REPLY_TIMEOUT_S)
        assert ready, "the process that forks agents says nothing"
        # Unbuffered, so that `select` and this never disagree.
        found = bytearray()
        while not found.endswith(b"\n"):
            part = os.read(stdout.fileno(), 1)
            assert part, "the process that forks agents has ended"
            found += part
        return found.decode().strip()


class DyingPoints:
    """Counts points of an agent's work, and kills the process at one of them.

    A point is before or after a call that another process can see the effect of.
    """

    def __init__(self, die_at: int | None) -> None:
        self._left = die_at
        self._lock = threading.Lock()

    def install(self) -> None:
        """Put points around the calls of this process."""
        for owner, name in (
            *((Channel, "send"), (Channel, "receive")),
            *((SegmentCache, "take"), (SegmentCache, "give_back")),
            *((LocalBlobStore, "get"), (pack_maker, "make_segment"), (segments, "_write")),
        ):
            setattr(owner, name, self._wrapped(getattr(owner, name), name))

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- of any function
            self._pass(f"before {name}")
            result = function(*args, **kwargs)
            self._pass(f"after {name}")
            return result

        return wrapped

    def _pass(self, point: str) -> None:
        with self._lock:
            if self._left is None:
                return
            self._left -= 1
            if self._left < 0:
                os.write(1, point.encode() + b"\n")
                os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _agent(store: Path, place: Path, die_at: int | None) -> Iterator[HostAgent]:
    blobs = LocalBlobStore(store, create=False, entropy=SystemEntropy())
    settings = Settings(use_index=False)
    from weightstore.history.log import Log  # noqa: PLC0415 -- used by the child alone
    from weightstore.history.store_format import open_store  # noqa: PLC0415 -- ditto

    store_id = open_store(blobs, Log(blobs, settings.limits))
    DyingPoints(die_at).install()
    with HostAgent(
        blobs,
        store_id,
        place,
        agent_settings=HostAgentSettings(memory_bytes=64 * MIB),
        settings=settings,
        clock=SystemClock(),
        entropy=SystemEntropy(),
    ) as agent:
        yield agent


def _be_agent(request: dict[str, Any], lifeline: int) -> None:
    """Serve until killed, or until the process that forks has ended."""
    code = 1
    try:
        os.close(0)
        with _agent(Path(request["store"]), Path(request["place"]), request["die_at"]):
            os.write(1, f"{os.getpid()}\n".encode())
            os.read(lifeline, 1)
        code = 0
    finally:
        os._exit(code)


def _fork_agents() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert threading.active_count() == 1, "a fork would lose the other threads"
    lifeline, held = os.pipe()
    for line in sys.stdin:
        if os.fork() == 0:
            os.close(held)
            _be_agent(json.loads(line), lifeline)


if __name__ == "__main__":
    _fork_agents()
