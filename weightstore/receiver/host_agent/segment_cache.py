"""Segments by their pack: each made once, shared, and dropped when memory is short."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from weightstore.clock import Clock
from weightstore.errors import WeightStoreError
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.build_threads import BuildThreads

_LOG = logging.getLogger("weightstore.host_agent")
_ENDING = "the host agent is ending"


class BusyError(Exception):
    """No segment now: no memory, or not in time. Whoever asks decodes by himself."""


@dataclass(frozen=True, slots=True)
class Made:
    """A segment that a maker has made.

    Attributes:
        file: Its descriptor; owned by the cache from then on.
        size_bytes: Its size.
        piece_count: Pieces in it.
        wire_bytes: Read for it.
    """

    file: int
    size_bytes: int
    piece_count: int
    wire_bytes: int


class Reservation:
    """Memory that one maker may use. One thread at a time."""

    def __init__(self, cache: SegmentCache, deadline_s: float) -> None:
        self._cache = cache
        self._deadline_s = deadline_s
        self.size_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Take memory, from idle segments if need be; waits a little for others to give back.

        Raises:
            BusyError: there is none.
        """
        self._cache.reserve(size_bytes, self._deadline_s)
        self.size_bytes += size_bytes


@dataclass(slots=True, eq=False)
class Entry:
    """A segment that is there, or is being made.

    Attributes:
        made: The segment, once it is there.
        error: Why it was not made.
        user_count: Who holds it or waits for it; it is not dropped then.
    """

    made: Made | None = None
    error: Exception | None = None
    user_count: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether it has come to something."""
        return self.made is not None or self.error is not None


@dataclass(slots=True)
class CacheCounts:
    """What a cache has done; read it under no lock, for people."""

    decoded_pack_count: int = 0
    decoded_piece_count: int = 0
    wire_bytes: int = 0
    busy_count: int = 0
    failed_count: int = 0


class SegmentCache:
    """Makes segments when they are asked for and keeps them while there is room.

    Args:
        settings: Bounds.
        clock: For deadlines.
    """

    def __init__(self, settings: HostAgentSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._used_bytes = 0
        self._open_count = 0
        self._is_closed = False
        self.counts = CacheCounts()
        self._threads = BuildThreads(settings.build_count, name="weightstore-host-build")

    @property
    def used_bytes(self) -> int:
        """Held by segments, and reserved for those that are being made."""
        return self._used_bytes

    @property
    def segment_count(self) -> int:
        """Segments that are there or being made."""
        return len(self._entries)

    def take(self, name: str, make: Callable[[Reservation], Made], wait_s: float) -> Entry:
        """The segment of a name; made if it is not there, once for all who ask meanwhile.

        Args:
            name: Says everything that the segment depends on.
            make: Makes it, in a thread of the cache.
            wait_s: How long the caller can wait. Making goes on after that.

        Returns:
            An entry with its segment, which must be given back.

        Raises:
            BusyError: not in time, or no memory.
            WeightStoreError: it cannot be made; asking again tries again.
        """
        try:
            return self._taken(name, make, self._clock.monotonic_s() + wait_s)
        except BusyError:
            with self._changed:
                self.counts.busy_count += 1
            raise
        except WeightStoreError:
            with self._changed:
                self.counts.failed_count += 1
            raise

    def give_back(self, entry: Entry) -> None:
        """End one use of an entry; its segment stays until its memory is needed."""
        with self._changed:
            entry.user_count -= 1
            if self._is_closed:
                self._drop_idle()
            self._changed.notify_all()

    def reserve(self, size_bytes: int, deadline_s: float) -> None:
        """For `Reservation`: take memory.

        Raises:
            BusyError: there is none for a while, or until the deadline.
        """
        limit_bytes = self._settings.memory_bytes
        # Not long: who waits may be the one that holds what is missing.
        soon_s = self._clock.monotonic_s() + self._settings.memory_wait_s
        with self._changed:
            if size_bytes > limit_bytes:
                raise BusyError(
                    f"a pack needs {size_bytes} bytes, the host agent may use {limit_bytes}"
                )
            if not self._wait(lambda: self._has_room(size_bytes), min(soon_s, deadline_s)):
                raise BusyError(
                    f"{self._used_bytes} of the host agent's {limit_bytes} bytes are in use, "
                    f"{size_bytes} more are needed"
                )
            self._used_bytes += size_bytes

    def close(self, wait_s: float) -> None:
        """Make nothing more, and drop everything idle.

        Args:
            wait_s: How long to wait for what is being made. What is made later is dropped then.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._threads.close(wait_s)
        with self._changed:
            self._drop_idle()

    def _taken(self, name: str, make: Callable[[Reservation], Made], deadline_s: float) -> Entry:
        with self._changed:
            entry = self._entry(name, make, deadline_s)
            entry.user_count += 1
            try:
                self._wait(lambda: entry.is_settled, deadline_s)
                return self._checked(entry)
            except BaseException:
                entry.user_count -= 1
                self._changed.notify_all()
                raise

    def _entry(self, name: str, make: Callable[[Reservation], Made], deadline_s: float) -> Entry:
        entry = self._entries.get(name)
        if entry is not None:
            self._entries.move_to_end(name)
            return entry
        if self._is_closed:
            raise BusyError(_ENDING)
        if self._open_count >= self._settings.queue_count:
            raise BusyError(f"{self._open_count} packs are being decoded already")
        if len(self._entries) >= self._settings.segment_count and not self._drop_oldest():
            raise BusyError(f"{len(self._entries)} segments are in use")
        entry = Entry()
        try:
            self._threads.begin(self._make, name, entry, make, deadline_s)
        except RuntimeError as error:
            # Nobody would ever make it: an entry for it would be waited for in vain for ever.
            raise BusyError(f"the system starts no thread: {error}") from error
        self._entries[name] = entry
        self._open_count += 1
        return entry

    def _make(
        self, name: str, entry: Entry, make: Callable[[Reservation], Made], deadline_s: float
    ) -> None:
        reservation = Reservation(self, deadline_s)
        made: Made | None = None
        failure: Exception = BusyError(_ENDING)
        try:
            # What waited until the end is not begun.
            made = None if self._is_closed else make(reservation)
        except (BusyError, WeightStoreError) as error:
            failure = error
        except (OSError, MemoryError) as error:
            failure = BusyError(f"the system gave no memory: {error}")
        except Exception:  # noqa: BLE001 -- logged; the ranks go on, and so does the agent
            failure = BusyError("the host agent failed over this pack")
            _LOG.exception("a pack could not be decoded")
        finally:
            with self._changed:
                self._open_count -= 1
                kept_bytes = made.size_bytes if made else 0
                self._used_bytes += kept_bytes - reservation.size_bytes
                if made is not None:
                    entry.made = made
                    self.counts.decoded_pack_count += 1
                    self.counts.decoded_piece_count += made.piece_count
                    self.counts.wire_bytes += made.wire_bytes
                else:
                    # Forgotten, so that the next who asks tries again.
                    entry.error = failure
                    self._entries.pop(name, None)
                if self._is_closed:
                    self._drop_idle()
                self._changed.notify_all()

    def _checked(self, entry: Entry) -> Entry:
        if entry.error is not None:
            raise entry.error
        if entry.made is None:
            raise BusyError("the pack was not decoded in time")
        return entry

    def _has_room(self, size_bytes: int) -> bool:
        while self._used_bytes + size_bytes > self._settings.memory_bytes:
            if not self._drop_oldest():
                return False
        return True

    def _drop_oldest(self) -> bool:
        """Drop the idle segment that was asked for longest ago."""
        for name, entry in self._entries.items():
            if entry.made is not None and entry.user_count == 0:
                del self._entries[name]
                os.close(entry.made.file)
                self._used_bytes -= entry.made.size_bytes
                return True
        return False

    def _drop_idle(self) -> None:
        while self._drop_oldest():
            pass

    def _wait(self, is_so: Callable[[], bool], deadline_s: float) -> bool:
        left_s = deadline_s - self._clock.monotonic_s()
        return self._changed.wait_for(lambda: self._is_closed or is_so(), max(0.0, left_s)) and (
            is_so() or not self._is_closed
        )
