"""Receipts: what an attempt says about itself before its record decides.

They prove nothing to readers: a version exists by its record alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from weightstore.format.canonical import MAX_INTEGER, CanonicalModel, decode_model, encode_model
from weightstore.format.manifest import PackRef
from weightstore.format.objects import ObjectRef
from weightstore.ids import (
    HEX128_PATTERN,
    NAME_LENGTH_MAX,
    RUN_PATTERN,
    SHA256_PATTERN,
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Step,
    VersionId,
)

RECEIPT_FORMAT = 1

_Int = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Text = Annotated[str, Field(max_length=256)]


class AttemptReceipt(CanonicalModel):
    """What the receipts of an attempt have in common: which attempt it is.

    Attributes:
        format: Of the receipt.
        run: The trainer's run.
        epoch: Of its claim.
        session: Of its launch.
        version: Which the attempt would make.
        attempt: Which try at it.
        commit_id: Of the record that would make it.
    """

    format: Annotated[int, Field(ge=RECEIPT_FORMAT, le=RECEIPT_FORMAT)] = RECEIPT_FORMAT
    run: Annotated[RunId, Field(pattern=RUN_PATTERN, max_length=NAME_LENGTH_MAX)]
    epoch: Annotated[Epoch, Field(ge=0, le=MAX_INTEGER)]
    session: Annotated[SessionId, Field(pattern=HEX128_PATTERN)]
    version: Annotated[VersionId, Field(ge=1, le=MAX_INTEGER)]
    attempt: Annotated[Attempt, Field(ge=1, le=MAX_INTEGER)]
    commit_id: Annotated[CommitId, Field(pattern=HEX128_PATTERN)]


class OpenReceipt(AttemptReceipt):
    """Opens an attempt.

    Attributes:
        deadline_unix_ms: Until when the writer means to wait, by its own clock; for display.
        host: Of the writer.
        process: Of the writer.
    """

    kind: Literal["open"] = "open"
    deadline_unix_ms: _Int
    host: _Text
    process: _Int


class RankReceipt(AttemptReceipt):
    """What one rank has put for an attempt.

    Attributes:
        rank: Whose it is.
        step: The trainer's own count.
        schema_id: SHA-256 of the schema.
        packs: The rank's own.
        changed_count: Changed units in them.
        before: The rank's share of the base's digest lanes, as a table in schema order.
        after: Its share of the new lanes.
    """

    kind: Literal["rank"] = "rank"
    rank: _Int
    step: Annotated[Step, Field(ge=0, le=MAX_INTEGER)]
    schema_id: Annotated[Sha256, Field(pattern=SHA256_PATTERN)]
    packs: tuple[PackRef, ...]
    changed_count: _Int
    before: ObjectRef
    after: ObjectRef


def encode_receipt(receipt: AttemptReceipt) -> bytes:
    """Canonical bytes of a receipt."""
    return encode_model(receipt)


def decode_open_receipt(data: bytes, *, what: str) -> OpenReceipt:
    """Parse an `open` object.

    Raises:
        CorruptObjectError: anything else.
    """
    return decode_model(OpenReceipt, data, what=what)


def decode_rank_receipt(data: bytes, *, what: str) -> RankReceipt:
    """Parse a rank's receipt.

    Raises:
        CorruptObjectError: anything else.
    """
    return decode_model(RankReceipt, data, what=what)
