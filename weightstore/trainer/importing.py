"""Importing a checkpoint: its files become the full form of a version."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import UnavailableError, UnknownOutcomeError
from weightstore.format.records import VersionRecord
from weightstore.history.import_checkpoint import run_import
from weightstore.history.import_plan import ImportPlan, plan_import
from weightstore.history.log import Log
from weightstore.history.progress import Progress, no_progress
from weightstore.ids import RunId
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.trainer.attempt import Attempt
from weightstore.trainer.baseline_places import MemoryPlace
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.claiming import StoreParts, claim_store
from weightstore.trainer.drafts import Draft
from weightstore.trainer.inputs import open_source
from weightstore.trainer.publisher import Publisher, PublisherState
from weightstore.trainer.put_request import PutRequest, checked_step
from weightstore.trainer.tools import Tools


class Imported(NamedTuple):
    """What an import made, and name and reason of each file that it left behind."""

    record: VersionRecord
    skipped: tuple[tuple[str, str], ...]


def import_checkpoint(  # noqa: D417 -- six are described by StoreParts
    blobs: BlobStore,
    log: Log,
    *,
    path: Path,
    run: RunId,
    step: int,
    clock: Clock,
    entropy: Entropy,
    settings: Settings,
    codec: PieceCodec | None = None,
    take_over: bool = False,
    progress: Progress = no_progress,
) -> Imported:
    """Store a safetensors file or checkpoint directory as a version without a base.

    The store is claimed for the import alone. Importing the same bytes again as the same
    step gives the same version.

    After a crash: the version is there, whole, or it is not; the claim may still be open,
    as it is where the storage fails between the two.

    Args:
        blobs, log, clock, entropy, settings, codec: As in `StoreParts`.
        path: A `.safetensors` file, or a directory.
        run: The run that the version belongs to.
        step: The trainer's count.
        take_over: Fence whoever owns the store now.
        progress: Told the bytes copied and read back.

    Raises:
        InputRefusedError: no usable checkpoint, or no step; nothing was written.
        StoreOwnedError: a trainer owns the store.
        StepConflictError: the step is committed with other bytes.
        StepOrderError: the step is below the newest and was never committed.
    """
    number = checked_step(step)
    plan = plan_import(path, settings.limits)
    parts = StoreParts(
        blobs=blobs, log=log, clock=clock, entropy=entropy, settings=settings, codec=codec
    )
    with ExitStack() as at_end:
        tools, claim = claim_store(
            at_end, parts, run=run, session=parts.new_session(), take_over=take_over
        )
        publisher = Publisher(
            tools, claim, PublisherState(), place=MemoryPlace(), casts=CastRules()
        )
        request = PutRequest(
            step=number,
            open_inputs=lambda: open_source(path, at_end=at_end, limits=settings.limits),
        )
        record = publisher.put_draft(
            request, lambda attempt: _draft(tools, attempt, plan, progress)
        )
        # The version is committed, so its import has not failed, whatever becomes of the
        # claim: one that stays open is that of an owner that holds no lock.
        with suppress(UnavailableError, UnknownOutcomeError):
            at_end.close()
    return Imported(record, plan.skipped)


def _draft(tools: Tools, attempt: Attempt, plan: ImportPlan, progress: Progress) -> Draft:
    imported = run_import(
        tools.blobs,
        plan,
        attempt.anchor_id,
        settings=tools.settings,
        codec=tools.codec,
        progress=progress,
    )
    return Draft(
        schema=imported.schema,
        schema_ref=None,
        table=imported.table,
        base=None,
        delta=None,
        full=imported.full,
        unmentioned=(),
        changed_count=imported.schema.unit_count,
        move=lambda: None,
    )
