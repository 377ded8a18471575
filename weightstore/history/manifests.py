"""Loading what a version consists of: manifest, schema, digest table; verified before use."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.digest import state_digest
from weightstore.errors import (
    BlobNotFoundError,
    CorruptObjectError,
    DigestMismatchError,
    ObjectMissingError,
)
from weightstore.format.digest_table import decode_table
from weightstore.format.keys import manifest_key
from weightstore.format.manifest import Manifest, decode_manifest
from weightstore.format.objects import ObjectRef
from weightstore.format.records import VersionRecord
from weightstore.ids import RunId, Sha256, VersionId
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore

SchemaCache = MutableMapping[Sha256, Schema]
"""Schemas by id, owned by the caller: versions of one run share one."""


def fetch_object(
    blobs: BlobStore, ref: ObjectRef, *, version: VersionId, what: str, max_size_bytes: int
) -> bytes:
    """Read an object that a version names, whole and verified.

    Args:
        blobs: Where it is.
        ref: Its key, size and SHA-256, from bytes that were verified themselves.
        version: Who names it, for messages.
        what: What it is, for messages.
        max_size_bytes: Hard bound; nothing larger is read.

    Raises:
        ObjectMissingError: it is not there.
        CorruptObjectError: its size or SHA-256 is another one, or it passes the bound.
    """
    if ref.size_bytes > max_size_bytes:
        raise CorruptObjectError(
            f"version {version}: the {what} {ref.key} would have {ref.size_bytes} bytes, "
            f"more than the {max_size_bytes} allowed",
            do="Raise the limit if the object is genuine; else treat the store as damaged.",
            facts={"version": version, "key": ref.key, "size_bytes": ref.size_bytes},
        )
    try:
        data = blobs.get(ref.key, max_size_bytes=ref.size_bytes)
    except BlobNotFoundError as error:
        raise missing_object(version, what, ref.key) from error
    found = hashlib.sha256(data).hexdigest()
    if len(data) != ref.size_bytes or found != ref.sha256:
        raise CorruptObjectError(
            f"version {version}: the {what} {ref.key} is not what was committed: expected "
            f"{ref.size_bytes} bytes with SHA-256 {ref.sha256}, found {len(data)} with {found}",
            do="Restore the object from another copy of the store.",
            facts={"version": version, "key": ref.key, "expected": ref.sha256, "found": found},
        )
    return data


def missing_object(version: VersionId, what: str, key: str) -> ObjectMissingError:
    """Build the error for an object that a version names and that is not there."""
    return ObjectMissingError(
        f"version {version} names the {what} {key}, which is not there",
        do="Restore the object from another copy of the store, or choose another version.",
        facts={"version": version, "key": key},
    )


def load_manifest(blobs: BlobStore, record: VersionRecord, limits: Limits) -> Manifest:
    """Read the manifest that a version record names; it agrees with the record.

    Raises:
        ObjectMissingError: it is not there.
        CorruptObjectError: size, SHA-256, form or a field contradicts the record.
    """
    # A version record is written by a trainer, so it has a run; the rules refuse others.
    run = RunId(record.run or "")
    ref = ObjectRef(
        key=manifest_key(run, record.epoch, record.version, record.commit_id),
        size_bytes=record.manifest_size_bytes,
        sha256=record.manifest_sha256,
    )
    data = fetch_object(
        blobs,
        ref,
        version=record.version,
        what="manifest",
        max_size_bytes=limits.manifest_size_bytes,
    )
    return decode_manifest(data, record)


def load_schema(
    blobs: BlobStore, manifest: Manifest, limits: Limits, cache: SchemaCache | None = None
) -> Schema:
    """Read the schema that a manifest names, or take it from the cache; it has the stated id.

    Raises:
        ObjectMissingError: it is not there.
        CorruptObjectError: size, SHA-256 or form is wrong, or its id is another one.
    """
    if cache is not None and manifest.schema_id in cache:
        return cache[manifest.schema_id]
    data = fetch_object(
        blobs,
        manifest.schema_ref,
        version=manifest.version,
        what="schema",
        max_size_bytes=limits.schema_size_bytes,
    )
    schema = Schema.from_bytes(data)
    if schema.id != manifest.schema_id:
        raise CorruptObjectError(
            f"version {manifest.version}: the schema {manifest.schema_ref.key} has the id "
            f"{schema.id}, not {manifest.schema_id}",
            facts={"version": manifest.version, "key": manifest.schema_ref.key},
        )
    if cache is not None:
        cache[manifest.schema_id] = schema
    return schema


def load_table(
    blobs: BlobStore, manifest: Manifest, schema: Schema, limits: Limits
) -> NDArray[np.uint64]:
    """Read the digest lanes of every tensor of a version.

    Returns:
        Shape (tensors, 2), in schema order.

    Raises:
        ObjectMissingError: it is not there.
        CorruptObjectError: size, SHA-256 or form is wrong, or it is of another schema.
    """
    data = fetch_object(
        blobs,
        manifest.digests,
        version=manifest.version,
        what="digest table",
        max_size_bytes=limits.digest_table_size_bytes,
    )
    return decode_table(data, schema)


def check_state_digest(manifest: Manifest, schema: Schema, table: NDArray[np.uint64]) -> None:
    """Compare the state digest of a version's table with the committed one.

    Raises:
        DigestMismatchError: they differ.
    """
    found = state_digest(schema, table)
    if found != manifest.digest:
        raise DigestMismatchError(
            f"version {manifest.version}: the digest table sums to {found}, "
            f"the record says {manifest.digest}",
            do="Restore the store from another copy: table and record do not belong together.",
            facts={"version": manifest.version, "expected": manifest.digest, "found": found},
        )
