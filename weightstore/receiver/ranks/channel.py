"""How the ranks of an engine talk: small objects by name, each put once.

The channel is a directory of the host, a store, or memory. It is never the engine's own process
group: a rank that hangs there must not keep the others from closing their gates.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Protocol

from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    CorruptObjectError,
)
from weightstore.ids import NUMBER_LENGTH_MAX
from weightstore.storage.blobs import BlobStore

ENGINES_PREFIX = "engines/"
ROUNDS_PREFIX = "rounds/"


def engine_key(generation: int) -> str:
    """Name of what a leader says about itself when it begins; generations rise by one."""
    return f"{ENGINES_PREFIX}{generation}"


def order_key(generation: int, turn: int) -> str:
    """Name of what the leader asks of every rank."""
    return f"{ROUNDS_PREFIX}{generation}-{turn}-order"


def answer_key(generation: int, turn: int, rank: int) -> str:
    """Name of what a rank answers; turn 0 is its attachment."""
    return f"{ROUNDS_PREFIX}{generation}-{turn}-{rank}"


def lost_key(generation: int, rank: int) -> str:
    """Name of a new process's word that the one before it is gone from the engine."""
    return f"{ROUNDS_PREFIX}{generation}-lost-{rank}"


def given_up_key(generation: int, turn: int, rank: int) -> str:
    """Name of a rank's word that it no longer has what it has opened, or staged, at a turn."""
    return f"{ROUNDS_PREFIX}{generation}-given-up-{turn}-{rank}"


def generation_of(key: str) -> int:
    """The engine that an order, an answer or a word of loss belongs to.

    Raises:
        CorruptObjectError: it is no such name.
    """
    number = key.removeprefix(ROUNDS_PREFIX).partition("-")[0]
    if not (number.isascii() and number.isdigit() and len(number) <= NUMBER_LENGTH_MAX):
        raise CorruptObjectError(f"{key!r} is no name of an engine's round", facts={"key": key})
    return int(number)


class RankChannel(Protocol):
    """Objects that are put once under a name. Safe from several threads.

    Every method may raise `UnavailableError`; then it is called again.
    """

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        ...

    def put(self, key: str, data: bytes, /) -> None:
        """Put an object, or find that the same one is there.

        After a crash: no object, or the whole one.

        Raises:
            BlobExistsError: another one is there.
            BlobOutcomeUnknownError: nobody can tell; put the same again.
        """
        ...

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
        """The object of a name, or None.

        Raises:
            CorruptObjectError: it is larger than that.
        """
        ...

    def keys(self, prefix: str, /) -> tuple[str, ...]:
        """Names that start so. It may be stale: it finds what can be deleted, no more."""
        ...

    def delete(self, keys: Iterable[str], /) -> None:
        """Remove objects that nobody will read.

        After a crash: some are there.
        """
        ...


class BlobChannel:
    """A channel over a blob store: a directory in the host's memory, or a weight store.

    Args:
        blobs: The store. Nothing that is put here need survive a loss of power.
        prefix: Begins every key; empty, or ends with a slash.
    """

    def __init__(self, blobs: BlobStore, prefix: str = "") -> None:
        self._blobs = blobs
        self._prefix = prefix

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        return f"{self._blobs.location}/{self._prefix}".rstrip("/")

    def put(self, key: str, data: bytes, /) -> None:
        """Put an object once; see `RankChannel.put`.

        After a crash: no object, or the whole one.
        """
        try:
            self._blobs.put_if_absent(self._prefix + key, data, durable=False)
        except (BlobExistsError, BlobOutcomeUnknownError):
            if not self._holds(key, data):
                raise

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
        """The object of a name, or None; see `RankChannel.get`."""
        try:
            return self._blobs.get(self._prefix + key, max_size_bytes=max_size_bytes)
        except BlobNotFoundError:
            return None

    def keys(self, prefix: str, /) -> tuple[str, ...]:
        """Names that start so; see `RankChannel.keys`."""
        found = self._blobs.list(self._prefix + prefix)
        return tuple(each.key.removeprefix(self._prefix) for each in found)

    def delete(self, keys: Iterable[str], /) -> None:
        """Remove objects; see `RankChannel.delete`.

        After a crash: some are there.
        """
        for key in keys:
            self._blobs.delete(self._prefix + key)

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            return self.get(key, max_size_bytes=len(data)) == data
        except CorruptObjectError:  # larger, so another one
            return False


class MemoryChannel:
    """A channel between threads of one process."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        return "the memory of this process"

    def put(self, key: str, data: bytes, /) -> None:
        """Put an object once; see `RankChannel.put`.

        After a crash: nothing of it is left.
        """
        with self._lock:
            if self._objects.setdefault(key, bytes(data)) != data:
                raise BlobExistsError(f"{key} is already there", facts={"key": key})

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
        """The object of a name, or None; see `RankChannel.get`."""
        with self._lock:
            data = self._objects.get(key)
        if data is not None and len(data) > max_size_bytes:
            raise CorruptObjectError(
                f"{key} has {len(data)} bytes, expected at most {max_size_bytes}",
                facts={"key": key, "size_bytes": len(data)},
            )
        return data

    def keys(self, prefix: str, /) -> tuple[str, ...]:
        """Names that start so; see `RankChannel.keys`."""
        with self._lock:
            return tuple(sorted(key for key in self._objects if key.startswith(prefix)))

    def delete(self, keys: Iterable[str], /) -> None:
        """Remove objects; see `RankChannel.delete`.

        After a crash: nothing of it is left.
        """
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
