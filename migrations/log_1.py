"""The log of format 1: its records, which of them count, and what they add up to.

Frozen. `docs/protocol.md` of the release that made format 1 says what is coded here; a later
format that changes a rule brings a module of its own. Records are plain JSON values.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .failures import NoStoreError
from .place import Place
from .record_1 import encode, parse

Value = dict[str, Any]

RECORD_SIZE_BYTES_MAX = 65_536
INTENT_COUNT_MAX = 64
RANGE_COUNT_MAX = 256
FEATURE_COUNT_MAX = 64
_TRAINER_ANCHOR = re.compile(r"(?=\.*[a-z0-9_])[a-z0-9_.]{1,64}(-(?:0|[1-9][0-9]{0,18})){3}\Z")


@dataclass(frozen=True)
class Prefix:
    """All records below a slot, summed up.

    Attributes:
        next_slot: The first slot that is not part of it.
        tail_sha256: SHA-256 of the bytes of its last record.
        now: The state that its valid records add up to.
    """

    next_slot: int
    tail_sha256: str
    now: Value


def empty_prefix() -> Prefix:
    """The log before its first record."""
    return Prefix(
        0,
        "0" * 64,
        {
            "format": 1,
            "features": [],
            "epoch": 0,
            "claim": None,
            "newest": None,
            "lowest_open_attempt": 1,
            "intents": [],
            "kept": [],
            "active": None,
            "previous_active": None,
            "last_slots": {},
        },
    )


def log_key(slot: int) -> str:
    """Key of a record."""
    return f"log/{slot:020d}"


def read_log(place: Place) -> Prefix:
    """Every record from the first one, judged and summed up.

    Raises:
        NoStoreError: there is no first record.
        DamagedStoreError: a record does not parse, is of another slot, or is no plain file.
        NewerStoreError: a record of a kind that this format does not have.
    """
    prefix = empty_prefix()
    while (
        data := place.read(log_key(prefix.next_slot), size_bytes_max=RECORD_SIZE_BYTES_MAX)
    ) is not None:
        prefix = advance(prefix, data)
    if prefix.next_slot == 0:
        raise NoStoreError(f"{place.root} has no log")
    return prefix


def advance(prefix: Prefix, data: bytes) -> Prefix:
    """The prefix with one more record; one that breaks a rule changes no state.

    Raises:
        DamagedStoreError, NewerStoreError: as `read_log`.
    """
    record = parse(data, prefix.next_slot)
    now = prefix.now if any(_broken(prefix, record)) else state_after(prefix.now, record)
    return Prefix(prefix.next_slot + 1, hashlib.sha256(data).hexdigest(), now)


def state_after(now: Value, record: Value) -> Value:
    """The state after a record that is valid under `now`; unknown fields stay."""
    last_slots = {**now["last_slots"], record["kind"]: record["slot"]}
    return {**now, **_EFFECTS[record["kind"]](now, record), "last_slots": last_slots}


def format_record(
    prefix: Prefix,
    *,
    format_number: int,
    features: list[str],
    nonce: Callable[[], str],
    unix_ms: int,
) -> bytes:
    """Bytes of the record that raises the format: it is valid after this prefix alone.

    Args:
        prefix: The log.
        format_number: In force from the record on.
        features: Added to those in force.
        nonce: Gives 32 hexadecimal digits, never the same.
        unix_ms: The clock, for display.
    """
    return encode(
        {
            "kind": "format",
            "slot": prefix.next_slot,
            "parent_sha256": prefix.tail_sha256,
            "epoch": prefix.now["epoch"],
            "run": None,
            "session": nonce(),
            "commit_id": nonce(),
            "written_unix_ms": unix_ms,
            "now": prefix.now,
            "format": format_number,
            "features": sorted({*prefix.now["features"], *features}),
        }
    )


# --- What a valid record changes --------------------------------------------------------


def _formatted(_: Value, record: Value) -> Value:
    return {"format": record["format"], "features": record["features"]}


def _claimed(_: Value, record: Value) -> Value:
    if record["action"] == "close" or record["run"] is None:
        return {"claim": None}
    names = ("slot", "epoch", "run", "session", "last_step", "host", "process", "boot_id")
    claim = {name: record[name] for name in names}
    return {"claim": claim, "epoch": record["epoch"], "lowest_open_attempt": 1}


def _published(now: Value, record: Value) -> Value:
    names = ("version", "slot", "epoch", "run", "step", "digest")
    claim = now["claim"]
    return {
        "newest": {name: record[name] for name in names},
        "claim": None if claim is None else {**claim, "last_step": record["step"]},
        "lowest_open_attempt": 1,
        "kept": _joined([*now["kept"], {"first": record["version"], "last": record["version"]}]),
    }


def _intended(now: Value, record: Value) -> Value:
    names = ("anchor_id", "version", "slot")
    return {"intents": [*now["intents"], {name: record[name] for name in names}]}


def _without_intent(now: Value, anchor_id: str) -> Value:
    return {"intents": [one for one in now["intents"] if one["anchor_id"] != anchor_id]}


def _alternated(now: Value, record: Value) -> Value:
    return _without_intent(now, record["anchor_id"])


def _voided(now: Value, record: Value) -> Value:
    what = record["what"]
    if what["target"] == "attempt":
        return {"lowest_open_attempt": what["attempt"] + 1}
    return _without_intent(now, what["anchor_id"])


def _tagged(_now: Value, _record: Value) -> Value:
    return {}


def _activated(now: Value, record: Value) -> Value:
    active = {"version": record["version"], "slot": record["slot"]}
    if now["active"] is not None and now["active"]["version"] != record["version"]:
        return {"active": active, "previous_active": now["active"]}
    return {"active": active}


def _retired(_: Value, record: Value) -> Value:
    return {"kept": record["kept"]}


_EFFECTS: dict[str, Callable[[Value, Value], Value]] = {
    "init": _formatted,
    "claim": _claimed,
    "version": _published,
    "alt": _alternated,
    "intent": _intended,
    "void": _voided,
    "tag": _tagged,
    "activate": _activated,
    "retire": _retired,
    "format": _formatted,
}


# --- Which records count: each condition is true where a rule is broken ------------------


def _broken(prefix: Prefix, record: Value) -> Iterator[bool]:
    now, kind = prefix.now, record["kind"]
    yield record["parent_sha256"] != prefix.tail_sha256
    yield record["now"] != now
    yield (kind == "init") != (prefix.next_slot == 0)
    yield kind != "init" and "init" not in now["last_slots"]
    opens = kind == "claim" and record["action"] == "open"
    yield record["epoch"] != now["epoch"] + (1 if opens else 0)
    yield from _BROKEN[kind](now, record)


def _broken_claim(now: Value, record: Value) -> Iterator[bool]:
    claim, newest = now["claim"], now["newest"]
    if record["action"] == "close":
        yield from _broken_owner(now, record)
        yield record["take_over"] or record["rewind_to"] is not None
        yield claim is not None and record["last_step"] != claim["last_step"]
        return
    yield record["run"] is None
    yield claim is not None and not record["take_over"]
    own = newest if newest is not None and newest["run"] == record["run"] else None
    rewind_to = record["rewind_to"]
    if rewind_to is None:
        is_known = newest is None or own is not None
        yield is_known and record["last_step"] != (own["step"] if own else None)
    else:
        yield record["last_step"] != rewind_to
        yield newest is None or (own is not None and rewind_to >= own["step"])


def _broken_owner(now: Value, record: Value) -> Iterator[bool]:
    claim = now["claim"]
    yield claim is None
    if claim is not None:
        yield (record["run"], record["session"]) != (claim["run"], claim["session"])


def _broken_version(now: Value, record: Value) -> Iterator[bool]:
    claim, newest, base = now["claim"], now["newest"], record["base"]
    yield from _broken_owner(now, record)
    yield from _broken_attempt(now, record)
    last_step = claim["last_step"] if claim is not None else None
    yield last_step is not None and record["step"] <= last_step
    expected = None if newest is None else {name: newest[name] for name in ("version", "digest")}
    yield base is not None and base != expected


def _broken_attempt(now: Value, what: Value) -> Iterator[bool]:
    newest = now["newest"]
    yield what["version"] != (newest["version"] + 1 if newest is not None else 1)
    yield what["attempt"] != now["lowest_open_attempt"]


def _broken_kept(now: Value, record: Value) -> Iterator[bool]:
    version = record["version"]
    yield version is not None and not _contains(now["kept"], version)


def _broken_intent(now: Value, record: Value) -> Iterator[bool]:
    yield from _broken_kept(now, record)
    yield any(one["anchor_id"] == record["anchor_id"] for one in now["intents"])
    yield _TRAINER_ANCHOR.match(record["anchor_id"]) is not None
    yield len(now["intents"]) >= INTENT_COUNT_MAX


def _broken_alt(now: Value, record: Value) -> Iterator[bool]:
    yield from _broken_kept(now, record)
    wanted = (record["anchor_id"], record["version"])
    yield all((one["anchor_id"], one["version"]) != wanted for one in now["intents"])


def _broken_void(now: Value, record: Value) -> Iterator[bool]:
    what = record["what"]
    if what["target"] == "attempt":
        yield from _broken_owner(now, record)
        yield from _broken_attempt(now, what)
    else:
        yield all(one["anchor_id"] != what["anchor_id"] for one in now["intents"])


def _broken_activate(now: Value, record: Value) -> Iterator[bool]:
    yield from _broken_kept(now, record)
    yield record["previous_activate_slot"] != now["last_slots"].get("activate")
    yield record["staged_count"] > record["listed_count"]


def _broken_retire(now: Value, record: Value) -> Iterator[bool]:
    kept = record["kept"]
    # A range that says more is not the range of the state, so it is none of its parts.
    yield any(part.keys() != {"first", "last"} for part in kept)
    yield any(part["first"] > part["last"] for part in kept)
    yield any(left["last"] + 1 >= right["first"] for left, right in pairwise(kept))
    yield len(kept) > RANGE_COUNT_MAX
    yield not all(
        any(whole["first"] <= part["first"] and part["last"] <= whole["last"]
            for whole in now["kept"])
        for part in kept
    )  # fmt: skip
    for one in (now["newest"], now["active"], now["previous_active"]):
        yield one is not None and not _contains(kept, one["version"])


def _broken_features(_: Value, record: Value) -> Iterator[bool]:
    features = record["features"]
    yield features != sorted(set(features)) or len(features) > FEATURE_COUNT_MAX


def _broken_format(now: Value, record: Value) -> Iterator[bool]:
    yield from _broken_features(now, record)
    before, after = (now["format"], now["features"]), (record["format"], record["features"])
    yield after[0] < before[0] or not set(after[1]) >= set(before[1])
    yield after == before


_BROKEN: dict[str, Callable[[Value, Value], Iterator[bool]]] = {
    "init": _broken_features,
    "claim": _broken_claim,
    "version": _broken_version,
    "alt": _broken_alt,
    "intent": _broken_intent,
    "void": _broken_void,
    "tag": _broken_kept,
    "activate": _broken_activate,
    "retire": _broken_retire,
    "format": _broken_format,
}


def _contains(kept: list[Value], version: int) -> bool:
    return any(part["first"] <= version <= part["last"] for part in kept)


def _joined(parts: list[Value]) -> list[Value]:
    """Ranges merged where the last one touches the one before."""
    if len(parts) > 1 and parts[-1]["first"] == parts[-2]["last"] + 1:
        return [*parts[:-2], {"first": parts[-2]["first"], "last": parts[-1]["last"]}]
    return parts
