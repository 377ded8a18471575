"""`HostAgent`: one process a machine that reads and decodes each pack once for all ranks there."""

from __future__ import annotations

import errno
import os
import socket
import threading
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, assert_never

from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptObjectError, WeightStoreError
from weightstore.ids import StoreId
from weightstore.receiver.host_agent.agent_settings import PROTOCOL_NUMBER, HostAgentSettings
from weightstore.receiver.host_agent.channel import Channel, ChannelError
from weightstore.receiver.host_agent.messages import (
    GRANT_COUNT_MAX,
    MS_PER_S,
    TEXT_LENGTH_MAX,
    AgentStats,
    Done,
    Granted,
    Hello,
    PackRequest,
    Refused,
    Release,
    Reply,
    StatsRequest,
    Welcome,
    decode_request,
    encode_message,
)
from weightstore.receiver.host_agent.pack_maker import PackMaker
from weightstore.receiver.host_agent.segment_cache import BusyError, Entry, SegmentCache
from weightstore.receiver.host_agent.segments import check_sealed_memory
from weightstore.receiver.host_agent.socket_place import SocketPlace
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.machine import process_id

_CLOSE_WAIT_S = 10.0
_ACCEPT_PAUSE_S = 0.1
_SHUT = {errno.EBADF, errno.EINVAL}


class HostAgent:
    """Serves the ranks of one machine while it is entered as a context.

    Memory: segments and packs up to the bound of the settings, and per thread the decoder's
    buffers of one piece.

    Args:
        blobs: The store.
        store_id: Of it; ranks of another one are turned away.
        place: Path of the Unix socket.
        agent_settings: Bounds.
        settings: Threads and limits.
        clock: For deadlines.
        entropy: For the name of this start.
        codec: Kernels to use; None makes one.
    """

    def __init__(
        self,
        blobs: BlobStore,
        store_id: StoreId,
        place: Path,
        *,
        agent_settings: HostAgentSettings | None = None,
        settings: Settings,
        clock: Clock,
        entropy: Entropy,
        codec: PieceCodec | None = None,
    ) -> None:
        self.place = place
        self._store_id = store_id
        self._bounds = agent_settings or HostAgentSettings()
        self._limits = settings.limits
        self._clock = clock
        self._agent_id = entropy.hex128()
        self._maker = PackMaker(
            blobs, settings, schema_count=self._bounds.schema_count, codec=codec
        )
        self._cache = SegmentCache(self._bounds, clock=clock)
        self._lock = threading.Lock()
        self._channels: dict[Channel, threading.Thread] = {}
        self._served_pack_count = 0
        self._served_piece_count = 0
        self._ending = threading.Event()
        self._socket_place: SocketPlace | None = None
        self._listener: threading.Thread | None = None
        self._process = process_id()

    def __enter__(self) -> Self:
        """Take the socket's place and begin to serve.

        After a crash: a socket that nobody listens at; the next agent replaces it.

        Raises:
            StoreBusyError: an agent serves there already.
            InputRefusedError: something else is there, or the path is too long.
            StorageFailedError: the system does not let a socket be made there, or has no memory
                that can be sealed.
        """
        check_sealed_memory()
        self._socket_place = SocketPlace.take(self.place)
        self._process = process_id()
        self._listener = threading.Thread(
            target=self._listen, args=(self._socket_place.listening,), name="weightstore-host"
        )
        self._listener.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving: ranks go on by themselves. A second call does nothing.

        Waits a little for what goes on; a thread that hangs in the storage is left to itself.
        """
        if process_id() != self._process:
            # A forked child shares the socket with its parent, which goes on with it.
            return
        with self._lock:
            self._ending.set()
            place, self._socket_place = self._socket_place, None
            open_channels = dict(self._channels)
        if place is None:
            return
        deadline_s = self._clock.monotonic_s() + _CLOSE_WAIT_S
        place.interrupt()
        for channel in open_channels:
            channel.interrupt()
        self._cache.close(_CLOSE_WAIT_S)
        for thread in (self._listener, *open_channels.values()):
            if thread is not None:
                thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))
        place.leave()

    def stats(self) -> AgentStats:
        """What was done so far, and what is held."""
        counts = self._cache.counts
        return AgentStats(
            decoded_pack_count=counts.decoded_pack_count,
            decoded_piece_count=counts.decoded_piece_count,
            served_pack_count=self._served_pack_count,
            served_piece_count=self._served_piece_count,
            wire_bytes=counts.wire_bytes,
            busy_count=counts.busy_count,
            failed_count=counts.failed_count,
            segment_count=self._cache.segment_count,
            memory_bytes=self._cache.used_bytes,
            memory_limit_bytes=self._bounds.memory_bytes,
            connection_count=len(self._channels),
        )

    def _listen(self, listening: socket.socket) -> None:
        """Take connections until the socket is shut."""
        while not self._ending.is_set():
            try:
                connected, _ = listening.accept()
            except OSError as error:
                if self._ending.is_set() or error.errno in _SHUT:
                    return
                # Out of descriptors, say: what has them now may give some back.
                self._clock.sleep(_ACCEPT_PAUSE_S)
                continue
            channel = Channel(
                connected,
                clock=self._clock,
                size_bytes_max=self._limits.small_object_size_bytes,
            )
            with self._lock:
                if self._ending.is_set() or len(self._channels) >= self._bounds.connection_count:
                    channel.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(channel,), name="weightstore-rank", daemon=True
                )
                self._channels[channel] = thread
            try:
                thread.start()
            except RuntimeError:
                # Out of threads: this rank goes on alone, and the agent takes the next.
                with self._lock:
                    del self._channels[channel]
                channel.close()

    def _serve(self, channel: Channel) -> None:
        """Answer one connection until it ends; its segments are free then."""
        grants: dict[int, Entry] = {}
        try:
            with channel:
                if channel.peer_user() == os.getuid() and self._greet(channel):
                    self._answer_all(channel, grants)
        except (ChannelError, CorruptObjectError):
            # The rank is gone, or talks nonsense: both end its connection and nothing else.
            return
        finally:
            for entry in grants.values():
                self._cache.give_back(entry)
            with self._lock:
                del self._channels[channel]

    def _greet(self, channel: Channel) -> bool:
        timeout_s = self._bounds.frame_timeout_s
        said = decode_request(channel.receive(timeout_s=timeout_s, first_timeout_s=timeout_s)[0])
        fits = isinstance(said, Hello) and said.protocol == PROTOCOL_NUMBER
        if fits and isinstance(said, Hello) and said.store_id == self._store_id:
            self._say(channel, Welcome(protocol=PROTOCOL_NUMBER, agent_id=self._agent_id))
            return True
        about = f"store {self._store_id}, protocol {PROTOCOL_NUMBER}"
        self._say(channel, Refused(reason="foreign", message=f"this host agent is of {about}"))
        return False

    def _answer_all(self, channel: Channel, grants: dict[int, Entry]) -> None:
        grant = 0
        while not self._ending.is_set():
            data, _ = channel.receive(timeout_s=self._bounds.frame_timeout_s)
            request = decode_request(data)
            match request:
                case PackRequest():
                    grant += 1
                    self._give(channel, request, grant, grants)
                case Release():
                    for number in request.grants:
                        entry = grants.pop(number, None)
                        if entry is not None:
                            self._cache.give_back(entry)
                    self._say(channel, Done())
                case StatsRequest():
                    self._say(channel, self.stats())
                case Hello():
                    raise ChannelError("a second hello")
                case _:
                    assert_never(request)

    def _give(
        self, channel: Channel, request: PackRequest, grant: int, grants: dict[int, Entry]
    ) -> None:
        # All that a segment depends on: two packs of one hash under two keys are one pack.
        name = f"{request.schema_id}-{request.pack.sha256}-{request.pack.size_bytes}"
        wait_s = min(request.wait_ms / MS_PER_S, self._bounds.wait_s_max)
        if len(grants) >= GRANT_COUNT_MAX:
            self._say(channel, Refused(reason="busy", message=f"{len(grants)} grants are held"))
            return
        try:
            entry = self._cache.take(name, partial(self._maker.make, request), wait_s)
        except BusyError as error:
            self._say(channel, Refused(reason="busy", message=_cut(str(error))))
            return
        except WeightStoreError as error:
            self._say(channel, Refused(reason="failed", message=_cut(error.message)))
            return
        grants[grant] = entry
        made = entry.made
        assert made is not None
        with self._lock:
            self._served_pack_count += 1
            self._served_piece_count += made.piece_count
        self._say(channel, Granted(grant=grant, size_bytes=made.size_bytes), made.file)

    def _say(self, channel: Channel, reply: Reply, file: int | None = None) -> None:
        channel.send(encode_message(reply), timeout_s=self._bounds.frame_timeout_s, file=file)


def _cut(text: str) -> str:
    return text[:TEXT_LENGTH_MAX]
