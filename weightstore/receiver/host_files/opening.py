"""From a path to a directory that is followed: checks, the lock, and healing what was cut."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from weightstore import arguments
from weightstore.clock import Clock, Entropy
from weightstore.history.export import check_outside
from weightstore.ids import StoreId
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.linked_folder import LinkedFolder


def open_host_files(
    source: VersionSource,
    store_id: StoreId,
    directory: str | PathLike[str],
    *,
    settings: ReceiverSettings | None,
    clock: Clock,
    entropy: Entropy,
) -> HostFiles:
    """Take hold of a directory, and heal what an earlier process has left of it.

    After a crash: as before, or healed.

    Args:
        source: The store.
        store_id: Its id.
        directory: What an engine will be given: nothing yet, or what this has made before.
        settings: Pool and rolling scan; None takes those for files.
        clock: For times in reports.
        entropy: Names what is being written.

    Raises:
        InputRefusedError: an argument is of a wrong type; something else has the name; or it
            would lie in the store.
        FolderBusyError: another process follows into it.
        CorruptError: the store is damaged; the directory is as it was.
        StorageFailedError, StorageFullError, StoreReadOnlyError: of the directory's disk.
        BlobOutcomeUnknownError: power loss may undo a step on that disk; open it again.
    """
    if settings is not None:
        arguments.check_instance(settings, ReceiverSettings, "settings", "Give a ReceiverSettings.")
    link = Path(arguments.expanded(arguments.path(directory, "directory"))).absolute()
    check_outside(source.blobs, link.parent)
    held = LinkedFolder.acquire(link)
    try:
        return HostFiles(source, store_id, held, clock=clock, entropy=entropy, settings=settings)
    except BaseException:
        held.close()
        raise
