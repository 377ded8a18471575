"""What a record of format 1 may look like: every field by kind, with its type and its bounds.

Frozen, and as strict as the release that made format 1: what passes here has every field that
the rules of `log_1` read, of the type that they take it for, so that whatever stands in a log
is either understood or refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from .failures import DamagedStoreError, NewerStoreError

Value = dict[str, Any]
Check: TypeAlias = Callable[[object], bool]

INTEGER_MAX = 2**53 - 1
NESTING_COUNT_MAX = 255
"""Deeper than any record that was ever read; far from the depth at which Python gives up."""


def parse(data: bytes, slot: int) -> Value:
    """A record, in the one form that it may have.

    Raises:
        DamagedStoreError: it does not parse, lacks a field or has one of another type, or is
            of another slot.
        NewerStoreError: it is of a kind that this format does not have.
    """
    record = _canonical(data, slot)
    kind = record.get("kind") if isinstance(record, dict) else None
    if not isinstance(record, dict) or not isinstance(kind, str):
        raise DamagedStoreError(f"log record {slot} is no record")
    if kind not in _KINDS:
        raise NewerStoreError(f"log record {slot} is of the unknown kind {kind[:64]!r}")
    wrong = [name for name, check in _KINDS[kind].items() if not _fits(record, name, check)]
    if wrong:
        raise DamagedStoreError(f"log record {slot} is no record: {', '.join(wrong)}")
    if record["slot"] != slot:
        raise DamagedStoreError(f"log record {slot} says that it is record {record['slot']}")
    return record


def encode(value: object) -> bytes:
    """Canonical JSON."""
    return json.dumps(
        value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode("utf-8")


def _canonical(data: bytes, slot: int) -> object:
    try:
        value: object = json.loads(
            data.decode("utf-8"),
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
            parse_int=_bounded_integer,
        )
        is_canonical = not _is_too_deep(value) and encode(value) == data
    except (ValueError, RecursionError) as error:
        raise DamagedStoreError(f"log record {slot} is no JSON") from error
    if not is_canonical:
        raise DamagedStoreError(f"log record {slot} is no record")
    return value


def _bounded_integer(text: str) -> int:
    # The digits are counted first: turning very many of them into a number takes long.
    if len(text) <= len(str(-INTEGER_MAX)) and abs(number := int(text)) <= INTEGER_MAX:
        return number
    raise ValueError("an integer out of bounds")


def _refuse_number(text: str) -> int:
    raise ValueError(f"{text} is no integer")


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(NESTING_COUNT_MAX):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


# --- What a field may hold ----------------------------------------------------------------


def _fits(value: Value, name: str, check: Check) -> bool:
    return name in value and check(value[name])


def _integer(least: int) -> Check:
    # Not `isinstance`: True is no number.
    return lambda value: type(value) is int and least <= value <= INTEGER_MAX


def _text(pattern: str, length_max: int) -> Check:
    compiled = re.compile(pattern, re.DOTALL)
    return lambda value: (
        isinstance(value, str)
        and len(value) <= length_max
        and compiled.fullmatch(value) is not None
    )


def _one_of(*choices: str) -> Check:
    return lambda value: isinstance(value, str) and value in choices


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


def _object(**checks: Check) -> Check:
    """An object with these fields; others are kept as they are."""
    return lambda value: (
        isinstance(value, dict) and all(_fits(value, *each) for each in checks.items())
    )


def _slot_by_kind(value: object) -> bool:
    return isinstance(value, dict) and all(
        kind in _OWN_FIELDS and _COUNT(slot) for kind, slot in value.items()
    )


def _target(value: object) -> bool:
    target = value.get("target") if isinstance(value, dict) else None
    return isinstance(target, str) and target in _TARGETS and _TARGETS[target](value)


_COUNT = _integer(0)
_NUMBER = _integer(1)
_SHA256 = _text(r"[0-9a-f]{64}", 64)
_NONCE = _text(r"[0-9a-f]{32}", 32)
_RUN = _text(r"\.*[a-z0-9_][a-z0-9_.]*", 64)
_TAG = _text(r"[.\-]*[A-Za-z0-9_][A-Za-z0-9_.\-]*", 64)
_ANCHOR = _text(r"[.\-]*[a-z0-9_][a-z0-9_.\-]*", 160)
_WORDS = _text(r".*", 256)
_FEATURES = _list_of(_text(r"[a-z0-9_.]{1,64}", 64))
_KEPT = _list_of(_object(first=_NUMBER, last=_NUMBER))
_ACTIVE = _or_null(_object(version=_NUMBER, slot=_COUNT))

_TARGETS: dict[str, Check] = {
    "attempt": _object(version=_NUMBER, attempt=_NUMBER, attempt_commit_id=_NONCE),
    "intent": _object(anchor_id=_ANCHOR),
}
_NOW = _object(
    format=_NUMBER,
    features=_FEATURES,
    epoch=_COUNT,
    claim=_or_null(
        _object(
            slot=_COUNT,
            epoch=_COUNT,
            run=_RUN,
            session=_NONCE,
            last_step=_or_null(_COUNT),
            host=_WORDS,
            process=_COUNT,
            boot_id=_WORDS,
        )
    ),
    newest=_or_null(
        _object(version=_NUMBER, slot=_COUNT, epoch=_COUNT, run=_RUN, step=_COUNT, digest=_SHA256)
    ),
    lowest_open_attempt=_NUMBER,
    intents=_list_of(_object(anchor_id=_ANCHOR, version=_NUMBER, slot=_COUNT)),
    kept=_KEPT,
    active=_ACTIVE,
    previous_active=_ACTIVE,
    last_slots=_slot_by_kind,
)
_COMMON: dict[str, Check] = {
    "slot": _COUNT,
    "parent_sha256": _SHA256,
    "epoch": _COUNT,
    "run": _or_null(_RUN),
    "session": _NONCE,
    "commit_id": _NONCE,
    "written_unix_ms": _COUNT,
    "now": _NOW,
}
_MANIFEST: dict[str, Check] = {"manifest_size_bytes": _COUNT, "manifest_sha256": _SHA256}
_OWN_FIELDS: dict[str, dict[str, Check]] = {
    "init": {"store_id": _NONCE, "format": _NUMBER, "features": _FEATURES},
    "claim": {
        "action": _one_of("open", "close"),
        "take_over": _flag,
        "rewind_to": _or_null(_COUNT),
        "last_step": _or_null(_COUNT),
        "host": _WORDS,
        "process": _COUNT,
        "boot_id": _WORDS,
    },
    "version": {
        "version": _NUMBER,
        "attempt": _NUMBER,
        "step": _COUNT,
        "base": _or_null(_object(version=_NUMBER, digest=_SHA256)),
        "schema_id": _SHA256,
        "digest": _SHA256,
        "world_size": _NUMBER,
        **_MANIFEST,
    },
    "alt": {
        "version": _NUMBER,
        "form": _one_of("full", "fold"),
        "anchor_id": _ANCHOR,
        **_MANIFEST,
    },
    "intent": {"version": _NUMBER, "anchor_id": _ANCHOR},
    "void": {"what": _target},
    "tag": {"name": _TAG, "version": _or_null(_NUMBER), "owner": _WORDS},
    "activate": {
        "version": _NUMBER,
        "previous_activate_slot": _or_null(_COUNT),
        "members_sha256": _SHA256,
        "listed_count": _COUNT,
        "staged_count": _COUNT,
    },
    "retire": {"kept": _KEPT},
    "format": {"format": _NUMBER, "features": _FEATURES},
}
_KINDS = {kind: _COMMON | own for kind, own in _OWN_FIELDS.items()}
