"""Deleting what no valid record can name any more; on any doubt, nothing (P9).

Listings find garbage and nothing else. The whole log is validated, from slot 0 to its tail,
before anything is listed, so an object made later is never judged by a state that does not know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weightstore.errors import BlobOutcomeUnknownError
from weightstore.format.kept import Kept
from weightstore.format.keys import (
    ANCHORS_PREFIX,
    LAYOUTS_PREFIX,
    MANIFESTS_PREFIX,
    PACKS_PREFIX,
    RECEIPTS_PREFIX,
    parse_trainer_key,
)
from weightstore.format.records import AltRecord, Now, VoidIntent, VoidRecord
from weightstore.format.rules import (
    EMPTY_PREFIX,
    AnchorFate,
    Prefix,
    may_collect,
    may_collect_anchor,
)
from weightstore.history.log import Log
from weightstore.history.retire import ObjectsOf, check_objects, unless_retired_meanwhile
from weightstore.history.versions import records_of
from weightstore.ids import VersionId
from weightstore.storage.blobs import BlobInfo, BlobStore

# Manifests go first, and their deletion is synced before the rest goes: without its manifest
# nothing of a version can be read, so a sweep that is cut, by power loss too, never leaves a
# manifest whose packs are gone.
SWEPT_PREFIXES = (
    MANIFESTS_PREFIX,
    PACKS_PREFIX,
    ANCHORS_PREFIX,
    LAYOUTS_PREFIX,
    RECEIPTS_PREFIX,
)
_ANCHOR = re.compile(rf"{ANCHORS_PREFIX}([^/]+)/[^/]+\Z")


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep deleted, or with a dry run would delete.

    Attributes:
        deleted_count: Objects deleted.
        deleted_size_bytes: Their sizes, added up.
        left_count: Objects that are needed, or may be.
        unknown_count: Objects whose names are not understood; they were left alone.
    """

    deleted_count: int
    deleted_size_bytes: int
    left_count: int
    unknown_count: int


@dataclass(frozen=True, slots=True)
class _Anchors:
    """What the log says about the ids of compactors' anchors.

    Attributes:
        open_ids: Those that a compactor may still be writing.
        alts: The versions that an `alt` gave each id to.
        voided_ids: Those of which an intent was voided.
    """

    open_ids: frozenset[str]
    alts: Mapping[str, frozenset[VersionId]]
    voided_ids: frozenset[str]

    def may_delete(self, now: Now, anchor_id: str) -> bool | None:
        """Whether nobody can read an anchor any more; None for an id that was never said.

        An id may be used again, so one reason to keep an anchor outranks any other to
        delete it.
        """
        if anchor_id in self.open_ids:
            return may_collect_anchor(now, AnchorFate.OPEN, None)
        versions = self.alts.get(anchor_id)
        if versions is not None:
            return all(may_collect_anchor(now, AnchorFate.USED, one) for one in versions)
        if anchor_id in self.voided_ids:
            return may_collect_anchor(now, AnchorFate.VOIDED, None)
        return None


def sweep(
    blobs: BlobStore,
    log: Log,
    *,
    objects_of: ObjectsOf,
    dry_run: bool = False,
    kept: Kept | None = None,
    proven: Prefix = EMPTY_PREFIX,
) -> SweepReport:
    """Delete the objects of retired versions and of attempts that have ended.

    Everything is read, listed and checked before the first deletion.

    After a crash: some of the garbage is gone, the manifests first; repeating ends it.

    Args:
        blobs: The store.
        log: Its log.
        objects_of: Every object that a kept version names.
        dry_run: Report only.
        kept: With a dry run, report as if these versions were the kept ones.
        proven: The log as a retirement just before has validated it.

    Raises:
        RetireRefusedError: an object of a kept version is missing; nothing was deleted.
        CorruptError: a manifest or record cannot be read, or the newest records mislead those
            who read no others; nothing was deleted.
        UpgradeRequiredError: the log holds what this release does not know; likewise.
        BlobOutcomeUnknownError: a deletion got no answer in a few tries, or the deletion of
            the manifests could not be synced; then nothing else was deleted.
    """
    assert kept is None or dry_run, "only the log says what is kept"
    survey = unless_retired_meanwhile(
        log, lambda prefix: _survey(blobs, log, prefix, objects_of, kept), proven=proven
    )
    if not dry_run:
        _delete_all(blobs, [info.key for info in survey.garbage], log.limits.delete_try_count)
    return SweepReport(
        deleted_count=len(survey.garbage),
        deleted_size_bytes=sum(info.size_bytes for info in survey.garbage),
        left_count=survey.left_count,
        unknown_count=survey.unknown_count,
    )


@dataclass(frozen=True, slots=True)
class _Survey:
    """What a sweep found: all of it known before anything is deleted."""

    garbage: tuple[BlobInfo, ...]
    left_count: int
    unknown_count: int


def _survey(
    blobs: BlobStore, log: Log, prefix: Prefix, objects_of: ObjectsOf, kept: Kept | None
) -> _Survey:
    now = prefix.now if kept is None else prefix.now.model_copy(update={"kept": kept})
    needed = check_objects(blobs, records_of(log, prefix, now.kept), objects_of)
    judge = _Judge(now, needed, _anchors(log, prefix))
    garbage: list[BlobInfo] = []
    left_count = unknown_count = 0
    for folder in SWEPT_PREFIXES:
        for info in blobs.list(folder):
            verdict = judge.may_delete(info.key)
            if verdict is None:
                unknown_count += 1
            elif verdict:
                garbage.append(info)
            else:
                left_count += 1
    return _Survey(tuple(garbage), left_count, unknown_count)


class _Judge:
    """Decides about keys under one state of the log."""

    def __init__(self, now: Now, needed: frozenset[str], anchors: _Anchors) -> None:
        self._now = now
        self._needed = needed
        self._anchors = anchors

    def may_delete(self, key: str) -> bool | None:
        """Whether an object is garbage; None if its name is not understood."""
        if key in self._needed:
            return False
        trainer_key = parse_trainer_key(key)
        if trainer_key is not None:
            return may_collect(self._now, trainer_key, named_by_kept=False)
        found = _ANCHOR.match(key)
        return self._anchors.may_delete(self._now, found[1]) if found else None


def _anchors(log: Log, prefix: Prefix) -> _Anchors:
    alts: dict[str, frozenset[VersionId]] = {}
    for stored in log.records_of_kind(prefix, "alt"):
        assert isinstance(stored.record, AltRecord)
        known = alts.get(stored.record.anchor_id, frozenset())
        alts[stored.record.anchor_id] = known | {stored.record.version}
    voided_ids = {
        stored.record.what.anchor_id
        for stored in log.records_of_kind(prefix, "void")
        if isinstance(stored.record, VoidRecord) and isinstance(stored.record.what, VoidIntent)
    }
    open_ids = frozenset(intent.anchor_id for intent in prefix.now.intents)
    return _Anchors(open_ids, alts, frozenset(voided_ids))


def _delete_all(blobs: BlobStore, keys: Sequence[str], try_count: int) -> None:
    """Delete manifests, make that survive power loss, then delete the rest.

    After a crash: some are gone; no other object while a manifest of these is there.
    """
    manifests = [key for key in keys if key.startswith(MANIFESTS_PREFIX)]
    for key in manifests:
        _delete(blobs, key, try_count)
    # Also where no manifest was found: a sweep before this one may have been killed between
    # its deletion and the sync, and then the power could bring the manifest back. (P5)
    for folder in sorted({folder for key in keys if (folder := _manifests_beside(key))}):
        blobs.confirm_durable(folder)
    for key in keys:
        if not key.startswith(MANIFESTS_PREFIX):
            _delete(blobs, key, try_count)


def _manifests_beside(key: str) -> str:
    """The folder of the manifests that could name an object; empty if none could."""
    trainer_key = parse_trainer_key(key)
    return f"{MANIFESTS_PREFIX}{trainer_key.run}-{trainer_key.epoch}/" if trainer_key else ""


def _delete(blobs: BlobStore, key: str, try_count: int) -> None:
    """Delete one object; an unanswered deletion is simply done again.

    After a crash: the object is there or not.
    """
    for _ in range(try_count - 1):
        try:
            blobs.delete(key)
        except BlobOutcomeUnknownError:
            continue
        return
    blobs.delete(key)
