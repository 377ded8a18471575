"""What a caller gave, as what the code below takes it for, or an error that names the argument.

A type checker has checked all of this for those who run one; others learn it here, before
anything is changed. A bool is no number, a text is no list of texts, and any integer type
is an int.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import SupportsIndex, TypeVar

import numpy as np

from weightstore.errors import InputRefusedError, SelectorError

TIMEOUT_MAX_S = 1e9
"""Above this the threads of the platform can no longer count."""

_SHOWN_LENGTH_MAX = 80
_SHOWN_BIT_COUNT_MAX = 128

T = TypeVar("T")


def whole(value: object, what: str, *, least: int, most: int, kind: str = "whole number") -> int:
    """An integer of any type within bounds.

    Raises:
        InputRefusedError: it is none, or out of bounds.
    """
    number = _index(value)
    if number is None or not least <= number <= most:
        raise _refused(value, what, kind, f"Give a whole number from {least} to {most}.")
    return number


def wholes(value: object, what: str) -> tuple[int, ...]:
    """Integers of any type, from any collection of them; their bounds are the caller's.

    Raises:
        InputRefusedError: it is none, or one of them is no integer.
    """
    found = tuple(_index(one) for one in _items(value, what, "list of whole numbers"))
    numbers = tuple(number for number in found if number is not None)
    if len(numbers) < len(found):
        raise _refused(value, what, "list of whole numbers", "Give whole numbers, as in [1, 2].")
    return numbers


def flag(value: object, what: str) -> bool:
    """True or False, NumPy's included: comparing NumPy numbers gives those.

    Raises:
        InputRefusedError: it is anything else, such as a text that would count as true.
    """
    if not isinstance(value, bool | np.bool_):
        raise _refused(value, what, "flag", "Give True or False.")
    return bool(value)


def text(value: object, what: str) -> str:
    """A text; its grammar is the caller's.

    Raises:
        InputRefusedError: it is none.
    """
    if not isinstance(value, str):
        raise _refused(value, what, "text", "Give a str.")
    return value


def texts(value: object, what: str) -> tuple[str, ...]:
    """Texts, from any collection of them; a single text would be one for each letter.

    Raises:
        InputRefusedError: it is none, or one of them is no text.
    """
    found = tuple(_items(value, what, "list of texts"))
    return tuple(text(one, f"an item of {what}") for one in found)


def texts_by_text(value: object, what: str) -> dict[str, str]:
    """A mapping of texts to texts.

    Raises:
        InputRefusedError: it is none, or a key or a value is no text.
    """
    if not isinstance(value, Mapping):
        raise _refused(value, what, "mapping", 'Give a dict of str to str, as in {"*": "bf16"}.')
    return {
        text(key, f"a key of {what}"): text(one, f"a value of {what}") for key, one in value.items()
    }


def choice(value: T, what: str, choices: tuple[str, ...]) -> T:
    """One of a closed set of texts.

    Raises:
        InputRefusedError: it is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        words = " or ".join(repr(one) for one in choices)
        raise _refused(value, what, "choice", f"Give {words}.")
    return value


def timeout_s(value: object) -> float | None:
    """Seconds to wait; None waits for ever.

    Raises:
        InputRefusedError: it is no number, or one that no wait can have.
    """
    if value is None:
        return None
    # Compared before it is converted: a float cannot hold every int.
    if (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and 0 <= value <= TIMEOUT_MAX_S
    ):
        return float(value)
    raise _refused(
        value,
        "timeout_s",
        "time to wait",
        f"Give seconds from 0 to {TIMEOUT_MAX_S:.0e}, or None to wait for ever.",
    )


def path_text(value: object, what: str) -> str:
    """A path as its text.

    Raises:
        InputRefusedError: it is none, is empty, or no file system can have it.
    """
    do = "Give a path as a str or a pathlib.Path."
    if not isinstance(value, str | os.PathLike):
        raise _refused(value, what, "path", do)
    found: object = os.fspath(value)
    if not isinstance(found, str) or not found or "\0" in found:
        raise _refused(found, what, "path", do)
    try:
        os.fsencode(found)
    except UnicodeEncodeError as error:
        raise _refused(found, what, "path", do) from error
    return found


def path(value: object, what: str) -> Path:
    """A path; as `path_text`."""
    return Path(path_text(value, what))


def place_text(value: object, what: str) -> str:
    """The path of a store, as its text.

    Raises:
        InputRefusedError: it is a URL, or as for `path_text`.
    """
    found = path_text(value, what)
    if "://" in found:
        raise InputRefusedError(
            f"{found} is a URL, and object storage is not there yet: stores are local directories",
            do="Give the directory of a store.",
            facts={what: found},
        )
    return found


def expanded(given: Path) -> Path:
    """A path with the home directory for a leading `~`.

    Raises:
        InputRefusedError: nobody knows that home directory.
    """
    try:
        return given.expanduser()
    except RuntimeError as error:
        raise InputRefusedError(
            f"{shown(str(given))} names a home directory that is not known: {error}",
            do="Write the path out.",
            facts={"path": str(given)},
        ) from error


def check_mapping(value: object, what: str, do: str) -> None:
    """Check that a value is a mapping, whatever is in it.

    Raises:
        InputRefusedError: it is none.
    """
    if not isinstance(value, Mapping):
        raise _refused(value, what, "mapping", do)


def check_instance(value: object, kind: type, what: str, do: str) -> None:
    """Check that a value is of a class.

    Raises:
        InputRefusedError: it is of another.
    """
    if not isinstance(value, kind):
        raise _refused(value, what, kind.__name__, do)


def function(value: T, what: str) -> T:
    """Something that can be called.

    Raises:
        InputRefusedError: it cannot.
    """
    if not callable(value):
        raise _refused(value, what, "function", "Give a function, or leave it out.")
    return value


def selector(value: object) -> int | str:
    """What may name a version: a number or a text; its grammar is the history's.

    Raises:
        SelectorError: it is neither.
    """
    if isinstance(value, str):
        return value
    number = _index(value)
    if number is None:
        raise SelectorError(
            f"{shown(value)} is no selector",
            do="Give an int for a version, or a str: latest, active, tag:NAME or RUN@STEP.",
        )
    return number


def shown(value: object) -> str:
    """A value for a message: a plain one as it is written, any other by its type."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BIT_COUNT_MAX:
        return f"<a number of {value.bit_length()} bits>"
    if isinstance(value, str | bytes):
        more = "..." if len(value) > _SHOWN_LENGTH_MAX else ""
        return f"{value[:_SHOWN_LENGTH_MAX]!r}{more}"
    if value is None or isinstance(value, bool | int | float):
        return f"{value!r}"
    return f"<{type(value).__name__}>"


def counted(count: int, one: str, many: str = "") -> str:
    """A count and what it counts: `1 version`, `2,000 versions`.

    Args:
        count: How many.
        one: The word for one.
        many: The word for several; without it `one` and an s.
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _index(value: object) -> int | None:
    """The integer that a value is, or None."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        # Arrays and tensors are integers only where they hold a single one.
        return None


def _items(value: object, what: str, kind: str) -> Iterator[object]:
    do = f"Give a {kind}."
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise _refused(value, what, kind, do)
    try:
        return iter(value)
    except TypeError as error:
        raise _refused(value, what, kind, do) from error


def _refused(value: object, what: str, kind: str, do: str) -> InputRefusedError:
    return InputRefusedError(f"{what}={shown(value)} is no {kind}", do=do, facts={"argument": what})
