"""Writing a full form: safetensors files that Hugging Face loaders read, hashed as they pass."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from typing_extensions import Buffer

from weightstore.errors import InputRefusedError
from weightstore.format.anchor_plan import (
    INDEX_FILE_NAME,
    AnchorFilePlan,
    hf_index_json,
    plan_anchor_files,
)
from weightstore.format.blocks import BlockHasher, FileBlocks, encode_blocks
from weightstore.format.keys import anchor_key
from weightstore.format.manifest import BLOCKS_NAME, AnchorFile, FullForm, Manifest
from weightstore.format.objects import ObjectRef
from weightstore.history.anchors import open_files, verified_chunks
from weightstore.history.progress import Meter, Progress, no_progress
from weightstore.history.settle import Chunks, put_settled
from weightstore.ids import Sha256
from weightstore.layout.boxes import cut_flat
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import Units
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore

UnitsSource = Callable[[int, int, int], Units]
"""Bits of a tensor, by schema index, first unit and unit count: a contiguous array, which
need be valid only until the next call. May be asked again for the same range."""


def write_anchor(
    blobs: BlobStore,
    anchor_id: str,
    schema: Schema,
    units_of: UnitsSource,
    *,
    settings: Settings,
    assets_from: Manifest | None = None,
    progress: Progress = no_progress,
) -> FullForm:
    """Write a version's weights as a checkpoint directory, in O(one range) of memory.

    After a crash: some of the files, each whole; nothing names them until a record does, and
    the anchor's id is never used again.

    Args:
        blobs: The store.
        anchor_id: Unique to this attempt.
        schema: Of the version.
        units_of: Gives the weights; asked in file order for ranges of at most
            `limits.piece_element_count` units that begin at multiples of it.
        settings: Size of the files, and limits.
        assets_from: A version with a full form, whose configuration and tokenizer files are
            copied, verified.
        progress: Told the bytes of weights, in the phase `"write"`.

    Returns:
        What the manifest says of the full form.

    Raises:
        BlobExistsError: a file of this id is there with other bytes: the id was used before.
        ObjectMissingError, CorruptObjectError: an asset of the other version is damaged.
        BlobOutcomeUnknownError: a write could not be settled by reading in a few tries.
    """
    plans = plan_anchor_files(schema, settings.anchor_file_size_bytes)
    sink = AnchorSink(blobs, anchor_id, settings.limits)
    meter = Meter(progress, "write", sum(plan.size_bytes for plan in plans))
    range_count = settings.limits.piece_element_count
    for plan in plans:
        sink.put(
            AnchorFile(name=plan.name, size_bytes=plan.size_bytes, role="weights"),
            partial(weight_chunks, plan, schema, units_of, range_count, meter),
        )
    if len(plans) > 1:
        index = hf_index_json(plans)
        sink.put(
            AnchorFile(name=INDEX_FILE_NAME, size_bytes=len(index), role="index"), lambda: [index]
        )
    # A full form that has no assets need not even be whole: nothing of it is read then.
    if assets_from is not None and _has_assets(assets_from):
        for file, stored in open_files(blobs, assets_from, settings.limits):
            if file.role == "asset":
                sink.put(file, partial(verified_chunks, stored))
    return sink.finish()


def _has_assets(manifest: Manifest) -> bool:
    return manifest.full is not None and any(file.role == "asset" for file in manifest.full.files)


def weight_chunks(
    plan: AnchorFilePlan, schema: Schema, units_of: UnitsSource, range_count: int, meter: Meter
) -> Iterator[Buffer]:
    """The bytes of one planned file; each chunk is valid until the next one.

    Args:
        plan: The file.
        schema: Of the version.
        units_of: Gives the weights.
        range_count: Largest number of units asked for at once.
        meter: Told of each chunk after it was taken.

    Raises:
        InputRefusedError: the source gave another dtype or number of units.
    """
    yield plan.header
    meter.add(len(plan.header))
    for tensor in plan.tensors:
        spec = schema.tensors[tensor.index]
        for part in cut_flat(spec.unit_count, range_count):
            units = units_of(tensor.index, part.first_unit, part.unit_count)
            if (units.dtype, units.shape) != (spec.dtype.unit_dtype, (part.unit_count,)):
                raise InputRefusedError(
                    f"tensor {spec.name!r}: {part.unit_count} units of {spec.dtype.unit_dtype} "
                    f"were asked for, {units.dtype} of shape {units.shape} came",
                    do="Give the range of the tensor in its own dtype.",
                    facts={"tensor": spec.name},
                )
            yield units.data
            meter.add(units.nbytes)


class AnchorSink:
    """The files of one anchor as they are put, and at the end its sidecar of block hashes."""

    def __init__(self, blobs: BlobStore, anchor_id: str, limits: Limits) -> None:
        self._blobs = blobs
        self._anchor_id = anchor_id
        self._limits = limits
        self._files: dict[str, tuple[AnchorFile, FileBlocks]] = {}

    def put(self, file: AnchorFile, chunks: Chunks) -> None:
        """Write a file from chunks and hash it on the way.

        After a crash: no file, or the whole file.

        Raises:
            BlobExistsError: the name is there with other bytes.
            InputRefusedError: the chunks are not of the stated size.
            BlobOutcomeUnknownError: the write could not be settled by reading.
        """
        key = anchor_key(self._anchor_id, file.name)
        hasher = put_own_stream(self._blobs, key, chunks, self._limits)
        if hasher.size_bytes != file.size_bytes:
            raise InputRefusedError(
                f"file {file.name!r} got {hasher.size_bytes} bytes, {file.size_bytes} were planned",
                facts={"file": file.name},
            )
        self.add(file, tuple(hasher.finish()))

    def add(self, file: AnchorFile, hashes: tuple[bytes, ...]) -> None:
        """Take note of a file that is stored already."""
        self._files[file.name] = (file, FileBlocks(file.name, file.size_bytes, hashes))

    def finish(self) -> FullForm:
        """Write the sidecar; what the manifest says of the full form.

        After a crash: no sidecar, or the whole sidecar.

        Raises:
            BlobExistsError: the anchor has another one.
            BlobOutcomeUnknownError: the write could not be settled by reading.
        """
        ordered = [self._files[name] for name in sorted(self._files)]
        data = encode_blocks([blocks for _, blocks in ordered])
        key = anchor_key(self._anchor_id, BLOCKS_NAME)
        put_own_stream(self._blobs, key, lambda: [data], self._limits)
        return FullForm(
            anchor_id=self._anchor_id,
            files=tuple(file for file, _ in ordered),
            blocks=ObjectRef(
                key=key, size_bytes=len(data), sha256=Sha256(hashlib.sha256(data).hexdigest())
            ),
            size_bytes=sum(file.size_bytes for file, _ in ordered),
        )


def put_own_stream(blobs: BlobStore, key: str, chunks: Chunks, limits: Limits) -> BlockHasher:
    """Create a blob under a key that only this attempt writes; the hashes of its bytes.

    After a crash: no blob, or the whole blob.

    Raises:
        BlobExistsError: the key holds other bytes.
        BlobOutcomeUnknownError: it could not be settled in `limits.put_try_count` tries.
    """
    hasher = BlockHasher()

    def put() -> None:
        nonlocal hasher
        hasher = BlockHasher()
        blobs.put_stream_if_absent(key, _hashed(chunks(), hasher))

    if not put_settled(blobs, key, put, chunks, try_count=limits.put_try_count):
        # An earlier try had landed, and the last one may not have read its chunks to the end.
        hasher = BlockHasher()
        for chunk in chunks():
            hasher.update(chunk)
    return hasher


def _hashed(chunks: Iterable[Buffer], hasher: BlockHasher) -> Iterator[Buffer]:
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk
