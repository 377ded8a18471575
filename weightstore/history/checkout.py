"""A version's weights in memory: the full form, then every delta, all verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.digest import lanes_of, member_lanes
from weightstore.codec.kernels import Kernels
from weightstore.errors import CorruptObjectError, DigestMismatchError, TargetUnusableError
from weightstore.format.keys import anchor_key
from weightstore.history.anchors import AnchorReader, check_size
from weightstore.history.chain import CheckoutPlan
from weightstore.history.progress import Meter, Progress, no_progress
from weightstore.history.replay import Replay
from weightstore.history.targets import Memory, Target
from weightstore.history.workers import Workers
from weightstore.layout.boxes import FlatRange, cut_flat
from weightstore.layout.bundles import Bundle
from weightstore.layout.tensors import HostTensor
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore


def checkout(
    blobs: BlobStore,
    plan: CheckoutPlan,
    settings: Settings,
    progress: Progress = no_progress,
    *,
    codec: PieceCodec | None = None,
) -> dict[str, HostTensor]:
    """Read a version into private memory.

    Memory: the full bytes, one block and one pack per thread, and the codec's buffers.

    Args:
        blobs: The store.
        plan: Of the version.
        settings: Threads and limits.
        progress: Told the bytes of the full form (`"full"`) and of packs (`"delta"`).
        codec: Kernels to use; None makes one.

    Returns:
        Every name, aliases included, to its tensor; tied names share memory.

    Raises:
        ObjectMissingError: something that the version names is not there; no bytes are
            returned.
        CorruptObjectError: an object, block or piece is damaged.
        WrongBaseError: a delta does not fit the bits below it.
        DigestMismatchError: the bits do not lead to the version's digest.
    """
    _check_room(blobs, plan)
    memory = Memory.allocate(plan.schema)
    _fill(blobs, plan, memory, settings, codec, progress)
    return memory.tensors()


def checkout_into(
    blobs: BlobStore,
    plan: CheckoutPlan,
    targets: Mapping[str, Target],
    settings: Settings,
    progress: Progress = no_progress,
    *,
    codec: PieceCodec | None = None,
) -> None:
    """Write a version over arrays that the caller holds, after a whole pass of checks.

    The first pass verifies every object, stream and digest of the chain in O(one pack) of
    memory and touches no target. The second reads again, writes, and compares what has
    landed.

    After a crash: the targets hold old and new bytes mixed; check out anew.

    Args:
        blobs: The store.
        plan: Of the version.
        targets: Tensor names to 1-D unit arrays, or to host tensors whose dtype and shape
            are compared too. A tied name may be missing, or be memory of its own.
        settings: Threads and limits.
        progress: As for `checkout`; the first pass adds `"check "` to each phase.
        codec: Kernels to use; None makes one.

    Raises:
        SchemaMismatchError: everything wrong with names, dtypes and shapes; nothing written.
        InputRefusedError: targets that cannot be written in place; nothing written.
        CorruptError: what the first pass found; nothing written.
        TargetUnusableError: the second pass failed, so the targets hold a mixture; its cause
            says why.
    """
    memory = Memory.given(plan.schema, targets)
    codec = codec or PieceCodec(limits=settings.limits)
    verify_plan(blobs, plan, settings, _prefixed("check ", progress), codec=codec)
    try:
        _fill(blobs, plan, memory, settings, codec, progress)
        _scan(plan, memory, settings, codec, progress)
        memory.fill_copies()
    except Exception as error:
        raise TargetUnusableError(
            f"the checkout of version {plan.record.version} failed after it had begun to write: "
            f"{error}",
            do="Do not use the targets: check out again, or load them from elsewhere.",
            facts={"version": plan.record.version},
        ) from error


def verify_plan(
    blobs: BlobStore,
    plan: CheckoutPlan,
    settings: Settings,
    progress: Progress = no_progress,
    *,
    codec: PieceCodec | None = None,
    scan: bool = False,
) -> None:
    """Read and check everything that a version consists of.

    Without `scan`, in O(one pack) of memory: every block of the full form, every pack,
    stream and count, and that the pieces lead from digest table to digest table. With it
    the version is also built in memory, and each tensor's digest computed from its bits.

    Args:
        blobs: The store.
        plan: Of the version.
        settings: Threads and limits.
        progress: As for `checkout`. A scan adds `"build "` to each phase of its second read,
            then tells `"scan"`.
        codec: Kernels to use; None makes one.
        scan: Also build the version and digest its bits; needs its full bytes of memory.

    Raises:
        ObjectMissingError, CorruptObjectError, DigestMismatchError, WrongBaseError: as
            `checkout`.
    """
    codec = codec or PieceCodec(limits=settings.limits)
    _fill(blobs, plan, None, settings, codec, progress)
    _check_hidden_delta(blobs, plan, settings, codec, progress)
    if scan:
        _check_room(blobs, plan)
        memory = Memory.allocate(plan.schema)
        _fill(blobs, plan, memory, settings, codec, _prefixed("build ", progress))
        _scan(plan, memory, settings, codec, progress)


def _check_hidden_delta(
    blobs: BlobStore,
    plan: CheckoutPlan,
    settings: Settings,
    codec: PieceCodec,
    progress: Progress,
) -> None:
    """Check the delta of a version with both forms: a reader of its base applies it (P1)."""
    if plan.manifest.delta is None or plan.deltas:
        return
    with Workers(settings.thread_count) as workers:
        replay = Replay(blobs, plan, codec=codec, workers=workers, limits=settings.limits)
        replay.check_delta(plan.manifest, progress)


def _check_room(blobs: BlobStore, plan: CheckoutPlan) -> None:
    """Refuse a schema that is larger than the files that hold it, before any allocation (P10)."""
    full = plan.full_form
    weights = [file for file in full.files if file.role == "weights"]
    for file in weights:
        check_size(blobs, anchor_key(full.anchor_id, file.name), file.size_bytes, plan.full.version)
    held_bytes = sum(file.size_bytes for file in weights)
    if plan.schema.size_bytes > held_bytes:
        raise CorruptObjectError(
            f"version {plan.record.version}: its tensors would have {plan.schema.size_bytes} "
            f"bytes, the weight files have {held_bytes}",
            do="Check out another version; report the store as damaged.",
            facts={"version": plan.record.version},
        )


def _prefixed(prefix: str, progress: Progress) -> Progress:
    def tell(phase: str, done_bytes: int, total_bytes: int, /) -> None:
        progress(prefix + phase, done_bytes, total_bytes)

    return tell


def _fill(
    blobs: BlobStore,
    plan: CheckoutPlan,
    memory: Memory | None,
    settings: Settings,
    codec: PieceCodec | None,
    progress: Progress,
) -> None:
    limits = settings.limits
    codec = codec or PieceCodec(limits=limits)
    with Workers(settings.thread_count) as workers:
        anchor = AnchorReader(blobs, plan.full, plan.schema, workers=workers, limits=limits)
        anchor.run(memory, progress)
        replay = Replay(blobs, plan, codec=codec, workers=workers, limits=limits)
        replay.run(memory, progress)


def _scan(
    plan: CheckoutPlan, memory: Memory, settings: Settings, codec: PieceCodec, progress: Progress
) -> None:
    """Compute every tensor's lanes from its bits and compare them with the version's table."""
    schema = plan.schema
    kernels = codec.kernels_for(schema.unit_count)
    found = np.zeros_like(plan.last_table)
    meter = Meter(progress, "scan", schema.size_bytes)
    with Workers(settings.thread_count) as workers:
        for indices, lanes, size_bytes in workers.run(_lane_jobs(memory, kernels)):
            found[indices] += lanes
            meter.add(size_bytes)
    wrong = np.flatnonzero(np.any(found != plan.last_table, axis=1)).tolist()
    if wrong:
        names = tuple(schema.tensors[index].name for index in wrong)
        raise DigestMismatchError(
            f"version {plan.record.version}: the bits of {len(names)} tensors, the first "
            f"{names[0]!r}, do not have the digests of its table",
            do="Check out another version; report the store as damaged.",
            facts={"version": plan.record.version, "tensors": names},
        )


LaneJob = Callable[[], tuple[list[int], NDArray[np.uint64], int]]


def _lane_jobs(memory: Memory, kernels: Kernels) -> Iterator[LaneJob]:
    schema = memory.schema
    bundled: set[int] = set()
    for bundle in schema.bundles:
        bundled.update(bundle.members)
        yield partial(_bundle_lanes, memory, bundle, kernels)
    for index, spec in enumerate(schema.tensors):
        if index not in bundled:
            for part in cut_flat(spec.unit_count):
                yield partial(_tensor_lanes, memory, index, part, kernels)


def _bundle_lanes(
    memory: Memory, bundle: Bundle, kernels: Kernels
) -> tuple[list[int], NDArray[np.uint64], int]:
    units = memory.joined(bundle.members)
    if units is None:
        units = np.concatenate([memory.arrays[index] for index in bundle.members])
    return list(bundle.members), member_lanes(units, bundle.starts, kernels=kernels), units.nbytes


def _tensor_lanes(
    memory: Memory, index: int, part: FlatRange, kernels: Kernels
) -> tuple[list[int], NDArray[np.uint64], int]:
    units = memory.arrays[index][part.first_unit : part.end_unit]
    lanes = lanes_of(units, first_index=part.first_unit, kernels=kernels)
    return [index], np.array([lanes], np.uint64), units.nbytes
