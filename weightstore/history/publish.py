"""The verdict on an attempt: its version record, or the void that ends it.

Both are decided by the log alone. Repeating either call is safe, also after its outcome
was unknown, also under another `commit_id`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weightstore.errors import (
    AttemptVoidedError,
    InputRefusedError,
    StepConflictError,
    StepOrderError,
    WeightStoreError,
)
from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.records import (
    Base,
    Record,
    VersionRecord,
    VoidAttempt,
    VoidRecord,
)
from weightstore.format.rules import Prefix
from weightstore.history.claim import Claim, fenced, owns
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log, StoredRecord
from weightstore.history.versions import find_step, record_of_version
from weightstore.ids import Attempt, CommitId, Sha256, Step, VersionId


@dataclass(frozen=True, kw_only=True, slots=True)
class Publication:
    """What a version record says about one attempt whose objects are stored.

    Attributes:
        commit_id: Nonce of the attempt; it stands in the manifest's key.
        version: The number that the version will have.
        attempt: Number of this try within the epoch.
        step: The trainer's step.
        base: The version that its delta starts from; None without one.
        schema_id: SHA-256 of the schema.
        digest: State digest of the version.
        manifest_size_bytes: Of the stored manifest.
        manifest_sha256: Over the stored manifest.
        world_size: Number of ranks that made it.
    """

    commit_id: CommitId
    version: VersionId
    attempt: Attempt
    step: Step
    base: Base | None
    schema_id: Sha256
    digest: Sha256
    manifest_size_bytes: int
    manifest_sha256: Sha256
    world_size: int


def commit_version(writer: LogWriter, claim: Claim, publication: Publication) -> VersionRecord:
    """Make the version visible, exactly once (P1, P2).

    After a crash: the version is there, whole, or it is not; repeating finds it.

    Returns:
        The record in the log: its version, attempt and commit id are those of an earlier
        call, if that one had committed the same digest as the same step.

    Raises:
        FencedError: a newer claim owns the store; nothing of this attempt is visible.
        AttemptVoidedError: the attempt was ended by a `void`.
        StepConflictError: the step is committed with another digest.
        StepOrderError: the step is below the newest and was never committed.
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    _check_step(publication.step)

    def build(prefix: Prefix) -> Record | StoredRecord:
        return _own_commit(writer.log, prefix, claim, publication) or VersionRecord(
            **writer.header(prefix, publication.commit_id),
            epoch=claim.epoch,
            run=claim.run,
            version=publication.version,
            attempt=publication.attempt,
            step=publication.step,
            base=publication.base,
            schema_id=publication.schema_id,
            digest=publication.digest,
            manifest_size_bytes=publication.manifest_size_bytes,
            manifest_sha256=publication.manifest_sha256,
            world_size=publication.world_size,
        )

    record = writer.put(build).record
    assert isinstance(record, VersionRecord)
    return record


def void_attempt(
    writer: LogWriter,
    claim: Claim,
    *,
    version: VersionId,
    attempt: Attempt,
    attempt_commit_id: CommitId,
) -> VersionRecord | VoidRecord:
    """End an attempt in the log, unless it has ended there already.

    After a crash: the attempt is open or ended; repeating finds its end.

    Returns:
        The verdict: a void, or the version record that took the attempt's number first
        (the attempt's own if it holds `attempt_commit_id`).

    Raises:
        FencedError: a newer claim owns the store, which ended the attempt.
        CommitUnknownError: no answer until the deadline; repeat the call.
    """
    commit_id = writer.new_commit_id()
    what = VoidAttempt(version=version, attempt=attempt, attempt_commit_id=attempt_commit_id)

    def build(prefix: Prefix) -> Record | StoredRecord:
        return _end_of_attempt(writer.log, prefix, claim, what) or VoidRecord(
            **writer.header(prefix, commit_id), epoch=claim.epoch, run=claim.run, what=what
        )

    record = writer.put(build).record
    assert isinstance(record, VersionRecord | VoidRecord)
    return record


def committed_step(
    log: Log, prefix: Prefix, claim: Claim, step: Step, digest: Sha256
) -> VersionRecord | None:
    """The version that a step already is, or None if the step may become a new one.

    Raises:
        FencedError: a newer claim owns the store.
        StepConflictError: the step is committed with another digest.
        StepOrderError: the step is below the newest and was never committed.
    """
    if not owns(prefix.now, claim):
        raise fenced(prefix.now, claim)
    assert prefix.now.claim is not None
    last_step = prefix.now.claim.last_step
    if last_step is None or step > last_step:
        return None
    found = find_step(log, prefix, claim.run, step)
    if found is None:
        raise StepOrderError(
            f"step {step} of run {claim.run} was never committed, and step {last_step} was",
            do="Put a later step, or claim with rewind_to below this step.",
            facts={"run": claim.run, "step": step, "last_step": last_step},
        )
    if found.digest != digest:
        raise StepConflictError(
            f"{claim.run}@{step} is version {found.version} with digest {found.digest};"
            f" these weights have digest {digest}",
            do="Put a later step, or claim with rewind_to below this step.",
            facts={"run": claim.run, "step": step, "version": found.version},
        )
    return found


def _check_step(step: Step) -> None:
    # A type checker keeps other types away; a bool or a float may come all the same.
    if type(step) is not int or not 0 <= step <= MAX_INTEGER:
        raise InputRefusedError(f"{step!r} is no step", do=f"Give a step from 0 to {MAX_INTEGER}.")


def _own_commit(
    log: Log, prefix: Prefix, claim: Claim, publication: Publication
) -> StoredRecord | None:
    if not owns(prefix.now, claim):
        # A claim that came later fences what comes after it, not what was committed before.
        found = find_step(log, prefix, claim.run, publication.step, epoch=claim.epoch)
        if found is not None and found.digest == publication.digest:
            return log.stored_at(found.slot)
        raise fenced(prefix.now, claim)
    found = committed_step(log, prefix, claim, publication.step, publication.digest)
    if found is not None:
        return log.stored_at(found.slot)
    if _is_voided(prefix, publication):
        raise _voided(publication)
    return None


def _is_voided(prefix: Prefix, publication: Publication) -> bool:
    newest = prefix.now.newest
    is_next = publication.version == (newest.version + 1 if newest else 1)
    return is_next and publication.attempt < prefix.now.lowest_open_attempt


def _voided(publication: Publication) -> WeightStoreError:
    return AttemptVoidedError(
        f"attempt {publication.attempt} at version {publication.version} was ended by a void",
        do="Put the step again: it becomes a new attempt.",
        facts={"version": publication.version, "attempt": publication.attempt},
    )


def _end_of_attempt(
    log: Log, prefix: Prefix, claim: Claim, what: VoidAttempt
) -> StoredRecord | None:
    newest = prefix.now.newest
    if newest is not None and what.version <= newest.version:
        made = record_of_version(log, prefix, what.version)
        if (made.epoch, made.attempt) == (claim.epoch, what.attempt):
            return log.stored_at(made.slot)
    for stored in log.records_of_kind(prefix, "void"):
        if stored.record.epoch < claim.epoch:
            break
        if stored.record.epoch == claim.epoch and _ends(stored.record, what):
            return stored
    if not owns(prefix.now, claim):
        raise fenced(prefix.now, claim)
    return None


def _ends(record: Record, what: VoidAttempt) -> bool:
    return (
        isinstance(record, VoidRecord)
        and isinstance(record.what, VoidAttempt)
        and (record.what.version, record.what.attempt) == (what.version, what.attempt)
    )
