"""Importing a checkpoint: its files become the full form of a version."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from weightstore.arguments import counted
from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    CorruptError,
    InputRefusedError,
    SchemaMismatchError,
    UnavailableError,
    UnknownOutcomeError,
)
from weightstore.format.records import VersionRecord
from weightstore.history.import_checkpoint import run_import
from weightstore.history.import_plan import ImportPlan, plan_import
from weightstore.history.log import Log
from weightstore.history.manifests import load_manifest, load_schema
from weightstore.history.progress import Progress, no_progress
from weightstore.history.versions import latest
from weightstore.ids import RunId
from weightstore.layout.schema import Schema, schema_differences
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

_LISTED_COUNT = 50


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
    new_schema: bool = False,
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
        run, step: Of the version.
        take_over: Fence whoever owns the store now.
        new_schema: Allow other names, shapes or dtypes than those of the newest version.
        progress: Told the bytes copied and read back.

    Raises:
        InputRefusedError: no usable checkpoint or step, or the newest version is unreadable.
        SchemaMismatchError: names, shapes or dtypes differ; every difference is listed.
        StoreOwnedError: a trainer owns the store.
        StepConflictError: the step is committed with other bytes.
        StepOrderError: the step is below the newest and was never committed.
    """
    number = checked_step(step)
    plan = plan_import(path, settings.limits)
    parts = StoreParts(
        blobs=blobs, log=log, clock=clock, entropy=entropy, settings=settings, codec=codec
    )
    session = parts.new_session()
    with ExitStack() as at_end:
        tools, claim = claim_store(at_end, parts, run=run, session=session, take_over=take_over)
        publisher = Publisher(
            tools, claim, PublisherState(), place=MemoryPlace(), casts=CastRules()
        )
        open_inputs = partial(open_source, path, at_end=at_end, limits=settings.limits)
        request = PutRequest(step=number, open_inputs=open_inputs)
        make = partial(_draft, tools, plan, progress, new_schema=new_schema)
        record = publisher.put_draft(request, make)
        # The version is committed, so its import has not failed, whatever becomes of the
        # claim: one that stays open is that of an owner that holds no lock.
        with suppress(UnavailableError, UnknownOutcomeError):
            at_end.close()
    return Imported(record, plan.skipped)


def _draft(
    tools: Tools, plan: ImportPlan, progress: Progress, attempt: Attempt, *, new_schema: bool
) -> Draft:
    if not new_schema:
        _check_schema(tools, plan.schema)
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


def _check_schema(tools: Tools, schema: Schema) -> None:
    """Refuse a checkpoint of another model than the newest version is of."""
    prefix = tools.log.tail()
    if prefix.now.newest is None:
        return
    record = latest(tools.log, prefix)
    try:
        manifest = load_manifest(tools.blobs, record, tools.limits)
        expected = load_schema(tools.blobs, manifest, tools.limits)
    except CorruptError as error:
        raise InputRefusedError(
            f"version {record.version} cannot be read, so this checkpoint cannot be compared with "
            f"its schema: {error.message}",
            do="Mend the store, or import with new_schema=True.",
            facts={"version": record.version, "cause": error.code},
        ) from error
    lines = tuple(map(str, schema_differences(expected, schema)))
    if lines:
        shown = lines[:_LISTED_COUNT]
        more = len(lines) - len(shown)
        raise SchemaMismatchError(
            f"{counted(len(lines), 'difference')} from the schema of version {record.version}:\n  "
            + "\n  ".join(shown)
            + (f"\n  ... and {more} more" if more else ""),
            do="Choose a checkpoint of the same model, or import with new_schema=True.",
            facts={"version": record.version, "differences": lines},
        )
