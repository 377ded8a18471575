"""What the facade hands out: frozen values about versions, stores and what was done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightstore.history.diff import SchemaChange, TensorChange
from weightstore.layout.tensors import HostTensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """One committed version.

    Attributes:
        version: Its number: 1, 2, 3, ... over all runs.
        run: The run that put it.
        step: The trainer's step.
        base: The version that its delta starts from; None if it has no base.
        digest: State digest: SHA-256 over names, dtypes, shapes and per-tensor lanes.
        kept: False once it was retired: it can no longer be checked out.
        slot: Where its record is in the log.
        written_unix_ms: The writer's clock, for display.
    """

    version: int
    run: str
    step: int
    base: int | None
    digest: str
    kept: bool
    slot: int
    written_unix_ms: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file of a checkpoint directory that an import did not take over.

    Attributes:
        name: As in the directory; bytes that are no UTF-8 are lone surrogates, as `os` has it.
        reason: Why, in words.
    """

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImportedVersion(VersionInfo):
    """The version that an import made, or that was there already.

    Attributes:
        skipped: What stayed behind, by name; an export will not bring it back.
    """

    skipped: tuple[SkippedFile, ...]


@dataclass(frozen=True, slots=True)
class VersionDetails:
    """What a version's manifest says; sizes in bytes."""

    version: int
    run: str
    step: int
    base: int | None
    digest: str
    schema_id: str
    tensor_count: int
    unit_count: int
    full_size_bytes: int
    changed_count: int | None
    piece_count: int | None
    pack_count: int | None
    delta_size_bytes: int | None
    has_full_form: bool
    chain_count: int
    chain_size_bytes: int
    manifest_size_bytes: int


@dataclass(frozen=True, slots=True)
class StoreState:
    """The newest state of a store, from its log."""

    location: str
    store_id: str
    format: int
    record_count: int
    newest: int | None
    epoch: int
    owner: str | None
    active: int | None


@dataclass(frozen=True, slots=True)
class TagInfo:
    """A name that keeps a version."""

    name: str
    version: int
    owner: str


@dataclass(frozen=True, slots=True)
class LogRow:
    """One record of the log, for people.

    Attributes:
        slot: Where it is.
        kind: What it does, in one word.
        epoch: Of the claim that wrote it.
        run: The run that it belongs to.
        what: What it says.
        void: Why it counts for nothing; None for a record that counts.
        written_unix_ms: The writer's clock, for display.
    """

    slot: int
    kind: str
    epoch: int
    run: str | None
    what: str
    void: str | None
    written_unix_ms: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was read and found right.

    Attributes:
        version: The version.
        object_count: Different objects: manifests, schema, digest tables, packs, files.
        read_size_bytes: Bytes of packs and files together.
        scanned: Whether every element was digested too.
    """

    version: int
    object_count: int
    read_size_bytes: int
    scanned: bool


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """What differs between two versions.

    Attributes:
        old: The version that was asked for first.
        new: The one that it was compared with.
        tensors: Those that changed, the densest change first.
        schema: Names that are not the same tensor in both; their bits were not compared.
        source: Where the counts come from: `digests` (all agree, nothing was read), `packs`
            (the index of the delta between neighbours) or `weights` (all bits compared).
        compared_count: Tensors that both versions have, changed or not.
        compared_unit_count: Their elements.
        changed_count: Elements that changed.
    """

    old: VersionInfo
    new: VersionInfo
    tensors: tuple[TensorChange, ...]
    schema: tuple[SchemaChange, ...]
    source: str
    compared_count: int
    compared_unit_count: int
    changed_count: int

    @property
    def density(self) -> float:
        """Share of all compared elements that changed, 0 to 1."""
        return self.changed_count / max(self.compared_unit_count, 1)


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A version that stays, and why.

    Attributes:
        version: Its number.
        reasons: Such as `"newest"`, `"active"`, `"tag best"`, `"asked for"` or
            `"chain of 9"`.
    """

    version: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RetireReport:
    """Versions retired and objects deleted; with a dry run, what would be.

    Attributes:
        gone: Versions that can no longer be checked out.
        kept: Versions that stay, and why.
        deleted_count: Objects that are needed by nothing that stays.
        deleted_size_bytes: Their bytes.
        unknown_count: Objects whose names are not understood; they were left alone.
    """

    gone: tuple[int, ...]
    kept: tuple[KeptVersion, ...]
    deleted_count: int
    deleted_size_bytes: int
    unknown_count: int


@dataclass(frozen=True, slots=True)
class ReceiverInfo:
    """What one receiver process said about itself when it last did.

    Attributes:
        member_id: Of this start of the process.
        name: For people.
        host: Of the process.
        process: Its number.
        rank_count: Ranks of its engine.
        mode: What it serves by: `controller`, `active` or `latest`.
        state: Of its live weights: `empty`, `whole`, `applying` or `dirty`.
        live: The version that it holds; None unless they are whole.
        staged: The version that it can apply without reading the store.
        lag: Versions between `live` and the store's newest.
        activate_slot: The newest `activate` record that it has read.
        applied_slot: The `activate` record under which it serves `live`.
        counter: Rises with every word of it; one that stands still is silent or dead.
        phase: What it does now.
        refit_count: Refits since its start.
        wire_bytes: Bytes of stored objects that they have read.
        applied_bytes: Bytes that they have written to live weights.
        last_pause_us: How long the last of them stopped serving.
        age_s: Since it said so, by two machines' wall clocks; for display alone.
    """

    member_id: str
    name: str
    host: str
    process: int
    rank_count: int
    mode: str
    state: str
    live: int | None
    staged: int | None
    lag: int | None
    activate_slot: int | None
    applied_slot: int | None
    counter: int
    phase: str
    refit_count: int
    wire_bytes: int
    applied_bytes: int
    last_pause_us: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Activation:
    """What an activation has done.

    Attributes:
        version: The version that receivers in the mode `active` serve from now on.
        slot: Of the record that says so.
        listed_count: Receivers of that mode at the last look.
        staged_count: Those of them that had it staged, or live.
        missing: The others: they serve nothing once they have read the record, or once their
            `max_staleness_s` has passed, until they hold the version.
        waited_s: How long they were waited for.
        repeated: It was active already; no record was put.
    """

    version: int
    slot: int
    listed_count: int
    staged_count: int
    missing: tuple[ReceiverInfo, ...]
    waited_s: float
    repeated: bool


@dataclass(frozen=True, slots=True, eq=False)
class Checkout:
    """The weights of one version, in private memory.

    Attributes:
        info: Which version this is; with the selector `latest` the one that was newest.
        host: Name to weights as unsigned bit patterns; tied names share memory.
    """

    info: VersionInfo
    host: Mapping[str, HostTensor]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Name to torch tensor, sharing memory with `host`. Imports torch."""
        from weightstore.receiver.torch_targets import torch_tensor  # noqa: PLC0415 -- torch is late

        return {name: torch_tensor(host) for name, host in self.host.items()}
