"""The content of a version before its record: as a delta of the base, or in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.format.manifest import DeltaForm, FullForm, IndexRange, Manifest
from weightstore.format.objects import ObjectRef
from weightstore.format.records import Base
from weightstore.history.anchor_writer import write_anchor
from weightstore.history.progress import Progress, no_progress
from weightstore.ids import Sha256, VersionId
from weightstore.layout.boxes import FlatRange
from weightstore.layout.schema import Schema
from weightstore.trainer.attempt import Attempt
from weightstore.trainer.baseline import Baseline, plan_layout
from weightstore.trainer.baseline_places import BaselinePlace
from weightstore.trainer.binding import Binding, derive_schema
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.detect import Detected, DetectionPass
from weightstore.trainer.inputs import Inputs, StreamedInputs
from weightstore.trainer.own_change import NewBits, OwnChange
from weightstore.trainer.packing import OwnPack
from weightstore.trainer.scan import fill_from_spool
from weightstore.trainer.tools import Tools

Captured = Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """The newest version, as the next delta needs it.

    Attributes:
        version: Its number.
        digest: Its state digest.
        schema: Its tensors.
        schema_ref: Where the schema is stored.
        table: Its digest lanes, shape (tensors, 2), uint64.
        full: Manifest of the version with the full form that its chain starts from.
        chain_count: Deltas since that form.
        chain_size_bytes: Bytes of their packs.
    """

    version: VersionId
    digest: Sha256
    schema: Schema
    schema_ref: ObjectRef
    table: NDArray[np.uint64]
    full: Manifest
    chain_count: int
    chain_size_bytes: int

    @property
    def base(self) -> Base:
        """How a delta names it."""
        return Base(version=self.version, digest=self.digest)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A version whose bytes are stored, and that no manifest names yet.

    Attributes:
        schema: Its tensors.
        schema_ref: Where the schema is stored; None if it is new.
        table: Its digest lanes.
        base: What its delta starts from.
        delta: Its changes of the base.
        full: It as a checkpoint.
        unmentioned: Tensors that were not given.
        changed_count: Units that differ from the base; all without one.
        move: After the verdict: the baseline of this version, if one is wanted.
    """

    schema: Schema
    schema_ref: ObjectRef | None
    table: NDArray[np.uint64]
    base: Base | None
    delta: DeltaForm | None
    full: FullForm | None
    unmentioned: tuple[IndexRange, ...]
    changed_count: int
    move: Callable[[], Baseline | None]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedState:
    """Given tensors in a baseline of their own, as the first version of a schema needs them."""

    baseline: Baseline
    table: NDArray[np.uint64]

    @property
    def schema(self) -> Schema:
        """Of the given tensors."""
        return self.baseline.layout.schema


def draft_delta(
    tools: Tools,
    attempt: Attempt,
    head: Head,
    baseline: Baseline,
    binding: Binding,
    *,
    anchor: bool,
    captured: Captured,
    progress: Progress = no_progress,
) -> Draft:
    """Detect the change, store its packs, and the full form where one is due.

    After a crash: packs and files that no record names.

    Raises:
        SchemaMismatchError: a stream does not fit the schema, or tied names differ.
        WeightStoreError: the store failed.
    """
    device = None if tools.device is None else tools.device.begin(baseline)
    sink = attempt.pack_sink(head.schema)
    try:
        detected = DetectionPass(
            binding,
            baseline,
            head.table,
            workers=tools.workers,
            benches=tools.benches,
            sink=sink,
            limits=tools.limits,
            device=device,
        ).run()
        captured()
        packs = sink.finish()
    finally:
        sink.close()
    delta = _delta_form(detected, packs)
    change = OwnChange(head.schema, packs, tools.limits)
    full = None
    if anchor or _is_full_due(tools, head, delta):
        full = _full_form(tools, attempt, head, baseline, change, progress)

    def move() -> Baseline:
        change.apply(baseline, workers=tools.workers, benches=tools.benches)
        if device is not None:
            device.move()
        return baseline

    return Draft(
        schema=head.schema,
        schema_ref=head.schema_ref,
        table=detected.table,
        base=head.base,
        delta=delta,
        full=full,
        unmentioned=ranges_of(detected.unmentioned),
        changed_count=detected.changed_count,
        move=move,
    )


def capture_state(
    tools: Tools,
    place: BaselinePlace,
    inputs: Inputs,
    casts: CastRules,
    *,
    schema: Schema | None,
) -> CapturedState:
    """Copy given tensors into a baseline of their own, which nothing refers to yet.

    Args:
        tools: Threads and scratch.
        place: Where the baseline is made.
        inputs: The tensors.
        casts: Declared casts.
        schema: What they must fit; None takes their own.

    Raises:
        SchemaMismatchError: they do not fit the schema.
        StorageFullError: no room for the baseline.
    """
    if isinstance(inputs, StreamedInputs) and schema is None:
        spooled = tools.scan.spool(inputs, casts)
        own = Schema.build(host.spec for host in spooled.values())
        baseline = place.create(plan_layout(own))
        fill_from_spool(own, spooled, baseline)
        return CapturedState(baseline, tools.scan.baseline_table(baseline))
    if schema is None:
        assert not isinstance(inputs, StreamedInputs)
        schema = derive_schema(inputs, casts)
    binding = Binding(schema, inputs, casts)
    baseline = place.create(plan_layout(schema))
    return CapturedState(baseline, tools.scan.run(binding, into=baseline).table)


def draft_full(
    tools: Tools,
    attempt: Attempt,
    state: CapturedState,
    place: BaselinePlace,
    head: Head | None,
    *,
    progress: Progress = no_progress,
) -> Draft:
    """Store a version without a base, as a checkpoint.

    After a crash: files that no record names.

    Raises:
        WeightStoreError: the store failed.
    """
    schema, baseline = state.schema, state.baseline
    full = write_anchor(
        tools.blobs,
        attempt.anchor_id,
        schema,
        lambda index, first, count: baseline.units(index, FlatRange(first, count)),
        settings=tools.settings,
        assets_from=head.full if head else None,
        progress=progress,
    )

    def move() -> Baseline:
        place.adopt()
        return baseline

    return Draft(
        schema=schema,
        schema_ref=head.schema_ref if head and head.schema == schema else None,
        table=state.table,
        base=None,
        delta=None,
        full=full,
        unmentioned=(),
        changed_count=schema.unit_count,
        move=move,
    )


def ranges_of(indices: tuple[int, ...]) -> tuple[IndexRange, ...]:
    """Rising schema indices as the fewest ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] + 1 == index:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return tuple(IndexRange(first=first, last=last) for first, last in ranges)


def _delta_form(detected: Detected, packs: tuple[OwnPack, ...]) -> DeltaForm:
    return DeltaForm(
        packs=tuple(pack.ref for pack in packs),
        changed_count=detected.changed_count,
        piece_count=detected.piece_count,
        size_bytes=sum(pack.ref.size_bytes for pack in packs),
    )


def _is_full_due(tools: Tools, head: Head, delta: DeltaForm) -> bool:
    settings = tools.settings
    chain_size_bytes = head.chain_size_bytes + delta.size_bytes
    return (
        head.chain_count + 1 > min(settings.full_after_chain_count, tools.limits.chain_count)
        or chain_size_bytes > settings.full_after_chain_ratio * head.schema.size_bytes
    )


def _full_form(
    tools: Tools,
    attempt: Attempt,
    head: Head,
    baseline: Baseline,
    change: OwnChange,
    progress: Progress,
) -> FullForm:
    with tools.benches.lend() as bench:
        bits = NewBits(baseline, change, bench)
        return write_anchor(
            tools.blobs,
            attempt.anchor_id,
            head.schema,
            bits.units,
            settings=tools.settings,
            assets_from=head.full,
            progress=progress,
        )
