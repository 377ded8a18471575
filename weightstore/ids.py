"""Identities as types of their own, each with one text form.

They are `NewType`s, so that a type checker keeps a slot from being passed as a version at
no cost in the running program. Text from outside becomes an identity only by a `parse_`
function here.
"""

from __future__ import annotations

import re
from typing import NewType

from weightstore.errors import NameRefusedError, SelectorError

VersionId = NewType("VersionId", int)
"""1, 2, 3, ... without gaps, over all runs of a store; never reused."""
Step = NewType("Step", int)
"""The trainer's own count, from 0; rises within a run."""
Slot = NewType("Slot", int)
"""Index of a record in the log, from 0."""
Epoch = NewType("Epoch", int)
"""Number of the claim that owns the store; 0 before the first."""
Attempt = NewType("Attempt", int)
"""Number of a try at one version within one epoch, from 1."""
RunId = NewType("RunId", str)
"""Name of a training run: 1 to 64 of `a-z0-9_.`, at least one of them no dot."""
SessionId = NewType("SessionId", str)
"""Nonce of one launch: 32 hexadecimal digits."""
CommitId = NewType("CommitId", str)
"""Nonce of one attempt to put one record: 32 hexadecimal digits."""
StoreId = NewType("StoreId", str)
"""Nonce of a store: 32 hexadecimal digits."""
Sha256 = NewType("Sha256", str)
"""A SHA-256 as 64 lower-case hexadecimal digits."""
MemberId = NewType("MemberId", str)
"""Nonce of one start of a receiver process: 32 hexadecimal digits."""
TagName = NewType("TagName", str)
"""Name of a tag: 1 to 64 of `A-Za-z0-9_.-`, at least one of them a letter, digit or `_`."""

RUN_PATTERN = r"^\.*[a-z0-9_][a-z0-9_.]*$"
TAG_PATTERN = r"^[.\-]*[A-Za-z0-9_][A-Za-z0-9_.\-]*$"
NAME_LENGTH_MAX = 64
NUMBER_LENGTH_MAX = 18
HEX128_PATTERN = r"^[0-9a-f]{32}$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
ANCHOR_ID_PATTERN = r"^[.\-]*[a-z0-9_][a-z0-9_.\-]*$"
ANCHOR_ID_LENGTH_MAX = 160

_RUN = re.compile(RUN_PATTERN.removesuffix("$"))
_TAG = re.compile(TAG_PATTERN.removesuffix("$"))


def parse_run_id(text: str) -> RunId:
    """Check a run name given by a user.

    Raises:
        NameRefusedError: it breaks the grammar.
    """
    return RunId(_checked(text, _RUN, "run", "a-z, 0-9, '_' and '.'"))


def parse_engine_name(text: str) -> str:
    """Check the name of an engine of several ranks given by a user: by the grammar of runs.

    Raises:
        NameRefusedError: it breaks the grammar.
    """
    return _checked(text, _RUN, "engine", "a-z, 0-9, '_' and '.'")


def parse_tag_name(text: str) -> TagName:
    """Check a tag name given by a user.

    Raises:
        NameRefusedError: it breaks the grammar.
    """
    return TagName(_checked(text, _TAG, "tag", "A-Z, a-z, 0-9, '_', '.' and '-'"))


def parse_number(text: str, *, what: str) -> int:
    """Read a decimal number without sign or leading zeros.

    Raises:
        SelectorError: the text is anything else.
    """
    is_plain = text.isascii() and text.isdigit() and (len(text) == 1 or text[0] != "0")
    if not is_plain or len(text) > NUMBER_LENGTH_MAX:
        shown = text[:NAME_LENGTH_MAX]
        raise SelectorError(f"{shown!r} is not a {what}", do="Give a plain decimal number.")
    return int(text)


def _checked(text: str, grammar: re.Pattern[str], what: str, letters: str) -> str:
    if len(text) > NAME_LENGTH_MAX or not grammar.fullmatch(text):
        raise NameRefusedError(
            f"{what} name {text[: NAME_LENGTH_MAX + 1]!r} is not allowed",
            do=f"Use 1 to {NAME_LENGTH_MAX} of {letters}.",
            facts={what: text[: NAME_LENGTH_MAX + 1]},
        )
    return text
