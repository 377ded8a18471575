"""Putting steps: what one trainer does from given tensors to the verdict of the log.

Runs in one thread at a time. Its state moves only by verdicts: a version that the log
holds becomes the new base, an attempt without one is ended in the log before the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from weightstore.codec.digest import StateHasher
from weightstore.errors import InputRefusedError, WeightStoreError
from weightstore.format.manifest import Manifest
from weightstore.format.objects import ObjectRef
from weightstore.format.records import VersionRecord
from weightstore.format.rules import Prefix, next_version
from weightstore.history.claim import Claim, fenced, owns
from weightstore.history.publish import Publication, commit_version, void_attempt
from weightstore.ids import Sha256, Step, VersionId
from weightstore.trainer.attempt import Attempt
from weightstore.trainer.baseline import Baseline
from weightstore.trainer.baseline_places import BaselinePlace
from weightstore.trainer.binding import Binding
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.drafts import (
    Captured,
    Draft,
    Head,
    capture_state,
    draft_delta,
    draft_full,
)
from weightstore.trainer.heads import read_head
from weightstore.trainer.inputs import Inputs
from weightstore.trainer.pending import PutReport
from weightstore.trainer.put_request import PutRequest
from weightstore.trainer.repeats import answer_repeat, is_repeat
from weightstore.trainer.tools import Tools
from weightstore.trainer.watch import PutWatch


@dataclass(frozen=True, slots=True, eq=False)
class UnreadableHead:
    """A newest version whose schema is not known, since it cannot be read.

    Attributes:
        version: Its number.
        cause: Why.
    """

    version: VersionId
    cause: WeightStoreError


@dataclass(slots=True, eq=False)
class PublisherState:
    """What the next put starts from.

    Attributes:
        head: The newest version; None in an empty store, or where it cannot be read.
        unreadable: The newest version where it cannot be read: what is given cannot be
            compared with it.
        baseline: Its bits, proven; None makes the next version a full one.
        notes: What the next put tells its caller.
    """

    head: Head | None = None
    unreadable: UnreadableHead | None = None
    baseline: Baseline | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Open:
    """An attempt that the log has not ended, as far as is known.

    Attributes:
        attempt: Its names.
        head: What the newest version is if the log holds its record; None before that
            record could have been sent.
        move: Then gives the baseline.
    """

    attempt: Attempt
    head: Head | None = None
    move: Callable[[], Baseline | None] | None = None


class Publisher:
    """Puts steps under one claim.

    Args:
        tools: The store and its log.
        claim: The open claim.
        state: Newest version and baseline, as the claim found them.
        place: Where baselines are made.
        casts: Declared casts.
    """

    def __init__(
        self,
        tools: Tools,
        claim: Claim,
        state: PublisherState,
        *,
        place: BaselinePlace,
        casts: CastRules,
    ) -> None:
        self.claim = claim
        self._tools = tools
        self._state = state
        self._place = place
        self._casts = casts
        self._open: _Open | None = None
        self._hasher: tuple[Sha256, StateHasher] | None = None

    def put(self, request: PutRequest, *, captured: Captured) -> PutReport:
        """Put one step.

        After a crash: the version is there, whole, or it is not; what else was written is
        named by nothing. The same step can be put again.

        Args:
            request: What to put.
            captured: Called once the given tensors are not needed any more.

        Raises:
            FencedError: a newer claim owns the store.
            StepConflictError: the step is committed with other bytes.
            StepOrderError: the step is below the newest and was never committed.
            SchemaMismatchError: names, shapes or dtypes differ; nothing was written.
            InputRefusedError: the newest version cannot be read, so that nothing can be
                compared with it, and that was not declared to be fine.
            CommitUnknownError: no verdict until the deadline; the next put resolves it.
        """
        watch = PutWatch(self._tools.clock, captured)
        self.settle()
        prefix = self._owned_prefix()
        inputs = request.open_inputs()
        if is_repeat(prefix, request.step):
            record, unit_count = self._answer(prefix, request, inputs)
            watch.captured()
            return watch.report(record, unit_count=unit_count, repeated=True, notes=self._notes())
        if self._state.unreadable is not None:
            _check_unreadable(self._state.unreadable, request)
        head, baseline = self._state.head, self._state.baseline
        if head is None or baseline is None or request.new_schema:
            return self._put_full(prefix, request, inputs, watch)
        binding = Binding(head.schema, inputs, self._casts, missing=request.missing)
        attempt = self._open_attempt(prefix, request.step)
        draft = draft_delta(
            self._tools,
            attempt,
            head,
            baseline,
            binding,
            anchor=request.anchor,
            captured=watch.captured,
            progress=request.progress,
        )
        return self._commit(attempt, draft, watch)[1]

    def put_draft(
        self, request: PutRequest, make_draft: Callable[[Attempt], Draft]
    ) -> VersionRecord:
        """Put a version that does not come from tensors in memory; else as `put`.

        Args:
            request: Its inputs are read only to answer a repeat.
            make_draft: Stores the version's bytes under the names of an attempt.
        """
        watch = PutWatch(self._tools.clock, captured=lambda: None)
        self.settle()
        prefix = self._owned_prefix()
        if is_repeat(prefix, request.step):
            return self._answer(prefix, request, request.open_inputs())[0]
        attempt = self._open_attempt(prefix, request.step)
        return self._commit(attempt, make_draft(attempt), watch)[0]

    def settle(self) -> None:
        """End the attempt that an earlier put left behind: by its record, or by a void.

        After a crash: the attempt is open or ended; the next claim ends it too.

        Raises:
            FencedError: a newer claim owns the store, which ended the attempt.
            CommitUnknownError: no answer until the deadline; repeat the call.
        """
        if self._open is None:
            return
        attempt = self._open.attempt
        ended = void_attempt(
            self._tools.writer,
            self.claim,
            version=attempt.version,
            attempt=attempt.number,
            attempt_commit_id=attempt.commit_id,
        )
        if isinstance(ended, VersionRecord):
            self._accept(ended)
        else:
            self._open = None

    def _owned_prefix(self) -> Prefix:
        prefix = self._tools.log.tail()
        if not owns(prefix.now, self.claim):
            raise fenced(prefix.now, self.claim)
        return prefix

    def _open_attempt(self, prefix: Prefix, step: Step) -> Attempt:
        attempt = Attempt(
            self._tools,
            self.claim,
            version=next_version(prefix.now),
            number=prefix.now.lowest_open_attempt,
            step=step,
        )
        self._open = _Open(attempt)
        attempt.open()
        return attempt

    def _put_full(
        self, prefix: Prefix, request: PutRequest, inputs: Inputs, watch: PutWatch
    ) -> PutReport:
        head = self._state.head
        schema = head.schema if head and not request.new_schema else None
        state = capture_state(self._tools, self._place, inputs, self._casts, schema=schema)
        watch.captured()
        attempt = self._open_attempt(prefix, request.step)
        draft = draft_full(
            self._tools, attempt, state, self._place, head, progress=request.progress
        )
        return self._commit(attempt, draft, watch)[1]

    def _answer(
        self, prefix: Prefix, request: PutRequest, inputs: Inputs
    ) -> tuple[VersionRecord, int]:
        return answer_repeat(self._tools, self.claim, self._casts, prefix, request, inputs)

    def _commit(
        self, attempt: Attempt, draft: Draft, watch: PutWatch
    ) -> tuple[VersionRecord, PutReport]:
        """Store what describes the draft, put the record, and move on its verdict."""
        digest = self._digest(draft)
        manifest, manifest_ref = self._describe(attempt, draft, digest)
        watch.written()
        assert self._open is not None
        self._open.head = self._head_after(manifest, draft)
        self._open.move = draft.move
        record = commit_version(
            self._tools.writer,
            self.claim,
            Publication(
                commit_id=attempt.commit_id,
                version=attempt.version,
                attempt=attempt.number,
                step=attempt.step,
                base=draft.base,
                schema_id=draft.schema.id,
                digest=digest,
                manifest_size_bytes=manifest_ref.size_bytes,
                manifest_sha256=manifest_ref.sha256,
                world_size=1,
            ),
        )
        self._accept(record)
        self._note_change(draft)
        report = watch.report(
            record,
            unit_count=draft.schema.unit_count,
            manifest=manifest,
            own_size_bytes=manifest_ref.size_bytes + manifest.digests.size_bytes,
            changed_count=draft.changed_count,
            device_bytes=0 if self._tools.device is None else self._tools.device.size_bytes,
            notes=self._notes(),
        )
        return record, report

    def _digest(self, draft: Draft) -> Sha256:
        if self._hasher is None or self._hasher[0] != draft.schema.id:
            self._hasher = (draft.schema.id, StateHasher(draft.schema))
        return self._hasher[1].digest(draft.table)

    def _describe(
        self, attempt: Attempt, draft: Draft, digest: Sha256
    ) -> tuple[Manifest, ObjectRef]:
        head = self._state.head
        digests = attempt.put_table(draft.table, draft.schema)
        schema_ref = draft.schema_ref or attempt.put_schema(draft.schema)
        chain_count = chain_size_bytes = 0
        if draft.full is None:
            assert head is not None
            assert draft.delta is not None
            chain_count = head.chain_count + 1
            chain_size_bytes = head.chain_size_bytes + draft.delta.size_bytes
        manifest = Manifest(
            version=attempt.version,
            run=self.claim.run,
            epoch=self.claim.epoch,
            session=self.claim.session,
            commit_id=attempt.commit_id,
            attempt=attempt.number,
            step=attempt.step,
            base=draft.base,
            schema_ref=schema_ref,
            schema_id=draft.schema.id,
            digests=digests,
            digest=digest,
            delta=draft.delta,
            full=draft.full,
            chain_count=chain_count,
            chain_size_bytes=chain_size_bytes,
            unmentioned=draft.unmentioned,
        )
        return manifest, attempt.put_manifest(manifest)

    def _head_after(self, manifest: Manifest, draft: Draft) -> Head:
        head = self._state.head
        full = manifest if manifest.full else (head.full if head else None)
        assert full is not None
        return Head(
            version=manifest.version,
            digest=manifest.digest,
            schema=draft.schema,
            schema_ref=manifest.schema_ref,
            table=draft.table,
            full=full,
            chain_count=manifest.chain_count,
            chain_size_bytes=manifest.chain_size_bytes,
        )

    def _accept(self, record: VersionRecord) -> None:
        """Move to a version of the open attempt that the log holds.

        After a crash: the log holds the version; the baseline is rebuilt at the next attach.
        """
        left, self._open = self._open, None
        assert left is not None
        # While the baseline moves it is of no version. If that fails, the version is committed
        # all the same, and the next put writes a full one.
        self._state.head = self._state.unreadable = self._state.baseline = None
        try:
            own = record.commit_id == left.attempt.commit_id
            # A put that was interrupted may not have noted what its record would move.
            self._state.head = (left.head if own else None) or read_head(self._tools, record)[0]
            self._state.baseline = left.move() if left.move else None
        except WeightStoreError as error:
            if self._state.head is None:
                self._state.unreadable = UnreadableHead(record.version, error)
            self._state.notes.append(
                f"version {record.version} is committed, but its baseline was lost, so the next"
                f" version will be full: {error}"
            )

    def _note_change(self, draft: Draft) -> None:
        ratio = draft.changed_count / max(1, draft.schema.unit_count)
        if draft.base is not None and ratio > self._tools.settings.warn_changed_ratio:
            self._state.notes.append(
                f"{ratio:.0%} of all elements changed in one step: are these the published"
                " dtypes? fp32 masters change almost all their bits; declare `cast=`."
            )

    def _notes(self) -> tuple[str, ...]:
        notes = tuple(self._state.notes)
        self._state.notes.clear()
        return notes


def _check_unreadable(newest: UnreadableHead, request: PutRequest) -> None:
    """Refuse a put that says how it follows a version that nobody can read."""
    if request.new_schema and request.missing == "refuse":
        return
    if request.new_schema:
        problem, do = "no tensor can be unchanged", 'give all tensors, without missing="unchanged"'
    else:
        problem = "these tensors cannot be compared with its schema"
        do = "put all tensors with new_schema=True: they become a full version"
    raise InputRefusedError(
        f"version {newest.version} cannot be read, so {problem}: {newest.cause.message}",
        do=f"Mend the store, or {do}.",
        facts={"version": newest.version, "cause": newest.cause.code},
    ) from newest.cause
