"""From a location to a store: which blobs hold it, and whether it is one."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from weightstore import arguments
from weightstore.clock import Clock, Entropy
from weightstore.errors import InputRefusedError, StorageFailedError
from weightstore.history.log import Log
from weightstore.history.log_index import LogIndex
from weightstore.history.store_format import check_place, create_store, open_store
from weightstore.ids import StoreId
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.index_file import IndexFile
from weightstore.storage.index_place import index_folder
from weightstore.storage.lmdb_index import LmdbIndexFile
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.probe import probe_conditional_put


def open_local(
    location: str | PathLike[str],
    *,
    create: bool,
    settings: Settings,
    clock: Clock,
    entropy: Entropy,
) -> tuple[BlobStore, StoreId]:
    """Open or make a store in a local directory.

    After a crash: no store, or one that opening with `create` again completes.

    Raises:
        InputRefusedError: the location is a URL, or a directory with other things in it.
        NotAStoreError: no store is there, and `create` is false.
        BackendUnsuitableError: the file system cannot create files conditionally.
    """
    text = arguments.place_text(location, "location")
    blobs = LocalBlobStore(Path(text), create=create, entropy=entropy)
    log = Log(blobs, settings.limits)
    if not create:
        return blobs, open_store(blobs, log)
    if check_place(blobs, log) is None:
        _refuse_unlisted(blobs)
    probe_conditional_put(blobs, entropy)
    store_id = create_store(blobs, log, clock=clock, entropy=entropy, settings=settings)
    return blobs, store_id


def index_of(blobs: BlobStore, store_id: StoreId, settings: Settings) -> LogIndex | None:
    """The index of a store's log, opened at its first use; None if there is to be none."""
    if not settings.use_index or not isinstance(blobs, LocalBlobStore):
        return None
    root = blobs.root

    def open_file() -> IndexFile | None:
        folder = index_folder(root, store_id, settings.cache_dir or _home_cache_dir())
        if folder is None:
            return None
        return LmdbIndexFile(folder, size_bytes_max=settings.limits.index_size_bytes)

    return LogIndex(open_file, store_id, settings.limits)


def _home_cache_dir() -> Path:
    try:
        return Path.home() / ".cache" / "weightstore"
    except RuntimeError as error:
        raise StorageFailedError(f"no home directory for the index: {error}") from error


def _refuse_unlisted(blobs: LocalBlobStore) -> None:
    """Refuse a directory whose contents no listing shows: links, pipes, odd names."""
    name = blobs.unlisted_name()
    if name is not None:
        raise InputRefusedError(
            f"{blobs.location} is no store and not empty: it holds {name}",
            do="Give a new or empty place for the store.",
            facts={"location": blobs.location, "found": name},
        )
