"""Where the index of a store lies: in the store if that is on a local disk, else in a cache."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from weightstore.ids import StoreId
from weightstore.storage.blob_keys import INDEX_FOLDER

# LMDB needs memory that all processes see at once, and locks that work. What is not listed
# is taken for a network: nfs, cifs, lustre, ceph, 9p, fuse and whatever comes next.
LOCAL_FILE_SYSTEMS = frozenset(
    {
        "bcachefs",
        "btrfs",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "jfs",
        "overlay",
        "ramfs",
        "reiserfs",
        "tmpfs",
        "xfs",
        "zfs",
    }
)
MOUNTS = Path("/proc/self/mountinfo")
_PLACE_DIGIT_COUNT = 16
_ESCAPED = re.compile(r"\\([0-7]{3})")


def index_folder(
    root: Path, store_id: StoreId, cache_dir: Path, *, mounts: Path = MOUNTS
) -> Path | None:
    """The folder for the index of a store; None if there is no place that suits LMDB.

    Args:
        root: The store's directory.
        store_id: Names the folder in the cache, with the place of the store.
        cache_dir: For stores on a network, and those that this process may not write to.
        mounts: The kernel's list of mounted file systems.
    """
    inside = root / INDEX_FOLDER
    if is_local(root, mounts=mounts) and _is_writable(inside):
        return inside
    if not is_local(cache_dir, mounts=mounts):
        return None
    # A copy of a store has its id, but need not have its newest records: with one folder for
    # both, each would delete the other's index.
    place = hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:_PLACE_DIGIT_COUNT]
    return cache_dir / f"{store_id}-{place}"


def folder_ids(place: Path) -> set[tuple[int, int, str]]:
    """What two paths share if they lead to one folder: it may not be made yet, or be mounted."""
    found: set[tuple[int, int, str]] = set()
    for path, name in ((place, ""), (place.parent, place.name)):
        with suppress(OSError):
            # The folder itself must be no link, but may be reached through some.
            status = path.stat(follow_symlinks=path is not place)
            found.add((status.st_dev, status.st_ino, name))
    return found


def is_local(path: Path, *, mounts: Path = MOUNTS) -> bool:
    """Whether a path lies, or would lie, on a file system known to be this machine's own."""
    return file_system_of(path, mounts=mounts) in LOCAL_FILE_SYSTEMS


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str:
    """The type of the file system that a path lies on; an empty text if nobody says so."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place = path.resolve()
    found, found_depth = "", 0
    for line in lines:
        # id parent major:minor root MOUNT-POINT options [tags...] - TYPE source options
        before, _, after = line.partition(" - ")
        point = Path(_unescaped((before.split(" ") + [""] * 5)[4]))
        depth = len(point.parts)
        # The last of several mounts on one point is the one that is seen.
        if depth >= found_depth and place.is_relative_to(point):
            found, found_depth = after.partition(" ")[0], depth
    return found


def _is_writable(folder: Path) -> bool:
    return os.access(folder if folder.exists() else folder.parent, os.W_OK | os.X_OK)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
