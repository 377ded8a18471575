"""Letting versions go: the record first, then the objects, and a report of both."""

from __future__ import annotations

from weightstore.format import kept as kept_sets
from weightstore.history import retire, sweep
from weightstore.history.audit import audited_tail
from weightstore.history.commit import LogWriter
from weightstore.history.references import References
from weightstore.history.retire_reasons import kept_reasons
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.store.views import KeptVersion, RetireReport


def retire_and_sweep(
    writer: LogWriter,
    blobs: BlobStore,
    keep: retire.Keep,
    references: References,
    *,
    dry_run: bool,
) -> RetireReport:
    """Put the retire record, then delete; with a dry run only plan.

    After a crash: nothing, or the record, or the record and some deletions; repeating ends
    it.

    Raises:
        RetireRefusedError: an object of a version that stays is missing.
        CorruptError: the log or a manifest of a version that stays cannot be read; nothing
            was deleted.
        CommitUnknownError: no answer until the deadline; repeat the call.
        StorageFailedError: the system failed; repeat the call.
    """
    log = writer.log
    if dry_run:
        plan = retire.plan_retire(log, audited_tail(log), keep, chain_of=references.chain_of)
    else:
        plan = retire.retire(
            writer,
            blobs,
            keep,
            chain_of=references.chain_of,
            objects_of=references.objects_of,
        )
    # Before anything is deleted: whatever could fail here would make an error of a retirement
    # that is done, and take its report from the caller.
    reasons = kept_reasons(log, plan.prefix, keep, plan.kept, chain_of=references.chain_of)
    if not dry_run and isinstance(blobs, LocalBlobStore):
        blobs.sweep_temporary()
    swept = sweep.sweep(
        blobs,
        log,
        objects_of=references.objects_of,
        dry_run=dry_run,
        kept=plan.kept if dry_run else None,
        proven=plan.prefix,
    )
    return RetireReport(
        gone=tuple(kept_sets.iterate(plan.gone)),
        kept=tuple(KeptVersion(version, why) for version, why in reasons.items()),
        deleted_count=swept.deleted_count,
        deleted_size_bytes=swept.deleted_size_bytes,
        unknown_count=swept.unknown_count,
    )
