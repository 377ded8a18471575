"""How many units a delta changes in each tensor, from the index of its packs alone."""

from __future__ import annotations

from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import ValueCoding
from weightstore.format.manifest import Manifest
from weightstore.format.pack import BundlePlace
from weightstore.history.chain import CheckoutPlan
from weightstore.history.extents import DeltaExtents
from weightstore.history.ledger import DeltaLedger
from weightstore.history.pack_jobs import PackJob, load_packs
from weightstore.history.workers import Workers
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore


def changed_counts(
    blobs: BlobStore,
    manifest: Manifest,
    older: CheckoutPlan,
    newer: CheckoutPlan,
    settings: Settings,
) -> NDArray[np.int64] | None:
    """Changed units of every tensor, or None where the packs do not tell.

    Every check of a replay is made but those of the streams, which are not unpacked.

    Args:
        blobs: The store.
        manifest: Has the delta that leads from one version to the other.
        older: The version that it starts from.
        newer: The version that it leads to.
        settings: Threads and limits.

    Raises:
        ObjectMissingError: a pack is not there.
        CorruptObjectError: a pack is damaged, two packs change the same units, or counts
            differ from the manifest; names version and packs.
        DigestMismatchError: the pieces do not lead from table to table.
    """
    schema, limits = newer.schema, settings.limits
    counts = np.zeros(len(schema.tensors), np.int64)
    extents = DeltaExtents(schema, manifest.version, limits)
    ledger = DeltaLedger(schema, manifest, older.last_table, newer.last_table)
    with (
        Workers(settings.thread_count) as workers,
        closing(load_packs(blobs, schema, [manifest], workers=workers, limits=limits)) as loaded,
    ):
        for job in loaded:
            extents.add(job.pack.key, job.reader.places)
            if not _count_pack(job, ledger, counts):
                return None
    extents.settle()
    ledger.settle()
    return counts


def _count_pack(job: PackJob, ledger: DeltaLedger, counts: NDArray[np.int64]) -> bool:
    """Add the changes of a pack to those of the tensors; False where it does not tell."""
    reader = job.reader
    for index, place in enumerate(reader.places):
        piece = reader.piece(index)
        if piece.value_coding is ValueCoding.DENSE_BITS:
            return False  # it says all bits, and not which of them changed
        if isinstance(place, BundlePlace):
            members = reader.member_changed_counts(index)
            counts[list(place.members)] += members
        else:
            members = None
            counts[place.tensor_index] += piece.changed_count
        ledger.add(place, piece, members)
    return True
