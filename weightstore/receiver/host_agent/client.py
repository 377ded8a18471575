"""The rank's side of the host agent: connections, deadlines, back-off, and whom not to believe."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from weightstore.clock import Clock
from weightstore.errors import CorruptObjectError, WeightStoreError
from weightstore.ids import StoreId
from weightstore.receiver.host_agent.agent_settings import PROTOCOL_NUMBER
from weightstore.receiver.host_agent.channel import Channel, ChannelError, LateError
from weightstore.receiver.host_agent.messages import (
    GRANT_COUNT_MAX,
    MS_PER_S,
    WAIT_MS_MAX,
    AgentStats,
    Done,
    Granted,
    Hello,
    PackRequest,
    Refused,
    Release,
    Reply,
    Request,
    StatsRequest,
    Welcome,
    decode_reply,
    encode_message,
)
from weightstore.storage.machine import process_id

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0


class NoAgentError(Exception):
    """No answer that can be used; the rank does the work by itself. Says why.

    Args:
        message: Why.
        is_late: Whether time ran out.
        is_busy: Whether the agent lacks memory or time.
    """

    def __init__(self, message: str, *, is_late: bool = False, is_busy: bool = False) -> None:
        super().__init__(message)
        self.is_late = is_late
        self.is_busy = is_busy


@dataclass(eq=False)
class Connection:
    """A channel that has been greeted, and what it holds.

    Attributes:
        channel: Used by one thread at a time.
        agent_id: Who is on the other side.
        to_release: Grants that will not be looked at any more; filled by any thread.
    """

    channel: Channel
    agent_id: str
    to_release: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """A segment that was handed out.

    Attributes:
        file: Its descriptor, owned by the caller.
        connection: That it is held through.
        number: What gives it back.
    """

    file: int
    connection: Connection
    number: int

    def release(self) -> None:
        """Note that it is not looked at any more; said to the agent with `AgentClient.flush`."""
        self.connection.to_release.append(self.number)


class _Idle:
    """Connections that nobody uses now. Closed when their client is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[Connection] = []

    def take(self) -> Connection | None:
        with self._lock:
            return self._connections.pop() if self._connections else None

    def put(self, connection: Connection) -> None:
        with self._lock:
            self._connections.append(connection)

    def take_all(self) -> list[Connection]:
        with self._lock:
            taken, self._connections = self._connections, []
        return taken

    def close(self) -> None:
        for connection in self.take_all():
            connection.channel.close()


class AgentClient:
    """Asks one host agent. Safe from several threads; each uses a connection of its own.

    Whatever goes wrong is a `NoAgentError`: the caller goes on without the agent, and the
    agent is left alone for a time that doubles up to `LONGEST_BACKOFF_S`.

    Args:
        place: Path of the agent's socket.
        store_id: Says which store the rank reads; asked once.
        clock: For deadlines and back-off.
        size_bytes_max: Of one message.
        wait_s: How long a pack is waited for; at most an hour.
        answer_s: How long an answer that takes no work is waited for.

    Attributes:
        grace_s: How much longer, so that the agent can say itself that it is late: `answer_s`.
    """

    def __init__(
        self,
        place: Path,
        store_id: Callable[[], StoreId],
        *,
        clock: Clock,
        size_bytes_max: int,
        wait_s: float,
        answer_s: float,
    ) -> None:
        self.place = place
        self.wait_s = min(wait_s, WAIT_MS_MAX / MS_PER_S)
        self.grace_s = answer_s
        self._answer_s = answer_s
        self._store_id = store_id
        self._clock = clock
        self._size_bytes_max = size_bytes_max
        self._lock = threading.Lock()
        self._idle = _Idle()
        self._backoff_s = 0.0
        self._next_try_s = 0.0
        self._last_failure = ""
        self._distrusted_id = ""
        self._last_agent_id = ""
        weakref.finalize(self, self._idle.close)

    def ask(self, request: PackRequest) -> Grant:
        """Ask for one pack.

        Raises:
            NoAgentError: there is no agent, or it has no segment now.
        """
        reply, file, connection = self._exchange(
            request, self.wait_s + self.grace_s, with_file=True
        )
        match reply:
            case Granted() if file is not None:
                return Grant(file, connection, reply.grant)
            case Refused():
                if file is not None:
                    os.close(file)
                raise NoAgentError(
                    f"the host agent is of no help: {reply.message}",
                    is_busy=reply.reason == "busy",
                )
            case _:
                if file is not None:
                    os.close(file)
                raise self._failed(ChannelError("an answer to another question"), connection)

    def stats(self) -> AgentStats:
        """What the agent has done.

        Raises:
            NoAgentError: there is none.
        """
        reply, _, connection = self._exchange(StatsRequest(), self._answer_s)
        if not isinstance(reply, AgentStats):
            raise self._failed(ChannelError("an answer to another question"), connection)
        return reply

    def flush(self) -> None:
        """Tell the agent what was released. That it cannot be told is no error."""
        for connection in self._idle.take_all():
            try:
                self._release(connection)
            except NoAgentError:
                continue
            self._idle.put(connection)

    def distrust(self) -> None:
        """Believe nothing of the agent that was asked last, until another one is there."""
        with self._lock:
            self._distrusted_id = self._last_agent_id
        self._idle.close()

    def close(self) -> None:
        """Hang up; the agent takes everything back."""
        self._idle.close()

    def _exchange(
        self, request: Request, timeout_s: float, *, with_file: bool = False
    ) -> tuple[Reply, int | None, Connection]:
        """Say something and take the answer, on a connection that is idle or new."""
        connection = self._idle.take()
        if connection is not None:
            try:
                self._release(connection)
                reply, file = self._say(connection, request, timeout_s, with_file=with_file)
            except NoAgentError as error:
                if error.is_late:
                    raise
                # It may be an agent that was started again since: one new connection says.
                self._idle.close()
                with self._lock:
                    self._next_try_s = 0.0
                connection = None
        if connection is None:
            connection = self._connected()
            reply, file = self._say(connection, request, timeout_s, with_file=with_file)
        with self._lock:
            self._backoff_s = 0.0
        self._idle.put(connection)
        return reply, file, connection

    def _connected(self) -> Connection:
        with self._lock:
            if self._clock.monotonic_s() < self._next_try_s:
                raise NoAgentError(self._last_failure)
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        channel = Channel(connected, clock=self._clock, size_bytes_max=self._size_bytes_max)
        connection = Connection(channel, "")
        try:
            connected.settimeout(self._answer_s)
            connected.connect(os.fspath(self.place))
            _check_user(channel)
            hello = Hello(protocol=PROTOCOL_NUMBER, store_id=self._store_id(), process=process_id())
        except (OSError, ChannelError, WeightStoreError) as error:
            raise self._failed(error, connection) from error
        reply, _ = self._say(connection, hello, self._answer_s)
        if not isinstance(reply, Welcome) or reply.protocol != PROTOCOL_NUMBER:
            said = reply.message if isinstance(reply, Refused) else "it speaks otherwise"
            raise self._failed(ChannelError(said), connection)
        connection.agent_id = reply.agent_id
        with self._lock:
            is_distrusted = reply.agent_id == self._distrusted_id
            self._last_agent_id = reply.agent_id
        if is_distrusted:
            raise self._failed(ChannelError("it gave wrong bytes before"), connection)
        return connection

    def _say(
        self, connection: Connection, request: Request, timeout_s: float, *, with_file: bool = False
    ) -> tuple[Reply, int | None]:
        file: int | None = None
        try:
            connection.channel.send(encode_message(request), timeout_s=timeout_s)
            data, file = connection.channel.receive(
                timeout_s=timeout_s, first_timeout_s=timeout_s, with_file=with_file
            )
            return decode_reply(data), file
        except (ChannelError, CorruptObjectError) as error:
            if file is not None:
                os.close(file)
            raise self._failed(error, connection) from error

    def _release(self, connection: Connection) -> None:
        """Say what was released on a connection."""
        while connection.to_release:
            grants = connection.to_release[:GRANT_COUNT_MAX]
            reply, _ = self._say(connection, Release(grants=grants), self._answer_s)
            if not isinstance(reply, Done):
                raise self._failed(ChannelError("an answer to another question"), connection)
            del connection.to_release[: len(grants)]

    def _failed(self, error: Exception, connection: Connection) -> NoAgentError:
        """Hang up, and leave the agent alone for a while."""
        connection.channel.close()
        message = f"the host agent at {self.place} does not serve this rank: {error}"
        with self._lock:
            self._backoff_s = min(LONGEST_BACKOFF_S, max(FIRST_BACKOFF_S, self._backoff_s * 2))
            self._next_try_s = self._clock.monotonic_s() + self._backoff_s
            self._last_failure = message
        return NoAgentError(message, is_late=isinstance(error, LateError))


def _check_user(channel: Channel) -> None:
    """Whoever can make a socket at a path need not be whom its ranks would believe."""
    if channel.peer_user() != os.getuid():
        raise ChannelError("it runs as another user")
