"""Which objects lead to a version: from the nearest full form through every delta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.arguments import counted
from weightstore.errors import CorruptLogError, CorruptObjectError, LimitError
from weightstore.format.manifest import DeltaForm, FullForm, Manifest
from weightstore.format.records import VersionRecord
from weightstore.history.log import StoredRecord
from weightstore.history.manifests import (
    SchemaCache,
    check_state_digest,
    load_manifest,
    load_schema,
    load_table,
)
from weightstore.ids import Slot
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore


class RecordReader(Protocol):
    """The part of the log that a chain is read from."""

    def read(self, slot: Slot, /) -> StoredRecord | None:
        """Read the record at a slot, or None where there is none."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CheckoutPlan:
    """Everything that a checkout reads, verified as far as it can be without the weights.

    Attributes:
        record: The version's record.
        schema: Shared by the whole chain.
        full: Manifest of the nearest version with a full form, where the replay starts.
        deltas: Manifests of the versions after it, oldest first; the last is the version.
        first_table: Lanes of `full`, shape (tensors, 2).
        last_table: Lanes of the version, shape (tensors, 2); the same array without deltas.
        full_size_bytes: Bytes of the full form.
        delta_size_bytes: Bytes of all packs together.
    """

    record: VersionRecord
    schema: Schema
    full: Manifest
    deltas: tuple[Manifest, ...]
    first_table: NDArray[np.uint64]
    last_table: NDArray[np.uint64]
    full_size_bytes: int
    delta_size_bytes: int

    @property
    def manifest(self) -> Manifest:
        """The version's own manifest."""
        return self.deltas[-1] if self.deltas else self.full

    @property
    def full_form(self) -> FullForm:
        """The full form that the replay starts from."""
        return full_form(self.full)

    def __str__(self) -> str:
        return (
            f"version {self.record.version}: full form of version {self.full.version} "
            f"({self.full_size_bytes} bytes), then {len(self.deltas)} deltas "
            f"({self.delta_size_bytes} bytes)"
        )


def plan_checkout(
    blobs: BlobStore,
    log: RecordReader,
    record: VersionRecord,
    limits: Limits,
    *,
    cache: SchemaCache | None = None,
) -> CheckoutPlan:
    """Find the chain of a version and check that its links fit. Reads no weights.

    Args:
        blobs: The store.
        log: Gives the record at a slot.
        record: A valid record, from a verified prefix of the log.
        limits: Bounds the chain and every object.
        cache: Schemas that the caller has already.

    Raises:
        ObjectMissingError: a manifest, schema or table is not there; names it.
        CorruptObjectError: one of them is damaged, or two do not fit each other.
        CorruptLogError: the log contradicts itself about a base.
        DigestMismatchError: a digest table does not sum to its version's digest.
        LimitError: the chain is longer than `limits.chain_count`.
    """
    manifests = _walk(blobs, log, record, limits)
    full, deltas = manifests[0], tuple(manifests[1:])
    schema = load_schema(blobs, full, limits, cache)
    first_table = load_table(blobs, full, schema, limits)
    check_state_digest(full, schema, first_table)
    last_table = first_table
    if deltas:
        last_table = load_table(blobs, deltas[-1], schema, limits)
        check_state_digest(deltas[-1], schema, last_table)
    return CheckoutPlan(
        record=record,
        schema=schema,
        full=full,
        deltas=deltas,
        first_table=first_table,
        last_table=last_table,
        full_size_bytes=sum(file.size_bytes for file in full_form(full).files),
        delta_size_bytes=sum(pack.size_bytes for each in deltas for pack in delta_form(each).packs),
    )


def full_form(manifest: Manifest) -> FullForm:
    """Give the full form of a manifest that was chosen because it has one."""
    assert manifest.full is not None
    return manifest.full


def delta_form(manifest: Manifest) -> DeltaForm:
    """Give the delta of a manifest that a chain goes through, so that has one."""
    assert manifest.delta is not None
    return manifest.delta


def base_record(log: RecordReader, record: VersionRecord) -> VersionRecord:
    """The record of a delta's base, which was the newest version before it.

    Raises:
        CorruptLogError: the log contradicts itself about the base.
    """
    newest, base = record.now.newest, record.base
    if (
        newest is None
        or base is None
        or (newest.version, newest.digest)
        != (
            base.version,
            base.digest,
        )
    ):
        raise CorruptLogError(
            f"version {record.version} has the base {base}, but the newest version before it "
            f"is {newest}",
            facts={"version": record.version, "slot": record.slot},
        )
    found = log.read(newest.slot)
    if (
        found is None
        or not isinstance(found.record, VersionRecord)
        or (found.record.version, found.record.digest) != (base.version, base.digest)
    ):
        raise CorruptLogError(
            f"version {record.version} starts from version {base.version} with the digest "
            f"{base.digest}, but log record {newest.slot} is not that version",
            do="Restore the log from another copy.",
            facts={"version": record.version, "base": base.version, "slot": newest.slot},
        )
    return found.record


def check_link(base: Manifest, delta: Manifest) -> None:
    """Compare a delta's base with the version below it, before any weight is read (P8).

    Raises:
        CorruptObjectError: base or schema differ.
    """
    expected = delta.base
    if expected is None or (expected.version, expected.digest) != (base.version, base.digest):
        raise CorruptObjectError(
            f"the delta of version {delta.version} starts from {expected}, found version "
            f"{base.version} with the digest {base.digest}",
            do="Check out a version with a full form; report the store as damaged.",
            facts={
                "version": delta.version,
                "expected": expected.digest if expected else None,
                "found": base.digest,
            },
        )
    if delta.schema_id != base.schema_id:
        raise CorruptObjectError(
            f"the delta of version {delta.version} has the schema {delta.schema_id}, its base, "
            f"version {base.version}, has {base.schema_id}",
            do="Check out a version with a full form; report the store as damaged.",
            facts={
                "version": delta.version,
                "expected": base.schema_id,
                "found": delta.schema_id,
            },
        )


def _walk(
    blobs: BlobStore, log: RecordReader, record: VersionRecord, limits: Limits
) -> list[Manifest]:
    """Manifests from the nearest full form to the version, oldest first."""
    newest_first: list[Manifest] = []
    while True:
        manifest = load_manifest(blobs, record, limits)
        if newest_first:
            check_link(manifest, newest_first[-1])
        newest_first.append(manifest)
        if manifest.full is not None:
            return newest_first[::-1]
        if len(newest_first) > limits.chain_count:
            raise LimitError(
                f"the chain of version {newest_first[0].version} has more than "
                f"{counted(limits.chain_count, 'delta')}",
                do="Raise Limits.chain_count, or put a version with its full form.",
                facts={"version": newest_first[0].version, "chain_count": limits.chain_count},
            )
        record = base_record(log, record)
