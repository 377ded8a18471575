"""Files and folders outside any store that are being written, beside the name they will get.

A partial has a name that begins with a dot and ends in `.partial`, and is locked while its
writer lives, so that the next one of the same target can tell it from what a killed process
left. Its name also says under which running kernel it was made: a lock of another machine
may be one that this machine cannot see, so what comes from elsewhere is left alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from weightstore.clock import Entropy
from weightstore.errors import StorageFailedError
from weightstore.storage import machine

PARTIAL_SUFFIX = ".partial"
CREATE_TRY_COUNT = 8

_MARK_LENGTH = 8
_UNKNOWN_MARK = "0" * _MARK_LENGTH
"""Of a partial that nobody may take for abandoned, since it has no lock that would tell."""
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def partial_place(target: Path, entropy: Entropy, *, is_directory: bool) -> Iterator[Path]:
    """A new empty file or folder beside a target; after an error it is removed.

    After a crash: it stays; `remove_abandoned_partials` of the same target finds it.

    Args:
        target: Absolute; what the file or folder will be renamed or linked to.
        entropy: Names it.
        is_directory: A folder, not a file.

    Raises:
        StorageFailedError: it was removed by others as often as it was made.
        OSError: what the system said.
    """
    path, file = _create(target, entropy, is_directory=is_directory)
    try:
        yield path
    except (Exception, KeyboardInterrupt):
        _remove(path)
        raise
    finally:
        # Last: whoever finds it unlocked takes it for abandoned.
        os.close(file)


def remove_abandoned_partials(target: Path) -> None:
    """Remove what writers of a target that were killed on this machine have left; best effort.

    Those from before a restart of the machine, and those of other machines, stay.

    After a crash: some of them, or parts of one, under a name that the next call finds.
    """
    mark = _kernel_mark()
    if mark == _UNKNOWN_MARK:
        return
    pattern = re.compile(
        re.escape(f".{target.name}.{mark}") + "[0-9a-f]{24}" + re.escape(PARTIAL_SUFFIX)
    )
    with suppress(OSError):
        for path in target.parent.iterdir():
            if pattern.fullmatch(path.name):
                _remove_abandoned(path)


def _create(target: Path, entropy: Entropy, *, is_directory: bool) -> tuple[Path, int]:
    """A partial and its open descriptor, which holds the lock."""
    mark = _kernel_mark()
    for _ in range(CREATE_TRY_COUNT):
        unique = mark + entropy.hex128()[_MARK_LENGTH:]
        path = target.with_name(f".{target.name}.{unique}{PARTIAL_SUFFIX}")
        file = _make(path, is_directory=is_directory)
        if file is None:
            continue
        try:
            if mark != _UNKNOWN_MARK:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)  # another writer has found it unlocked, and removes it
            continue
        except OSError:
            os.close(file)
            _remove(path)
            mark = _UNKNOWN_MARK
            continue
        try:
            is_own = _is_at(file, path)
        except BaseException:
            # Removed first: whoever finds it unlocked takes it for abandoned.
            _remove(path)
            os.close(file)
            raise
        if is_own:
            return path, file
        os.close(file)
    raise StorageFailedError(
        f"every file that was begun beside {target} was removed by others",
        do="Repeat; let nobody tidy up there meanwhile.",
    )


def _make(path: Path, *, is_directory: bool) -> int | None:
    """Make and open it; None if the name is taken, or it is gone again."""
    with suppress(FileExistsError):
        if not is_directory:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666)
        path.mkdir()
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | _OPEN)
    return None


def _remove_abandoned(path: Path) -> None:
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _OPEN)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A writer that ended well in between has given it its name, and this one is gone.
            if _is_at(file, path):
                _remove(path)
        finally:
            os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether a path still leads to an open file or folder."""
    opened = os.fstat(file)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    is_plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return is_plain and (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)


def _remove(path: Path) -> None:
    # What cannot be removed keeps its partial name; the error that led here matters more.
    with suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _kernel_mark() -> str:
    """Eight digits of this boot's id; those of no kernel where it tells none."""
    digits = machine.boot_id().replace("-", "")[:_MARK_LENGTH]
    return digits if re.fullmatch(r"[0-9a-f]{8}", digits) else _UNKNOWN_MARK
