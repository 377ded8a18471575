"""What lies in the folders of a local store: blobs, leftovers, and things that are neither."""

from __future__ import annotations

import os
from collections.abc import Iterator

from weightstore.storage.blob_keys import (
    LOCKS_FOLDER,
    NAME_COUNT_MAX,
    TEMPORARY_MARK,
    is_key,
)
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.durable import Syscalls
from weightstore.storage.folders import Folders
from weightstore.storage.unfinished import remove_abandoned

_ANY_NAME = "x"


def listed(folders: Folders, folder: tuple[str, ...], start: str) -> Iterator[BlobInfo]:
    """Blobs in and below a folder, sorted by key; one folder's names are held at a time.

    No descriptor stays open between two blobs, so the caller may stop anywhere.

    Args:
        folders: The store's.
        folder: Where to begin.
        start: How the names in that folder, not below it, must start.
    """
    with folders.found(folder, readable=True) as opened:
        found = sorted(_named_sizes(opened, start))
    for sort_name, size_bytes in found:
        key = "/".join((*folder, sort_name))
        if size_bytes >= 0 and is_key(key):
            yield BlobInfo(key, size_bytes)
        elif size_bytes < 0 and is_key(key + _ANY_NAME):
            yield from listed(folders, (*folder, sort_name.removesuffix("/")), "")


def unlisted_name(folders: Folders) -> str | None:
    """Something in the root itself that no listing shows and no store makes, or None."""
    with folders.found((), readable=True) as folder:
        for entry in _entries(folder):
            is_folder = entry.is_dir(follow_symlinks=False)
            is_plain = is_folder or entry.is_file(follow_symlinks=False)
            is_ours = entry.name == LOCKS_FOLDER or entry.name.startswith(TEMPORARY_MARK)
            key = f"{entry.name}/{_ANY_NAME}" if is_folder else entry.name
            if not (is_ours or (is_plain and is_key(key))):
                return entry.name
    return None


def sweep(folders: Folders, syscalls: Syscalls) -> int:
    """Remove the temporary files that dead processes left anywhere in a store; how many.

    Folders deeper than any key reaches are foreign, and are not entered: nobody who writes
    blobs leaves anything there, and each further one would be walked to from the root.

    After a crash: each file is there or not; none of them is a blob.
    """
    swept = 0
    pending: list[tuple[str, ...]] = [()]
    while pending:
        names = pending.pop()
        with folders.found(names, readable=True) as folder:
            for entry in _entries(folder):
                if entry.is_dir(follow_symlinks=False):
                    if len(names) + 1 < NAME_COUNT_MAX:
                        pending.append((*names, entry.name))
                elif folder is not None and entry.name.startswith(TEMPORARY_MARK):
                    swept += remove_abandoned(entry.name, folder, syscalls)
    return swept


def _named_sizes(folder: int | None, start: str) -> Iterator[tuple[str, int]]:
    """Plain files with their sizes, and folders as `name/` with -1, as keys sort."""
    for entry in _entries(folder):
        try:
            name = os.fsencode(entry.name).decode("utf-8")
            if not name.startswith(start):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield name + "/", -1
            elif entry.is_file(follow_symlinks=False):
                yield name, entry.stat(follow_symlinks=False).st_size
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # no blob, or deleted since


def _entries(folder: int | None) -> Iterator[os.DirEntry[str]]:
    if folder is not None:
        with os.scandir(folder) as entries:
            yield from entries
