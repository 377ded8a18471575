"""An index in a dictionary: for tests, and for processes that may write to no disk."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from weightstore.errors import StoreClosedError
from weightstore.storage.index_file import Expected, check_index_keys


class MemoryIndexFile:
    """An `IndexFile` in the memory of one process."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        return "memory"

    def get_many(self, keys: Sequence[bytes], /) -> tuple[bytes | None, ...]:
        """The values of keys; see `IndexFile.get_many`."""
        check_index_keys(keys)
        with self._lock:
            self._check_open()
            return tuple(self._entries.get(key) for key in keys)

    def put_many(self, entries: Mapping[bytes, bytes], /, *, expected: Expected) -> bool:
        """Add or replace entries; see `IndexFile.put_many`.

        After a crash: nothing of this index is left.
        """
        check_index_keys([*entries, expected.key])
        with self._lock:
            self._check_open()
            if self._entries.get(expected.key) != expected.value:
                return False
            self._entries.update(entries)
            return True

    def clear(self) -> None:
        """Forget everything.

        After a crash: nothing of this index is left.
        """
        with self._lock:
            self._check_open()
            self._entries.clear()

    def close(self) -> None:
        """Refuse every later call but this one."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreClosedError("this index is closed", do="Open the store again.")
