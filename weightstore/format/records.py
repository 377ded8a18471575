"""The log's records and `Now`, the sum of the prefix before a record.

A record is one canonical JSON object of at most 64 KiB under `log/<slot>`. Its `now` is
the state of the slots below it, so that a reader which lands anywhere in the log knows
the whole state after O(1) reads; `format.rules` says which records are valid and how
they change the state.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter

from weightstore.errors import CorruptLogError, CorruptObjectError, UpgradeRequiredError
from weightstore.format.canonical import (
    MAX_INTEGER,
    CanonicalModel,
    decode_json,
    decode_validated,
    encode_model,
)
from weightstore.ids import (
    ANCHOR_ID_LENGTH_MAX,
    ANCHOR_ID_PATTERN,
    HEX128_PATTERN,
    NAME_LENGTH_MAX,
    RUN_PATTERN,
    SHA256_PATTERN,
    TAG_PATTERN,
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Slot,
    Step,
    StoreId,
    TagName,
    VersionId,
)

FORMAT_NUMBER = 1
FEATURES_KNOWN: frozenset[str] = frozenset()
ZERO_SHA256 = Sha256("0" * 64)

_Int = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
_Slot = Annotated[Slot, Field(ge=0, le=MAX_INTEGER)]
_Epoch = Annotated[Epoch, Field(ge=0, le=MAX_INTEGER)]
_Version = Annotated[VersionId, Field(ge=1, le=MAX_INTEGER)]
_Step = Annotated[Step, Field(ge=0, le=MAX_INTEGER)]
_Attempt = Annotated[Attempt, Field(ge=1, le=MAX_INTEGER)]
_Sha = Annotated[Sha256, Field(pattern=SHA256_PATTERN)]
_Run = Annotated[RunId, Field(pattern=RUN_PATTERN, max_length=NAME_LENGTH_MAX)]
_Session = Annotated[SessionId, Field(pattern=HEX128_PATTERN)]
_Commit = Annotated[CommitId, Field(pattern=HEX128_PATTERN)]
_Store = Annotated[StoreId, Field(pattern=HEX128_PATTERN)]
_Tag = Annotated[TagName, Field(pattern=TAG_PATTERN, max_length=NAME_LENGTH_MAX)]
_AnchorId = Annotated[str, Field(pattern=ANCHOR_ID_PATTERN, max_length=ANCHOR_ID_LENGTH_MAX)]
_Text = Annotated[str, Field(max_length=256)]
_Feature = Annotated[str, Field(pattern=r"^[a-z0-9_.]{1,64}$")]

Kind = Literal[
    "init", "claim", "version", "alt", "intent", "void", "tag", "activate", "retire", "format"
]


# --- The state of a prefix --------------------------------------------------------------


class Newest(CanonicalModel):
    """The newest version, as its record said it."""

    version: _Version
    slot: _Slot
    epoch: _Epoch
    run: _Run
    step: _Step
    digest: _Sha


class OpenClaim(CanonicalModel):
    """Who owns the store. `last_step` is the highest step of `run` that later ones must pass."""

    slot: _Slot
    epoch: _Epoch
    run: _Run
    session: _Session
    last_step: _Step | None
    host: _Text
    process: _Int
    boot_id: _Text


class ActiveVersion(CanonicalModel):
    """A version that an `activate` record named, and that record's slot."""

    version: _Version
    slot: _Slot


class OpenIntent(CanonicalModel):
    """An anchor id that a compactor is writing."""

    anchor_id: _AnchorId
    version: _Version
    slot: _Slot


class KeptRange(CanonicalModel):
    """Versions from `first` to `last`, both included, that were not retired."""

    first: _Version
    last: _Version


class Now(CanonicalModel):
    """What the slots below a record add up to.

    `lowest_open_attempt` counts attempts at the version after `newest` within `epoch`:
    lower ones were ended by a `void`. `last_slots` holds the newest slot of each kind,
    which links each record to its predecessor of the kind.
    """

    format: _Positive
    features: tuple[_Feature, ...]
    epoch: _Epoch
    claim: OpenClaim | None
    newest: Newest | None
    lowest_open_attempt: _Attempt
    intents: tuple[OpenIntent, ...]
    kept: tuple[KeptRange, ...]
    active: ActiveVersion | None
    previous_active: ActiveVersion | None
    last_slots: dict[Kind, _Slot]


EMPTY_NOW = Now(
    format=FORMAT_NUMBER,
    features=(),
    epoch=Epoch(0),
    claim=None,
    newest=None,
    lowest_open_attempt=Attempt(1),
    intents=(),
    kept=(),
    active=None,
    previous_active=None,
    last_slots={},
)


# --- Records ----------------------------------------------------------------------------


class RecordBase(CanonicalModel):
    """What every record holds.

    Attributes:
        slot: Index of this record in the log.
        parent_sha256: SHA-256 of the stored bytes of the record before; zeros at slot 0.
        epoch: The epoch in force; an opening claim holds the one that it begins.
        run: The trainer's run; null for writers that are no trainer.
        session: Nonce of the writer's launch.
        commit_id: Nonce of this attempt to put a record; kept when it moves to a later slot.
        written_unix_ms: The writer's clock, for display alone.
        now: The state of the slots below this one.
    """

    slot: _Slot
    parent_sha256: _Sha
    epoch: _Epoch
    run: _Run | None
    session: _Session
    commit_id: _Commit
    written_unix_ms: _Int
    now: Now


class InitRecord(RecordBase):
    """Slot 0: the store begins."""

    kind: Literal["init"] = "init"
    store_id: _Store
    format: _Positive
    features: tuple[_Feature, ...]


class ClaimRecord(RecordBase):
    """Opens or closes ownership of the store.

    `last_step` is the highest committed step of the run (null if none), from the log's
    history; `rewind_to` lowers it, so that steps above become new versions.
    """

    kind: Literal["claim"] = "claim"
    action: Literal["open", "close"]
    take_over: bool
    rewind_to: _Step | None
    last_step: _Step | None
    host: _Text
    process: _Int
    boot_id: _Text


class Base(CanonicalModel):
    """The version that a delta starts from."""

    version: _Version
    digest: _Sha


class VersionRecord(RecordBase):
    """Makes a version: the only kind that does. `base` is null for a version without one."""

    kind: Literal["version"] = "version"
    version: _Version
    attempt: _Attempt
    step: _Step
    base: Base | None
    schema_id: _Sha
    digest: _Sha
    manifest_size_bytes: _Int
    manifest_sha256: _Sha
    world_size: _Positive


class AltRecord(RecordBase):
    """Another way to the bytes of an existing version; never moves the newest."""

    kind: Literal["alt"] = "alt"
    version: _Version
    form: Literal["full", "fold"]
    anchor_id: _AnchorId
    manifest_size_bytes: _Int
    manifest_sha256: _Sha


class IntentRecord(RecordBase):
    """A compactor says which anchor id it is writing, so that nobody collects it."""

    kind: Literal["intent"] = "intent"
    version: _Version
    anchor_id: _AnchorId


class VoidAttempt(CanonicalModel):
    """Ends an attempt at a version."""

    target: Literal["attempt"] = "attempt"
    version: _Version
    attempt: _Attempt
    attempt_commit_id: _Commit


class VoidIntent(CanonicalModel):
    """Ends an intent."""

    target: Literal["intent"] = "intent"
    anchor_id: _AnchorId


class VoidRecord(RecordBase):
    """Ends an attempt (by its own session) or an intent (by anyone)."""

    kind: Literal["void"] = "void"
    what: Annotated[VoidAttempt | VoidIntent, Field(discriminator="target")]


class TagRecord(RecordBase):
    """Points a name at a version, or with null removes it. A tagged version is kept."""

    kind: Literal["tag"] = "tag"
    name: _Tag
    version: _Version | None
    owner: _Text


class ActivateRecord(RecordBase):
    """Names the version that receivers in the mode `active` serve."""

    kind: Literal["activate"] = "activate"
    version: _Version
    previous_activate_slot: _Slot | None
    members_sha256: _Sha
    listed_count: _Int
    staged_count: _Int


class RetireRecord(RecordBase):
    """The kept set: versions outside it are gone for readers and may be collected."""

    kind: Literal["retire"] = "retire"
    kept: tuple[KeptRange, ...]


class FormatRecord(RecordBase):
    """Changes format or features: writers that do not know them stop here."""

    kind: Literal["format"] = "format"
    format: _Positive
    features: tuple[_Feature, ...]


Record = Annotated[
    InitRecord
    | ClaimRecord
    | VersionRecord
    | AltRecord
    | IntentRecord
    | VoidRecord
    | TagRecord
    | ActivateRecord
    | RetireRecord
    | FormatRecord,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Record] = TypeAdapter(Record)
_KINDS: frozenset[str] = frozenset(get_args(Kind))


def encode_record(record: RecordBase) -> bytes:
    """Canonical bytes of a record."""
    return encode_model(record)


def decode_record(data: bytes, *, slot: Slot) -> Record:
    """Parse the stored bytes of the record at a slot.

    Raises:
        CorruptLogError: not canonical, not a record, or one of another slot.
        UpgradeRequiredError: a kind or format that this release does not know.
    """
    what = f"log record {slot}"
    try:
        record = decode_validated(_ADAPTER.validate_json, data, what=what)
    except CorruptObjectError as error:
        kind = _unknown_kind(data)
        if kind is not None:
            raise UpgradeRequiredError(
                f"{what} is of the unknown kind {kind!r}",
                do="Upgrade weightstore on this machine.",
                facts={"slot": slot},
            ) from error
        raise CorruptLogError(error.message, facts={"slot": slot}) from error
    if record.slot != slot:
        raise CorruptLogError(f"{what} says that it is record {record.slot}", facts={"slot": slot})
    return record


def _unknown_kind(data: bytes) -> str | None:
    """The kind of a record that does not parse, if only a later release can know it."""
    try:
        value = decode_json(data, what="log record")
    except CorruptObjectError:
        return None
    kind = value.get("kind") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) and kind not in _KINDS else None
