"""What a valid record changes: the state after it as a function of the state before it."""

from __future__ import annotations

from typing import assert_never

from weightstore.format import kept as kept_sets
from weightstore.format.records import (
    ActivateRecord,
    ActiveVersion,
    AltRecord,
    ClaimRecord,
    FormatRecord,
    InitRecord,
    IntentRecord,
    Newest,
    Now,
    OpenClaim,
    OpenIntent,
    Record,
    RetireRecord,
    TagRecord,
    VersionRecord,
    VoidAttempt,
    VoidIntent,
    VoidRecord,
)
from weightstore.ids import Attempt

_Change = dict[str, object]


def state_after(now: Now, record: Record) -> Now:
    """The state after a record that is valid under `now`.

    Fields of the state that this release does not know stay as they are.
    """
    last_slots = {**now.last_slots, record.kind: record.slot}
    return now.model_copy(update={**_change(now, record), "last_slots": last_slots})


def _change(  # noqa: C901, PLR0911 -- one case a kind, matched to the end
    now: Now, record: Record
) -> _Change:
    match record:
        case InitRecord() | FormatRecord():
            return {"format": record.format, "features": record.features}
        case ClaimRecord():
            return _claimed(record)
        case VersionRecord():
            return _published(now, record)
        case IntentRecord():
            return {"intents": (*now.intents, _intent(record))}
        case AltRecord():
            return _without_intent(now, record.anchor_id)
        case VoidRecord():
            return _voided(now, record.what)
        case TagRecord():
            return {}
        case ActivateRecord():
            return _activated(now, record)
        case RetireRecord():
            return {"kept": record.kept}
        case _:
            assert_never(record)


def _claimed(record: ClaimRecord) -> _Change:
    if record.action == "close" or record.run is None:
        return {"claim": None}
    claim = OpenClaim(
        slot=record.slot,
        epoch=record.epoch,
        run=record.run,
        session=record.session,
        last_step=record.last_step,
        host=record.host,
        process=record.process,
        boot_id=record.boot_id,
    )
    return {"claim": claim, "epoch": record.epoch, "lowest_open_attempt": Attempt(1)}


def _published(now: Now, record: VersionRecord) -> _Change:
    assert record.run is not None
    newest = Newest(
        version=record.version,
        slot=record.slot,
        epoch=record.epoch,
        run=record.run,
        step=record.step,
        digest=record.digest,
    )
    claim = now.claim.model_copy(update={"last_step": record.step}) if now.claim else None
    return {
        "newest": newest,
        "claim": claim,
        "lowest_open_attempt": Attempt(1),
        "kept": kept_sets.add(now.kept, record.version),
    }


def _intent(record: IntentRecord) -> OpenIntent:
    return OpenIntent(anchor_id=record.anchor_id, version=record.version, slot=record.slot)


def _voided(now: Now, what: VoidAttempt | VoidIntent) -> _Change:
    match what:
        case VoidAttempt():
            return {"lowest_open_attempt": Attempt(what.attempt + 1)}
        case VoidIntent():
            return _without_intent(now, what.anchor_id)
        case _:
            assert_never(what)


def _without_intent(now: Now, anchor_id: str) -> _Change:
    return {"intents": tuple(one for one in now.intents if one.anchor_id != anchor_id)}


def _activated(now: Now, record: ActivateRecord) -> _Change:
    active = ActiveVersion(version=record.version, slot=record.slot)
    # Activating the active version again must not take its predecessor's protection. (P9)
    if now.active is not None and now.active.version != record.version:
        return {"active": active, "previous_active": now.active}
    return {"active": active}
