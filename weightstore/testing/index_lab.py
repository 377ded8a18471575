"""An index in memory of a log in memory, filled by reading."""

from __future__ import annotations

from weightstore.history.log import Log
from weightstore.history.log_index import LogIndex
from weightstore.history.versions import list_versions
from weightstore.ids import StoreId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory_index import MemoryIndexFile

STORE_ID = StoreId("a" * 32)
VERSION_COUNT = 40
LIMITS = Limits(index_miss_count=2, index_extension_count=16, cached_record_count=4)
"""So small that a few readings of a log fill its index."""


def index_in(file: MemoryIndexFile, limits: Limits = LIMITS) -> LogIndex:
    """The index of a log, in a file."""
    return LogIndex(lambda: file, STORE_ID, limits)


def filled_index(blobs: BlobStore) -> MemoryIndexFile:
    """A file with an index that is up to date with a log of `VERSION_COUNT` versions."""
    file = MemoryIndexFile()
    log = Log(blobs, LIMITS, index_in(file))
    prefix = log.tail()
    for _ in range(6):
        assert len(list(list_versions(log, prefix))) == VERSION_COUNT
    return file
