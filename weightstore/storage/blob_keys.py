"""The grammar of keys, shared by every store, so that a key refused by one is refused by all.

A key is a relative path of plain names: letters, digits, `_`, `.` and `-`. The files of an
anchor keep the names that their makers gave them, so the last name under `anchors/` may be
any UTF-8 without slash and NUL. Three names are kept for what is no blob: the folders of
owner locks and of the index, and names that start like a temporary file.
"""

from __future__ import annotations

import re

from weightstore.errors import InputRefusedError
from weightstore.format.keys import ANCHORS_PREFIX, HEAD_KEY, RECEIVERS_PREFIX

LOCKS_FOLDER = "locks"
"""Folder of a local store that holds the owners' lock files; never part of a key."""
INDEX_FOLDER = "index"
"""Folder of a local store that holds the index of its log; never part of a key."""
TEMPORARY_MARK = "~tmp-"
"""How names of unfinished files start; `~` is in no name that this library makes."""
NAME_SIZE_BYTES_MAX = 255
NAME_COUNT_MAX = 8

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,255}")
_HINT = re.compile(rf"{HEAD_KEY}|{RECEIVERS_PREFIX}[^/]+")
_ANCHOR_FOLDER = ANCHORS_PREFIX.removesuffix("/")


def check_key(key: str) -> tuple[str, ...]:
    """The names that a key consists of, outermost first.

    Raises:
        InputRefusedError: the key breaks the grammar.
    """
    names = tuple(key.split("/"))
    plain = names[:-1] if names[0] == _ANCHOR_FOLDER and len(names) > 1 else names
    allowed = (
        len(names) <= NAME_COUNT_MAX
        and all(_NAME.fullmatch(name) for name in plain)
        and all(_is_one_name(name) for name in names)
        and names[0] not in {LOCKS_FOLDER, INDEX_FOLDER}
    )
    if not allowed:
        raise _refused(key, "key")
    return names


def check_hint_key(key: str) -> tuple[str, ...]:
    """The names of a key that may be overwritten: `head` or one under `receivers/`.

    Raises:
        InputRefusedError: any other key; what is immutable is never replaced.
    """
    names = check_key(key)
    if not _HINT.fullmatch(key):
        raise InputRefusedError(
            f"{key!r} is immutable and cannot be overwritten",
            do="Overwrite `head` or a key under `receivers/`; put everything else once.",
            facts={"key": key},
        )
    return names


def check_prefix(prefix: str) -> tuple[tuple[str, ...], str]:
    """The folder that a listing starts in, and how names in it must start.

    Raises:
        InputRefusedError: the prefix can be the start of no key.
    """
    *folder, start = prefix.split("/")
    if not all(_NAME.fullmatch(name) and _is_one_name(name) for name in folder):
        raise _refused(prefix, "prefix")
    if "\0" in start or len(folder) >= NAME_COUNT_MAX:
        raise _refused(prefix, "prefix")
    return tuple(folder), start


def is_key(key: str) -> bool:
    """Whether a name that was found on a disk is a key at all."""
    try:
        check_key(key)
    except InputRefusedError:
        return False
    return True


def _is_one_name(name: str) -> bool:
    if name in {"", ".", ".."} or "\0" in name or name.startswith(TEMPORARY_MARK):
        return False
    try:
        return len(name.encode("utf-8")) <= NAME_SIZE_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _refused(text: str, what: str) -> InputRefusedError:
    shown = ascii(text if len(text) <= 200 else text[:200] + "...")  # noqa: PLR2004 -- readable
    return InputRefusedError(
        f"{shown} is no {what} of a store",
        do="Give relative names of letters, digits, '_', '.' and '-' with single slashes.",
        facts={"key": shown},
    )
