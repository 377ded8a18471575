"""Copying a user's file into the store, by sharing its blocks where the disk can."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from weightstore.errors import InputRefusedError
from weightstore.storage.durable import UNSUPPORTED_ERRNOS, storage_error
from weightstore.storage.unfinished import UnfinishedFile

COPY_SIZE_BYTES = 64 * 1024 * 1024
READ_SIZE_BYTES = 1024 * 1024


def copy_file(source: Path, target: UnfinishedFile) -> int:
    """Fill an unfinished file from another file; the number of bytes.

    Shared blocks are copied by the disk as soon as one side writes, so later edits of the
    source never show. Symbolic links to the source are followed: model caches are made of
    them.

    Raises:
        InputRefusedError: the source is no regular file, cannot be read, or changed while
            it was copied.
        StorageFullError: no space; nothing is visible.
        StorageFailedError: the system failed; nothing is visible.
    """
    try:
        file = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise InputRefusedError(
            f"cannot read {source}: {error.strerror}", do="Give a file that can be read."
        ) from error
    try:
        before = os.fstat(file)
        if not stat.S_ISREG(before.st_mode):
            raise InputRefusedError(f"{source} is no regular file", do="Give a plain file.")
        copied = _copy(file, before.st_size, source, target)
        after = os.fstat(file)
    finally:
        os.close(file)
    if copied != before.st_size or _stamp(before) != _stamp(after):
        raise InputRefusedError(
            f"{source} changed while it was copied ({before.st_size} bytes before,"
            f" {after.st_size} after, {copied} copied)",
            do="Wait until nobody writes the file, then repeat.",
            facts={"path": str(source)},
        )
    return copied


def _copy(file: int, size_bytes: int, source: Path, target: UnfinishedFile) -> int:
    try:
        if _clone(file, target):
            return os.fstat(target.file).st_size
        done = 0
        while done < size_bytes:
            try:
                count = target.syscalls.copy_range(
                    file, target.file, min(size_bytes - done, COPY_SIZE_BYTES)
                )
            except OSError as error:
                if error.errno not in UNSUPPORTED_ERRNOS:
                    raise
                return done + _read_and_write(file, target)
            if count == 0:
                break
            done += count
    except OSError as error:
        raise storage_error(error, f"copy {source}") from error
    return done


def _clone(file: int, target: UnfinishedFile) -> bool:
    try:
        target.syscalls.clone(file, target.file)
    except OSError:
        # Most file systems cannot. If the disk is full or broken, copying says so.
        return False
    return True


def _read_and_write(file: int, target: UnfinishedFile) -> int:
    done = 0
    while part := os.read(file, READ_SIZE_BYTES):
        done += target.write(part)
    return done


def _stamp(found: os.stat_result) -> tuple[int, int]:
    return (found.st_size, found.st_mtime_ns)
