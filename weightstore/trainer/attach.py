"""Becoming the trainer of a store: first the claim, then a baseline that is proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptError, SchemaMismatchError
from weightstore.format.records import VersionRecord
from weightstore.history.chain import CheckoutPlan
from weightstore.history.checkout import checkout_into
from weightstore.history.claim import Claim
from weightstore.history.log import Log
from weightstore.ids import SessionId, parse_run_id
from weightstore.layout.canonical_names import check_name_rules
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.trainer.baseline import Baseline, plan_layout
from weightstore.trainer.baseline_places import BaselinePlace, FilePlace, MemoryPlace
from weightstore.trainer.binding import Binding
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.claiming import StoreParts, claim_store
from weightstore.trainer.drafts import Head
from weightstore.trainer.heads import read_head
from weightstore.trainer.inputs import Inputs, TensorSource, open_source
from weightstore.trainer.publisher import Publisher, PublisherState, UnreadableHead
from weightstore.trainer.put_request import checked_step
from weightstore.trainer.session import TrainerSession
from weightstore.trainer.tools import Tools

if TYPE_CHECKING:
    from weightstore.trainer.device_baseline import DeviceBaseline


def open_trainer(  # noqa: D417 -- seven are described by StoreParts
    blobs: BlobStore,
    log: Log,
    *,
    run: str,
    clock: Clock,
    entropy: Entropy,
    settings: Settings,
    codec: PieceCodec | None = None,
    device: DeviceBaseline | None = None,
    session: SessionId | None = None,
    take_over: bool = False,
    rewind_to: int | None = None,
    cast: Mapping[str, str] | None = None,
    name_rules: Sequence[str] = (),
    baseline_path: Path | None = None,
    resume: TensorSource | None = None,
) -> TrainerSession:
    """Claim a store for a run, and find the bits that the next delta starts from.

    After a crash: the claim is open or not; on a local store the next trainer on this
    machine sees that its owner is dead, elsewhere it needs `take_over`.

    Args:
        blobs, log, clock, entropy, settings, codec, device: As in `StoreParts`.
        run: Name of the run whose steps will be put.
        session: Nonce of the launch; None draws one.
        take_over: Fence whoever owns the store now.
        rewind_to: Steps above this one become new versions.
        cast: Glob patterns on names to dtypes: casts that the caller declares.
        name_rules: Wrapper prefixes to strip from given names.
        baseline_path: A file that holds the baseline, across restarts; None is memory.
        resume: Tensors that may be those of the newest version, to save its checkout.

    Raises:
        StoreOwnedError: another trainer owns the store.
        InputRefusedError: `rewind_to`, `resume` or a name rule is none; nothing was claimed.
        NameRefusedError, DTypeRefusedError: the run's name, or a cast, is not allowed.
    """
    casts = CastRules.parse(cast or {})
    parts = StoreParts(
        blobs=blobs, log=log, clock=clock, entropy=entropy, settings=settings, codec=codec
    )
    parts = replace(parts, device=device)
    with ExitStack() as undo, ExitStack() as opened:
        given = _resumed(resume, opened, settings.limits, name_rules)
        place = undo.enter_context(_placed(baseline_path))
        tools, claim = claim_store(
            undo,
            parts,
            run=parse_run_id(run),
            session=session or parts.new_session(),
            take_over=take_over,
            rewind_to=None if rewind_to is None else checked_step(rewind_to, "rewind_to"),
        )
        publisher = _Attach(tools, claim, place, casts).publisher(given)
        return TrainerSession(
            publisher, at_end=undo.pop_all(), limits=settings.limits, name_rules=name_rules
        )
    raise AssertionError("the block above returns or raises")


def _resumed(
    resume: TensorSource | None, opened: ExitStack, limits: Limits, name_rules: Sequence[str]
) -> Inputs | None:
    """What the caller resumes with, wrapped before the claim, since it may be refused."""
    check_name_rules(name_rules)
    if resume is None:
        return None
    return open_source(resume, at_end=opened, limits=limits, name_rules=name_rules)


@contextmanager
def _placed(path: Path | None) -> Iterator[BaselinePlace]:
    place: BaselinePlace = MemoryPlace() if path is None else FilePlace(path)
    try:
        yield place
    finally:
        place.close()


class _Attach:
    """Finds the newest version of a claim, and a baseline that is proven to be its bits."""

    def __init__(self, tools: Tools, claim: Claim, place: BaselinePlace, casts: CastRules) -> None:
        self._tools = tools
        self._claim = claim
        self._place = place
        self._casts = casts

    def publisher(self, resume: Inputs | None) -> Publisher:
        """Puts steps under the claim."""
        state = self.state(resume)
        return Publisher(self._tools, self._claim, state, place=self._place, casts=self._casts)

    def state(self, resume: Inputs | None) -> PublisherState:
        """What the first put starts from; where nothing can be proven it will be full."""
        state = PublisherState()
        newest = self._claim.newest
        if newest is None:
            return state
        record = self._tools.log.stored_at(newest.slot).record
        assert isinstance(record, VersionRecord)
        try:
            state.head, plan = read_head(self._tools, record)
            state.baseline = self._baseline(state.head, plan, resume)
        except CorruptError as error:
            if state.head is None:
                state.unreadable = UnreadableHead(record.version, error)
            state.notes.append(
                f"version {record.version} cannot be read, so the next one will be full: {error}"
            )
        return state

    def _baseline(self, head: Head, plan: CheckoutPlan, resume: Inputs | None) -> Baseline:
        """What is left from before, or what was given, or a checkout: whatever is proven."""
        layout = plan_layout(head.schema)
        present = self._place.load(layout)
        if present is not None and self._is_head(head, present):
            return present
        baseline = self._place.create(layout)
        if resume is None or not self._resumes(head, baseline, resume):
            checkout_into(
                self._tools.blobs, plan, baseline.targets(), settings=self._tools.settings
            )
        self._place.adopt()
        return baseline

    def _is_head(self, head: Head, baseline: Baseline) -> bool:
        return bool(np.array_equal(self._tools.scan.baseline_table(baseline), head.table))

    def _resumes(self, head: Head, baseline: Baseline, resume: Inputs) -> bool:
        """Fill a baseline with given tensors; whether they are those of the newest version."""
        try:
            binding = Binding(head.schema, resume, self._casts)
            table = self._tools.scan.run(binding, into=baseline).table
        except SchemaMismatchError:
            return False
        return bool(np.array_equal(table, head.table))
