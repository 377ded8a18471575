"""Members: what each receiver process says about itself under `receivers/<id>`.

A member object is for liveness and for people: an activation waits by it, and `watch` shows
it. No version, no record and no gate depends on one, so a lost, stale, damaged or invented
member costs time at most. Only its owner writes it; a process that starts again takes a new
id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from weightstore.format.canonical import (
    MAX_INTEGER,
    CanonicalModel,
    decode_model,
    encode_json,
    encode_model,
)
from weightstore.ids import HEX128_PATTERN, SHA256_PATTERN, MemberId, Sha256, Slot, VersionId

MEMBER_FORMAT = 1
MEMBER_TEXT_LENGTH_MAX = 256

_Int = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Slot = Annotated[Slot, Field(ge=0, le=MAX_INTEGER)]
_Text = Annotated[str, Field(max_length=MEMBER_TEXT_LENGTH_MAX)]

MemberMode = Literal["controller", "active", "latest"]
MemberState = Literal["empty", "whole", "applying", "dirty"]


class MemberVersion(CanonicalModel):
    """A version that a receiver holds or has staged."""

    version: Annotated[VersionId, Field(ge=1, le=MAX_INTEGER)]
    digest: Annotated[Sha256, Field(pattern=SHA256_PATTERN)]


class Member(CanonicalModel):
    """One start of one receiver process; of an engine of several ranks, its leader.

    Attributes:
        format: Of this object.
        member_id: New at each start.
        name: For people, such as `rollout-3`.
        host: Of the process.
        process: Its number.
        boot_id: Of its machine's kernel.
        rank_count: Ranks of the engine.
        mode: What it serves by.
        state: Of its live weights.
        live: The version that they are; null unless they are whole.
        staged: The version that it can apply without reading the store; withdrawn before
            the staged change is dropped.
        activate_slot: The newest `activate` record that it has read.
        applied_slot: The `activate` record under which it serves `live`; in the mode
            `active` alone.
        counter: Rises with every write of this object.
        phase: What it does now; empty while it does nothing.
        refit_count: Refits since its start.
        wire_bytes: Bytes of stored objects that they have read.
        applied_bytes: Bytes that they have written to live weights.
        last_pause_us: How long the last of them stopped serving.
        written_unix_ms: Its clock, for display alone.
    """

    format: Annotated[int, Field(ge=MEMBER_FORMAT, le=MEMBER_FORMAT)] = MEMBER_FORMAT
    member_id: Annotated[MemberId, Field(pattern=HEX128_PATTERN)]
    name: _Text
    host: _Text
    process: _Int
    boot_id: _Text
    rank_count: Annotated[int, Field(ge=1, le=MAX_INTEGER)] = 1
    mode: MemberMode
    state: MemberState
    live: MemberVersion | None
    staged: MemberVersion | None
    activate_slot: _Slot | None
    applied_slot: _Slot | None
    counter: _Int
    phase: _Text = ""
    refit_count: _Int = 0
    wire_bytes: _Int = 0
    applied_bytes: _Int = 0
    last_pause_us: _Int = 0
    written_unix_ms: _Int


def encode_member(member: Member) -> bytes:
    """Canonical bytes of a member object."""
    return encode_model(member)


def decode_member(data: bytes, *, what: str) -> Member:
    """Parse a member object.

    Raises:
        CorruptObjectError: anything else.
    """
    return decode_model(Member, data, what=what)


def members_sha256(members: Iterable[Member]) -> Sha256:
    """What an `activate` record says of the members that it counted: ids and counters."""
    counted = sorted((member.member_id, member.counter) for member in members)
    listed = [[member_id, counter] for member_id, counter in counted]
    return Sha256(hashlib.sha256(encode_json(listed)).hexdigest())


def member_text(text: str) -> str:
    """A text as a member may hold it: cut to its length, and as UTF-8 can say it."""
    said = text.encode("utf-8", "replace").decode("utf-8")
    return said[:MEMBER_TEXT_LENGTH_MAX]
