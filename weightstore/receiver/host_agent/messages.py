"""What ranks and their host agent say to each other: canonical JSON, bounded, never code.

A rank says hello once on a connection, then asks as often as it likes; each request has one
answer. An answer of the kind `granted` carries one file descriptor beside its bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from weightstore.format.canonical import (
    MAX_INTEGER,
    CanonicalModel,
    decode_validated,
    encode_model,
)
from weightstore.format.manifest import Manifest, PackRef
from weightstore.format.objects import ObjectRef
from weightstore.ids import HEX128_PATTERN, SHA256_PATTERN, Sha256, StoreId

GRANT_COUNT_MAX = 1024
"""Grants that one connection holds, and that one message gives back."""
TEXT_LENGTH_MAX = 2000
MS_PER_S = 1000
WAIT_MS_MAX = 3600 * MS_PER_S

_Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
_Hex128 = Annotated[str, Field(pattern=HEX128_PATTERN)]
_Sha256 = Annotated[Sha256, Field(pattern=SHA256_PATTERN)]
_StoreId = Annotated[StoreId, Field(pattern=HEX128_PATTERN)]


class Hello(CanonicalModel):
    """The first message of a rank.

    Attributes:
        protocol: Of the rank.
        store_id: The store that it reads.
        process: Its number, for people.
    """

    kind: Literal["hello"] = "hello"
    protocol: _Positive
    store_id: _StoreId
    process: _Count


class PackRequest(CanonicalModel):
    """Asks for one pack, its bytes and its decoded pieces.

    Attributes:
        version: That the pack is of, for messages.
        pack: The object, from a manifest that the rank has verified.
        piece_count: As the manifest says.
        schema_id: Of the version.
        schema_ref: The object that holds the schema.
        wait_ms: How long the rank waits for an answer.
    """

    kind: Literal["pack"] = "pack"
    version: _Positive
    pack: ObjectRef
    piece_count: _Count
    schema_id: _Sha256
    schema_ref: ObjectRef
    wait_ms: Annotated[int, Field(ge=1, le=WAIT_MS_MAX)]

    @classmethod
    def of(cls, manifest: Manifest, pack: PackRef, wait_ms: int) -> Self:
        """Of a pack that a verified manifest names."""
        return cls(
            version=manifest.version,
            pack=ObjectRef(key=pack.key, size_bytes=pack.size_bytes, sha256=pack.sha256),
            piece_count=pack.piece_count,
            schema_id=manifest.schema_id,
            schema_ref=manifest.schema_ref,
            wait_ms=wait_ms,
        )


class Release(CanonicalModel):
    """Gives segments back: the rank will not look at them any more.

    Attributes:
        grants: Numbers of this connection's answers.
    """

    kind: Literal["release"] = "release"
    grants: Annotated[list[_Count], Field(max_length=GRANT_COUNT_MAX)]


class StatsRequest(CanonicalModel):
    """Asks what the agent has done so far."""

    kind: Literal["stats"] = "stats"


class Welcome(CanonicalModel):
    """The answer to a hello.

    Attributes:
        protocol: Of the agent.
        agent_id: New at each start.
    """

    kind: Literal["welcome"] = "welcome"
    protocol: _Positive
    agent_id: _Hex128


class Granted(CanonicalModel):
    """A segment; its file descriptor comes with these bytes.

    Attributes:
        grant: Gives it back; counts up on a connection.
        size_bytes: Of the segment.
    """

    kind: Literal["granted"] = "granted"
    grant: _Count
    size_bytes: _Positive


class Refused(CanonicalModel):
    """No segment.

    Attributes:
        reason: `busy`: no memory, or not in time; the rank decodes by itself. `failed`: the
            pack cannot be read or decoded; the rank finds out by itself. `foreign`: another
            store or protocol.
        message: For people.
    """

    kind: Literal["refused"] = "refused"
    reason: Literal["busy", "failed", "foreign"]
    message: Annotated[str, Field(max_length=TEXT_LENGTH_MAX)]


class Done(CanonicalModel):
    """The answer to a release."""

    kind: Literal["done"] = "done"


class AgentStats(CanonicalModel):
    """What an agent has done since it was started, and what it holds.

    Attributes:
        decoded_pack_count: Packs that were read and decoded.
        decoded_piece_count: Pieces in them.
        served_pack_count: Segments that were handed out.
        served_piece_count: Pieces in them.
        wire_bytes: Read from the store.
        busy_count: Requests that were turned away for lack of memory or time.
        failed_count: Requests for packs that cannot be read or decoded.
        segment_count: Segments that are held now.
        memory_bytes: Held now.
        memory_limit_bytes: May be held.
        connection_count: Open now.
    """

    kind: Literal["counts"] = "counts"
    decoded_pack_count: _Count = 0
    decoded_piece_count: _Count = 0
    served_pack_count: _Count = 0
    served_piece_count: _Count = 0
    wire_bytes: _Count = 0
    busy_count: _Count = 0
    failed_count: _Count = 0
    segment_count: _Count = 0
    memory_bytes: _Count = 0
    memory_limit_bytes: _Count = 0
    connection_count: _Count = 0


Request = Hello | PackRequest | Release | StatsRequest
Reply = Welcome | Granted | Refused | Done | AgentStats

_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_REPLIES: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def encode_message(message: Request | Reply) -> bytes:
    """Canonical bytes of a message."""
    return encode_model(message)


def decode_request(data: bytes) -> Request:
    """Parse what a rank says.

    Raises:
        CorruptObjectError: it is no request, or not in canonical form.
    """
    return decode_validated(_REQUESTS.validate_json, data, what="a request to the host agent")


def decode_reply(data: bytes) -> Reply:
    """Parse what an agent says.

    Raises:
        CorruptObjectError: it is no reply, or not in canonical form.
    """
    return decode_validated(_REPLIES.validate_json, data, what="a reply of the host agent")
