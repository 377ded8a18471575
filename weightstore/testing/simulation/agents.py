"""A host agent in the simulation: the product's own cache and decoder, asked over turns.

The socket between agent and ranks is left out; everything that may become of an answer is not:
it is late, it is refused, the agent dies meanwhile, or what it gives is wrong.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast
from unittest.mock import patch

from weightstore.clock import Clock
from weightstore.errors import WeightStoreError
from weightstore.receiver import receiver as receiver_module
from weightstore.receiver.host_agent import segment_cache
from weightstore.receiver.host_agent.agent_feed import AgentFeed
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.channel import Channel
from weightstore.receiver.host_agent.client import AgentClient, Connection, Grant, NoAgentError
from weightstore.receiver.host_agent.messages import PackRequest
from weightstore.receiver.host_agent.pack_maker import PackMaker
from weightstore.receiver.host_agent.segment_cache import BusyError, Entry, SegmentCache
from weightstore.receiver.piece_feed import OwnFeed, PieceFeed
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.testing.simulation.turns import Group, Turns
from weightstore.testing.simulation.world import SETTINGS, World

WAIT_S = 1.5
_DEATH_RATIO = 0.05
_WRONG_RATIO = 0.3


class TurnThreads:
    """In place of `BuildThreads`: a task of the agent for each job."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._group = turns.current.group

    def begin(self, work: Callable[..., None], *arguments: object) -> None:
        """Begin a job."""
        self._turns.spawn(self._group, f"{self._group.name}/make", partial(work, *arguments))


@dataclass(eq=False)
class Running:
    """One start of the agent.

    Attributes:
        group: Its process.
        cache: Its segments.
        maker: Decodes.
        held: What each rank's process holds.
    """

    group: Group
    cache: SegmentCache
    maker: PackMaker
    held: dict[Group, list[Entry]] = field(default_factory=dict)

    def give_back_of_the_dead(self) -> None:
        """What a socket that closes tells: its holder is gone."""
        for group in [each for each in self.held if each.is_dead]:
            for entry in self.held.pop(group):
                self.cache.give_back(entry)

    def close(self) -> None:
        """Let the memory go, as the end of the process does."""
        for entry in vars(self.cache)["_entries"].values():
            if entry.made is not None:
                os.close(entry.made.file)


class HostAgent:
    """The agent of the machine that all engines of a run are on. It starts again when it dies."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.starts: list[Running] = []
        self._chances = world.chances("agent")
        self._is_wrong = float(self._chances.random()) < 0.5  # noqa: PLR2004 -- in half of the runs it errs
        self._settings = HostAgentSettings(
            memory_bytes=int(self._chances.choice([6_000, 60_000, 1_000_000])),
            queue_count=2,
            memory_wait_s=0.3,
        )

    @property
    def running(self) -> Running | None:
        """The start that answers now."""
        last = self.starts[-1] if self.starts else None
        return None if last is None or last.group.is_dead else last

    def main(self, group: Group, number: int) -> None:
        """What the process does from its start to its end."""
        del number
        world = self.world
        running = Running(
            group,
            SegmentCache(self._settings, clock=world.clock(group)),
            PackMaker(world.blobs(group), SETTINGS, schema_count=1),
        )
        self.starts.append(running)
        while True:
            world.turns.pause(0.5 + float(self._chances.random()))
            running.give_back_of_the_dead()
            if not world.is_calm and float(self._chances.random()) < _DEATH_RATIO:
                world.fault(group, "agent_killed", "while it waits")
                world.killed(group)

    def may_err(self, file: int) -> int:
        """A descriptor of a segment, or of one with a bit that is wrong."""
        is_wrong = self._is_wrong and not self.world.is_calm
        if not is_wrong or float(self._chances.random()) >= _WRONG_RATIO:
            return os.dup(file)
        data = bytearray(os.pread(file, os.fstat(file).st_size, 0))
        data[int(self._chances.integers(0, len(data)))] ^= 1 << int(self._chances.integers(0, 8))
        wrong = os.memfd_create("wrong", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(wrong, data)
        fcntl.fcntl(wrong, fcntl.F_ADD_SEALS, fcntl.fcntl(file, fcntl.F_GET_SEALS))
        self.world.counts["wrong_segments"] += 1
        return wrong


class AgentLine:
    """A rank's side, in place of `AgentClient` and its socket.

    Args:
        host: The agent.
        group: The rank's process.
    """

    wait_s = WAIT_S

    def __init__(self, host: HostAgent, group: Group) -> None:
        self._host = host
        self._group = group
        self._connection = Connection(cast("Channel", None), "")
        self._grants: list[tuple[Running, Entry]] = []
        self._distrusted: Running | None = None
        self._asked: Running | None = None

    def ask(self, request: PackRequest) -> Grant:
        """See `AgentClient.ask`."""
        agent, world = self._host.running, self._host.world
        if agent is None or agent is self._distrusted:
            raise NoAgentError("no agent that this rank believes")
        self._asked = agent
        entry = self._entry(agent, request)
        if agent.group.is_dead or entry.made is None:
            raise NoAgentError("the host agent has died")
        self._grants.append((agent, entry))
        agent.held.setdefault(self._group, []).append(entry)
        world.counts["agent_packs"] += 1
        file = self._host.may_err(entry.made.file)
        return Grant(file, self._connection, len(self._grants) - 1)

    def flush(self) -> None:
        """See `AgentClient.flush`."""
        numbers, self._connection.to_release[:] = self._connection.to_release[:], []
        for number in numbers:
            agent, entry = self._grants[number]
            if not agent.group.is_dead:
                agent.held[self._group].remove(entry)
                agent.cache.give_back(entry)

    def distrust(self) -> None:
        """See `AgentClient.distrust`."""
        self._host.world.counts["agent_distrusted"] += 1
        self._distrusted = self._asked

    def _entry(self, agent: Running, request: PackRequest) -> Entry:
        found: list[Entry | Exception] = []
        is_given_up = False

        def give() -> None:
            name = f"{request.schema_id}-{request.pack.sha256}-{request.pack.size_bytes}"
            try:
                entry = agent.cache.take(name, partial(agent.maker.make, request), WAIT_S)
            except (BusyError, WeightStoreError) as error:
                found.append(error)
                return
            found.append(entry)
            if is_given_up:
                agent.cache.give_back(entry)

        turns = self._host.world.turns
        task = turns.spawn(agent.group, f"{agent.group.name}/give", give)
        try:
            turns.await_task(task, WAIT_S)
        finally:
            is_given_up = not found
        if not found:
            raise NoAgentError("the host agent does not answer", is_late=True)
        if isinstance(found[0], Exception):
            is_busy = isinstance(found[0], BusyError)
            raise NoAgentError(f"the host agent is of no help: {found[0]}", is_busy=is_busy)
        return found[0]


@contextmanager
def asking_an_agent(world: World, host: HostAgent | None) -> Iterator[None]:
    """Let receivers of processes on the agent's machine ask it inside this block."""

    def feed_of(source: VersionSource, settings: ReceiverSettings, clock: Clock) -> PieceFeed:
        del settings, clock
        limits, group = source.settings.limits, world.turns.current.group
        if host is None or group.name.partition("#")[0] not in world.on_host:
            return OwnFeed(source.blobs, limits)
        return AgentFeed(source.blobs, limits, cast("AgentClient", AgentLine(host, group)))

    def threads(count: int, *, name: str) -> TurnThreads:
        del count, name
        return TurnThreads(world.turns)

    with (
        patch.object(receiver_module, "feed_of", feed_of),
        patch.object(segment_cache, "BuildThreads", threads),
    ):
        yield
    for running in host.starts if host else ():
        running.close()
