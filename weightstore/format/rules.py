"""Which records are valid and how they change the state: the whole protocol as pure functions.

Writers run `validate` before they put a record, readers after they read one; both see the
prefix (every record below the slot, summed up) and the record, and nothing else. A record
that breaks a rule is void for everybody: `advance` moves past it and changes no state.
`docs/protocol.md` says the same in words.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from weightstore.format import kept as kept_sets
from weightstore.format.effects import state_after
from weightstore.format.keys import TrainerKey, anchor_key, parse_trainer_key
from weightstore.format.records import (
    EMPTY_NOW,
    FEATURES_KNOWN,
    FORMAT_NUMBER,
    ZERO_SHA256,
    ActivateRecord,
    AltRecord,
    Base,
    ClaimRecord,
    FormatRecord,
    InitRecord,
    IntentRecord,
    Now,
    OpenIntent,
    Record,
    RetireRecord,
    TagRecord,
    VersionRecord,
    VoidAttempt,
    VoidIntent,
    VoidRecord,
)
from weightstore.ids import Attempt, Sha256, Slot, VersionId
from weightstore.settings import Limits

# Validity is the same for everybody, so its bounds are the defaults, never a process's own.
_BOUNDS = Limits()
FEATURE_COUNT_MAX = 64


@dataclass(frozen=True, slots=True)
class Prefix:
    """Every record below `next_slot`, summed up.

    Attributes:
        next_slot: The first slot that is not part of it.
        tail_sha256: SHA-256 of the stored bytes of its last record; zeros when empty.
        now: The state that its valid records add up to.
    """

    next_slot: Slot
    tail_sha256: Sha256
    now: Now


EMPTY_PREFIX = Prefix(next_slot=Slot(0), tail_sha256=ZERO_SHA256, now=EMPTY_NOW)


class Rule(enum.Enum):
    """The rules of validity, by stable names."""

    SLOT = "slot"
    PARENT = "parent"
    NOW = "now"
    INIT = "init"
    EPOCH = "epoch"
    CLAIM_RUN = "claim_run"
    CLAIM_BUSY = "claim_busy"
    CLAIM_LAST_STEP = "claim_last_step"
    CLAIM_REWIND = "claim_rewind"
    CLAIM_CLOSE = "claim_close"
    OWNER_CLAIM = "owner_claim"
    OWNER_RUN = "owner_run"
    OWNER_SESSION = "owner_session"
    NEXT_VERSION = "next_version"
    ATTEMPT = "attempt"
    STEP = "step"
    BASE = "base"
    KEPT = "kept"
    INTENT_ID = "intent_id"
    INTENT_COUNT = "intent_count"
    INTENT_OPEN = "intent_open"
    ACTIVATE_LINK = "activate_link"
    ACTIVATE_COUNT = "activate_count"
    RETIRE_FORM = "retire_form"
    RETIRE_SUBSET = "retire_subset"
    RETIRE_LOSS = "retire_loss"
    FEATURES = "features"
    FORMAT_ORDER = "format_order"


@dataclass(frozen=True, slots=True)
class Valid:
    """The record counts."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """The record is void for everybody; `reason` says why, for people."""

    rule: Rule
    reason: str


Verdict = Valid | Invalid
VALID = Valid()


class AnchorFate(enum.Enum):
    """What the log says about a compactor's anchor id; a valid `alt` of it outranks a void."""

    UNKNOWN = "unknown"
    OPEN = "open"
    VOIDED = "voided"
    USED = "used"


def validate(prefix: Prefix, record: Record) -> Verdict:
    """Whether a record counts after a prefix. Pure; the same for writers and readers."""
    return next(broken_rules(prefix, record), VALID)


def broken_rules(prefix: Prefix, record: Record) -> Iterator[Invalid]:
    """Every rule that a record breaks after a prefix, the most basic one first."""
    if record.slot != prefix.next_slot:
        yield Invalid(Rule.SLOT, f"it is record {record.slot}, the next is {prefix.next_slot}")
    if record.parent_sha256 != prefix.tail_sha256:
        yield Invalid(Rule.PARENT, "its parent hash is not that of the record before it")
    if record.now != prefix.now:
        yield Invalid(Rule.NOW, "its `now` is not the state of the records below it")
    yield from _broken_beginning(prefix, record)
    yield from _broken_epoch(prefix.now, record)
    yield from _broken_of_kind(prefix.now, record)


def advance(prefix: Prefix, record: Record, record_sha256: Sha256) -> Prefix:
    """The prefix with one more record, whose stored bytes have this SHA-256.

    An invalid record moves slot and hash and changes nothing else.
    """
    if isinstance(validate(prefix, record), Invalid):
        return pass_over(prefix, record_sha256)
    return accept(prefix, record, record_sha256)


def accept(prefix: Prefix, record: Record, record_sha256: Sha256) -> Prefix:
    """`advance` for a record that `validate` has found valid after this prefix."""
    return Prefix(
        next_slot=Slot(prefix.next_slot + 1),
        tail_sha256=record_sha256,
        now=state_after(prefix.now, record),
    )


def pass_over(prefix: Prefix, record_sha256: Sha256) -> Prefix:
    """`advance` for a record that `validate` has found invalid."""
    return Prefix(next_slot=Slot(prefix.next_slot + 1), tail_sha256=record_sha256, now=prefix.now)


def upgrade_reason(now: Now) -> str | None:
    """Why this release must not read on under this state, or None if it may."""
    if now.format > FORMAT_NUMBER:
        return f"the store has format {now.format}, this release knows up to {FORMAT_NUMBER}"
    unknown = sorted(set(now.features) - FEATURES_KNOWN)
    return f"the store uses {', '.join(unknown)}, unknown to this release" if unknown else None


def next_version(now: Now) -> VersionId:
    """The only version that the next `version` record may make."""
    return VersionId(now.newest.version + 1 if now.newest else 1)


def is_kept(now: Now, version: int) -> bool:
    """Whether a version exists and was not retired."""
    return kept_sets.contains(now.kept, version)


def may_collect(now: Now, key: TrainerKey, *, named_by_kept: bool) -> bool:
    """Whether no version, kept now or made later, can name this trainer object (P9).

    Args:
        now: The state at the tail that the caller read before it listed anything.
        key: The parsed name of the object.
        named_by_kept: Whether the manifest of a version kept in `now` names it.
    """
    if named_by_kept or key.epoch > now.epoch:
        return False
    if key.epoch < now.epoch:
        return True
    # Of the epoch in force only attempts at versions that are already made have ended.
    return (
        key.version is not None and now.newest is not None and (key.version <= now.newest.version)
    )


def may_collect_anchor(now: Now, fate: AnchorFate, version: int | None) -> bool:
    """Whether a compactor's anchor can serve no reader any more (P9).

    Args:
        now: The state at the tail that the caller read before it listed anything.
        fate: What the log up to the tail says about the anchor's id.
        version: The version of its `alt`, where there is one.
    """
    match fate:
        case AnchorFate.VOIDED:
            return True
        case AnchorFate.USED:
            return version is not None and not is_kept(now, version)
        case AnchorFate.OPEN | AnchorFate.UNKNOWN:
            return False
        case _:
            assert_never(fate)


def _broken_beginning(prefix: Prefix, record: Record) -> Iterator[Invalid]:
    if (record.kind == "init") != (prefix.next_slot == 0):
        yield Invalid(Rule.INIT, "an `init` record stands at slot 0, and only there")
    elif record.kind != "init" and "init" not in prefix.now.last_slots:
        yield Invalid(Rule.INIT, "slot 0 holds no valid `init` record")


def _broken_epoch(now: Now, record: Record) -> Iterator[Invalid]:
    opens = isinstance(record, ClaimRecord) and record.action == "open"
    expected = now.epoch + 1 if opens else now.epoch
    if record.epoch != expected:
        yield Invalid(Rule.EPOCH, f"it is of epoch {record.epoch}, not of {expected}")


def _broken_of_kind(  # noqa: C901, PLR0911, PLR0912 -- one case a kind, matched to the end
    now: Now, record: Record
) -> Iterator[Invalid]:
    match record:
        case InitRecord():
            return _broken_features(record.features)
        case ClaimRecord():
            return (
                _broken_opening(now, record)
                if record.action == "open"
                else (_broken_closing(now, record))
            )
        case VersionRecord():
            return _broken_version(now, record)
        case AltRecord():
            return _broken_alt(now, record)
        case IntentRecord():
            return _broken_intent(now, record)
        case VoidRecord():
            return _broken_void(now, record)
        case TagRecord():
            return _broken_kept(now, record.version)
        case ActivateRecord():
            return _broken_activate(now, record)
        case RetireRecord():
            return _broken_retire(now, record)
        case FormatRecord():
            return _broken_format(now, record)
        case _:
            assert_never(record)


def _broken_opening(now: Now, record: ClaimRecord) -> Iterator[Invalid]:
    if record.run is None:
        yield Invalid(Rule.CLAIM_RUN, "a claim names a run")
    if now.claim is not None and not record.take_over:
        yield Invalid(Rule.CLAIM_BUSY, f"run {now.claim.run} of slot {now.claim.slot} owns it")
    own = now.newest if now.newest is not None and now.newest.run == record.run else None
    if record.rewind_to is None:
        # Of a run that did not make the newest version only the history knows the last step.
        known = now.newest is None or own is not None
        if known and record.last_step != (own.step if own else None):
            yield Invalid(Rule.CLAIM_LAST_STEP, "its last step is not the run's newest one")
    elif record.last_step != record.rewind_to:
        yield Invalid(Rule.CLAIM_REWIND, "its last step is not the one that it rewinds to")
    elif now.newest is None or (own is not None and record.rewind_to >= own.step):
        yield Invalid(Rule.CLAIM_REWIND, "it rewinds to a step that the run has not passed")


def _broken_closing(now: Now, record: ClaimRecord) -> Iterator[Invalid]:
    yield from _broken_owner(now, record)
    if record.take_over or record.rewind_to is not None:
        yield Invalid(Rule.CLAIM_CLOSE, "a closing claim takes nothing over and rewinds nothing")
    if now.claim is not None and record.last_step != now.claim.last_step:
        yield Invalid(Rule.CLAIM_LAST_STEP, "its last step is not that of the claim it closes")


def _broken_owner(now: Now, record: ClaimRecord | VersionRecord | VoidRecord) -> Iterator[Invalid]:
    # The epoch rule has fenced every older claim; run and session keep out the rest. (P7)
    if now.claim is None:
        yield Invalid(Rule.OWNER_CLAIM, "no claim is open")
        return
    if record.run != now.claim.run:
        yield Invalid(Rule.OWNER_RUN, f"the open claim is of run {now.claim.run}")
    if record.session != now.claim.session:
        yield Invalid(Rule.OWNER_SESSION, "the open claim is of another session")


def _broken_version(now: Now, record: VersionRecord) -> Iterator[Invalid]:
    yield from _broken_owner(now, record)
    yield from _broken_attempt(now, record.version, record.attempt)
    last_step = now.claim.last_step if now.claim else None
    if last_step is not None and record.step <= last_step:
        yield Invalid(Rule.STEP, f"step {record.step} is not above the last one, {last_step}")
    newest = now.newest
    base = Base(version=newest.version, digest=newest.digest) if newest else None
    if record.base is not None and record.base != base:
        yield Invalid(Rule.BASE, "its base is not the newest version")


def _broken_attempt(now: Now, version: VersionId, attempt: Attempt) -> Iterator[Invalid]:
    if version != next_version(now):
        yield Invalid(Rule.NEXT_VERSION, f"version {version} is not the next, {next_version(now)}")
    if attempt != now.lowest_open_attempt:
        yield Invalid(
            Rule.ATTEMPT, f"attempt {attempt} is not the open one, {now.lowest_open_attempt}"
        )


def _broken_kept(now: Now, version: VersionId | None) -> Iterator[Invalid]:
    if version is not None and not is_kept(now, version):
        yield Invalid(Rule.KEPT, f"version {version} is not kept")


def _broken_intent(now: Now, record: IntentRecord) -> Iterator[Invalid]:
    yield from _broken_kept(now, record.version)
    if _open_intent(now, record.anchor_id) is not None:
        yield Invalid(Rule.INTENT_ID, f"anchor id {record.anchor_id} is in use")
    # Under a name of that form the sweep of a trainer's objects would find it.
    if parse_trainer_key(anchor_key(record.anchor_id, "x")) is not None:
        yield Invalid(Rule.INTENT_ID, f"anchor id {record.anchor_id} has a trainer's form")
    if len(now.intents) >= _BOUNDS.open_intent_count:
        yield Invalid(Rule.INTENT_COUNT, f"{len(now.intents)} intents are open already")


def _broken_alt(now: Now, record: AltRecord) -> Iterator[Invalid]:
    yield from _broken_kept(now, record.version)
    intent = _open_intent(now, record.anchor_id)
    if intent is None or intent.version != record.version:
        yield Invalid(Rule.INTENT_OPEN, f"no open intent of version {record.version} names it")


def _broken_void(now: Now, record: VoidRecord) -> Iterator[Invalid]:
    match record.what:
        case VoidAttempt():
            yield from _broken_owner(now, record)
            yield from _broken_attempt(now, record.what.version, record.what.attempt)
        case VoidIntent():
            if _open_intent(now, record.what.anchor_id) is None:
                yield Invalid(Rule.INTENT_OPEN, f"no open intent {record.what.anchor_id}")
        case _:
            assert_never(record.what)


def _broken_activate(now: Now, record: ActivateRecord) -> Iterator[Invalid]:
    yield from _broken_kept(now, record.version)
    if record.previous_activate_slot != now.last_slots.get("activate"):
        yield Invalid(Rule.ACTIVATE_LINK, "it does not follow the newest `activate` record")
    if record.staged_count > record.listed_count:
        yield Invalid(Rule.ACTIVATE_COUNT, "more receivers have staged it than are listed")


def _broken_retire(now: Now, record: RetireRecord) -> Iterator[Invalid]:
    if not kept_sets.is_well_formed(record.kept) or len(record.kept) > _BOUNDS.kept_range_count:
        yield Invalid(Rule.RETIRE_FORM, "its ranges are not in the one form of a kept set")
        return
    if not kept_sets.is_subset(record.kept, now.kept):
        yield Invalid(Rule.RETIRE_SUBSET, "it names versions that are already gone")
    for what in (now.newest, now.active, now.previous_active):
        if what is not None and not kept_sets.contains(record.kept, what.version):
            yield Invalid(Rule.RETIRE_LOSS, f"it would lose version {what.version}")


def _broken_features(features: tuple[str, ...]) -> Iterator[Invalid]:
    if list(features) != sorted(set(features)) or len(features) > FEATURE_COUNT_MAX:
        yield Invalid(Rule.FEATURES, "its features are not sorted, repeat or are too many")


def _broken_format(now: Now, record: FormatRecord) -> Iterator[Invalid]:
    yield from _broken_features(record.features)
    if record.format < now.format or not set(record.features) >= set(now.features):
        yield Invalid(Rule.FORMAT_ORDER, "format and features never go back")
    if record.format == now.format and record.features == now.features:
        yield Invalid(Rule.FORMAT_ORDER, "it changes nothing")


def _open_intent(now: Now, anchor_id: str) -> OpenIntent | None:
    return next((intent for intent in now.intents if intent.anchor_id == anchor_id), None)
