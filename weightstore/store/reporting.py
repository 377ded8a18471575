"""Turns records and manifests into the values that the facade hands out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice

from weightstore.errors import CorruptLogError
from weightstore.format.records import (
    ActivateRecord,
    AltRecord,
    ClaimRecord,
    FormatRecord,
    InitRecord,
    IntentRecord,
    Record,
    RetireRecord,
    TagRecord,
    VersionRecord,
    VoidAttempt,
    VoidRecord,
)
from weightstore.format.rules import Invalid, Prefix
from weightstore.history.chain import CheckoutPlan
from weightstore.history.diff import Differences
from weightstore.history.log import Log, Step
from weightstore.history.manifests import SchemaCache, load_manifest, load_schema
from weightstore.ids import Slot, StoreId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.store.views import (
    ImportedVersion,
    LogRow,
    SkippedFile,
    StoreState,
    VerifyReport,
    VersionDetails,
    VersionDiff,
    VersionInfo,
)

_ROWS_AT_ONCE_COUNT = 32
"""A record's verdict depends on all before it, so rows are made forwards, some at a time."""


def version_info(record: VersionRecord, *, kept: bool) -> VersionInfo:
    """What a version's record says."""
    return VersionInfo(
        version=record.version,
        run=str(record.run),
        step=record.step,
        base=record.base.version if record.base else None,
        digest=record.digest,
        kept=kept,
        slot=record.slot,
        written_unix_ms=record.written_unix_ms,
    )


def imported_version(info: VersionInfo, skipped: Iterable[tuple[str, str]]) -> ImportedVersion:
    """A version, with what its import left behind: name and reason of each file."""
    return ImportedVersion(
        **asdict(info), skipped=tuple(SkippedFile(name, reason) for name, reason in skipped)
    )


def version_details(
    blobs: BlobStore, record: VersionRecord, limits: Limits, schemas: SchemaCache
) -> VersionDetails:
    """What a version's manifest and schema say.

    Raises:
        ObjectMissingError: one of them is not there.
        CorruptObjectError: one of them is damaged.
    """
    manifest = load_manifest(blobs, record, limits)
    schema = load_schema(blobs, manifest, limits, schemas)
    delta = manifest.delta
    return VersionDetails(
        version=record.version,
        run=str(record.run),
        step=record.step,
        base=record.base.version if record.base else None,
        digest=record.digest,
        schema_id=manifest.schema_id,
        tensor_count=len(schema.tensors),
        unit_count=schema.unit_count,
        full_size_bytes=schema.size_bytes,
        changed_count=delta.changed_count if delta else None,
        piece_count=delta.piece_count if delta else None,
        pack_count=len(delta.packs) if delta else None,
        delta_size_bytes=delta.size_bytes if delta else None,
        has_full_form=manifest.full is not None,
        chain_count=manifest.chain_count,
        chain_size_bytes=manifest.chain_size_bytes,
        manifest_size_bytes=record.manifest_size_bytes,
    )


def verify_report(plan: CheckoutPlan, *, scanned: bool) -> VerifyReport:
    """What a verification of a plan has read."""
    pack_count = sum(len(each.delta.packs) for each in plan.deltas if each.delta)
    # The full form's files and its block hashes, one schema, a manifest and table each.
    full_count = len(plan.full_form.files) + 1
    version_count = 1 + len(plan.deltas)
    return VerifyReport(
        version=plan.record.version,
        object_count=pack_count + full_count + 1 + 2 * version_count,
        read_size_bytes=plan.full_size_bytes + plan.delta_size_bytes,
        scanned=scanned,
    )


def version_diff(old: VersionInfo, new: VersionInfo, found: Differences) -> VersionDiff:
    """What a comparison found, the densest change first."""
    return VersionDiff(
        old=old,
        new=new,
        tensors=tuple(sorted(found.tensors, key=lambda each: (-each.density, each.name))),
        schema=found.schema,
        source=found.source.value,
        compared_count=found.compared_count,
        compared_unit_count=found.compared_unit_count,
        changed_count=sum(each.changed_count for each in found.tensors),
    )


def store_state(location: str, store_id: StoreId, prefix: Prefix) -> StoreState:
    """The state that the log's tail sums up to."""
    now = prefix.now
    claim = now.claim
    return StoreState(
        location=location,
        store_id=store_id,
        format=now.format,
        record_count=prefix.next_slot,
        newest=now.newest.version if now.newest else None,
        epoch=now.epoch,
        owner=f"run {claim.run} on {claim.host}, process {claim.process}" if claim else None,
        active=now.active.version if now.active else None,
    )


def log_rows(log: Log, prefix: Prefix) -> Iterator[LogRow]:
    """The records of a log for people, newest first, each with whether it counts.

    Raises:
        CorruptLogError: one is missing although later ones are there, or does not parse.
    """
    end: int = prefix.next_slot
    while end > 0:
        first = max(end - _ROWS_AT_ONCE_COUNT, 0)
        steps = list(islice(log.steps(log.prefix_at(Slot(first))), end - first))
        if len(steps) < end - first:
            slot = first + len(steps)
            raise CorruptLogError(
                f"log record {slot} is missing below the tail",
                do="Restore it from another copy of the store.",
                facts={"slot": slot},
            )
        yield from map(_log_row, reversed(steps))
        end = first


def _log_row(step: Step) -> LogRow:
    record = step.stored.record
    return LogRow(
        slot=record.slot,
        kind=record.kind,
        epoch=record.epoch,
        run=record.run,
        what=_summary(record),
        void=step.verdict.reason if isinstance(step.verdict, Invalid) else None,
        written_unix_ms=record.written_unix_ms,
    )


def _summary(record: Record) -> str:  # noqa: C901, PLR0911, PLR0912 -- one arm per kind
    match record:
        case InitRecord():
            return f"store {record.store_id[:8]}, format {record.format}"
        case ClaimRecord():
            rewound = "" if record.rewind_to is None else f", rewound to step {record.rewind_to}"
            taken = ", taken over" if record.take_over else ""
            return f"{record.action} by {record.host}, process {record.process}{taken}{rewound}"
        case VersionRecord():
            base = f"from {record.base.version}" if record.base else "without base"
            return f"version {record.version}, step {record.step}, {base}"
        case AltRecord():
            return f"version {record.version}, {record.form} form {record.anchor_id}"
        case IntentRecord():
            return f"version {record.version}, anchor {record.anchor_id}"
        case VoidRecord(what=VoidAttempt() as attempt):
            return f"version {attempt.version}, attempt {attempt.attempt}"
        case VoidRecord():
            return "an intent"
        case TagRecord():
            target = "removed" if record.version is None else f"version {record.version}"
            return f"{record.name}: {target}"
        case ActivateRecord():
            staged = f"{record.staged_count} of {record.listed_count}"
            return f"version {record.version}, staged by {staged} receivers"
        case RetireRecord():
            return "kept " + ", ".join(f"{each.first}-{each.last}" for each in record.kept)
        case FormatRecord():
            return f"format {record.format}"
