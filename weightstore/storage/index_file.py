"""The seam between the log and its index: a small map of bytes that may be lost at any time.

Nothing may depend on what an index holds, so it has no unknown outcomes and no durability:
it answers, or it says that it does not have it. Implementations: `storage.lmdb_index`,
`storage.memory_index`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from weightstore.errors import InputRefusedError

INDEX_KEY_SIZE_BYTES_MAX = 511
"""The longest key that LMDB takes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The value that a key must have for a change to be made; None is no value."""

    key: bytes
    value: bytes | None


class IndexFile(Protocol):
    """A disposable map of bytes to bytes. Safe to use from several threads.

    An index that is not there yet, or that another process is changing at this moment,
    answers like an empty one and takes no entries. Every method but `close` may also raise
    `StorageFailedError` and `StoreClosedError`: go on without an index.
    """

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        ...

    def get_many(self, keys: Sequence[bytes], /) -> tuple[bytes | None, ...]:
        """The values of keys in one snapshot; None for each that has none.

        Raises:
            InputRefusedError: a key is empty or too long.
            CorruptObjectError: the index is damaged; `clear` begins a new one.
        """
        ...

    def put_many(self, entries: Mapping[bytes, bytes], /, *, expected: Expected) -> bool:
        """Add or replace entries if a key still has the expected value; whether it was done.

        After a crash: all of the entries or none, or an index that is empty.

        Raises:
            InputRefusedError: a key is empty or too long.
            CorruptObjectError: the index is damaged; `clear` begins a new one.
            LimitError: it would grow above its bound; nothing was changed.
            StorageFullError: no space; the index may be empty now.
        """
        ...

    def clear(self) -> None:
        """Forget everything, damage included.

        After a crash: the old index, or an empty one.
        """
        ...

    def close(self) -> None:
        """Let go of the files; every later call but this one is refused."""
        ...


def check_index_keys(keys: Sequence[bytes]) -> None:
    """Refuse keys that an implementation could not take.

    Raises:
        InputRefusedError: a key is empty or too long.
    """
    for key in keys:
        if not 1 <= len(key) <= INDEX_KEY_SIZE_BYTES_MAX:
            raise InputRefusedError(
                f"an index key has {len(key)} bytes, expected 1 to {INDEX_KEY_SIZE_BYTES_MAX}",
                do="Shorten the key.",
            )
