"""Writing a version outside the store: a directory or a file, whole or not at all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from typing_extensions import Buffer

from weightstore.arguments import expanded
from weightstore.clock import Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import (
    BlobNotFoundError,
    CorruptObjectError,
    InputRefusedError,
    StorageFailedError,
)
from weightstore.format.anchor_plan import INDEX_FILE_NAME, hf_index_json, plan_anchor_files
from weightstore.format.blocks import BLOCK_SIZE_BYTES, block_count
from weightstore.format.keys import FORMAT_KEY
from weightstore.format.safetensors_header import encode_safetensors_header
from weightstore.history.anchor_writer import weight_chunks
from weightstore.history.anchors import StoredFile, check_size, open_files, verified_chunks
from weightstore.history.chain import CheckoutPlan
from weightstore.history.checkout import checkout
from weightstore.history.import_plan import is_other_weights, why_never_taken
from weightstore.history.progress import Meter, Progress, no_progress
from weightstore.history.workers import Lender, Workers
from weightstore.layout.tensors import HostTensor, Units
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.durable import (
    UNSUPPORTED_ERRNOS,
    link_durably,
    replace_durably,
    storage_error,
    sync_path,
)
from weightstore.storage.partial import partial_place, remove_abandoned_partials

_COPY_SIZE_BYTES = 1 << 30
_TAKEN_ERRNOS = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})
_FORMAT_METADATA = {"format": "pt"}


def export_checkpoint(
    blobs: BlobStore,
    plan: CheckoutPlan,
    directory: Path,
    *,
    entropy: Entropy,
    settings: Settings,
    codec: PieceCodec | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write a version as a checkpoint directory that `from_pretrained` loads.

    A version with a full form is copied, sharing blocks where the file system can; any
    other is checked out into memory first. Configuration and tokenizer files come from the
    full form that the chain starts with.

    After a crash: no directory, or the whole one; a half-written one keeps a name that
    begins with a dot and ends in `.partial` until the next export to the same place.

    Args:
        blobs: The store.
        plan: Of the version.
        directory: Where to; not there yet, or empty. Its parent is there.
        entropy: Names the directory while it is written.
        settings: Threads, limits, size of the files.
        codec: Kernels to use; None makes one.
        progress: As for `checkout`, and `"write"` or `"copy"`.

    Raises:
        InputRefusedError: the directory holds something, or its parent is not there; or a
            file of the full form has a name that an import would leave behind.
        CorruptError: as `checkout`; nothing was written.
        StorageFailedError, StorageFullError, StoreReadOnlyError: nothing is at `directory`.
    """
    _check_names(plan)
    with (
        _finished(directory, entropy, is_directory=True) as folder,
        Workers(settings.thread_count) as workers,
    ):
        files = open_files(blobs, plan.full, settings.limits)
        if not plan.deltas:
            meter = Meter(progress, "copy", plan.full_size_bytes)
            for file, stored in files:
                _copy(stored, folder / file.name, workers, meter)
            return
        for file, stored in files:
            if file.role == "asset":
                _write(folder / file.name, verified_chunks(stored))
        _write_weights(
            folder, plan, checkout(blobs, plan, settings, progress, codec=codec), settings, progress
        )


def write_safetensors_file(tensors: Mapping[str, HostTensor], path: Path, entropy: Entropy) -> None:
    """Write tensors into one safetensors file.

    After a crash: no file, or the whole file; as for `export_checkpoint`.

    Args:
        tensors: Name to bits; tied names are written as copies.
        path: Where to; not there yet. Its parent is there.
        entropy: Names the file while it is written.

    Raises:
        InputRefusedError: the file is there, or its parent is not.
        StorageFailedError, StorageFullError, StoreReadOnlyError: nothing is at `path`.
    """
    # Wide units first, so that every tensor is aligned.
    ordered = sorted(
        tensors.items(), key=lambda item: (-item[1].spec.dtype.unit_size_bytes, item[0])
    )
    header = encode_safetensors_header(
        [(name, tensor.spec.dtype, tensor.spec.shape) for name, tensor in ordered],
        _FORMAT_METADATA,
    )
    with _finished(path, entropy, is_directory=False) as temporary:
        _write(temporary, [header, *(tensor.units.data for _, tensor in ordered)])


def check_free_file(path: Path) -> None:
    """Check that a file can be written under a name, before what it takes to make one.

    Changes nothing.

    Raises:
        InputRefusedError: something is there, or its parent is not.
        StorageFailedError, StoreReadOnlyError: nobody can tell.
    """
    target = expanded(path)
    try:
        _check_free(target.absolute(), is_directory=False)
    except OSError as error:
        raise storage_error(error, f"write {target}") from error


def check_outside(blobs: BlobStore, path: Path) -> None:
    """Check that what is written at a path does not lie in the store. Changes nothing.

    A file in the store's folders would be taken for an object of it, or for a record.

    Raises:
        InputRefusedError: it is the store's directory or below it, whatever path leads there.
        StorageFailedError: nobody can tell.
    """
    try:
        stored = blobs.local_path(FORMAT_KEY)
    except BlobNotFoundError:
        return  # the store is gone, which is told by whatever reads it
    if stored is None:
        return
    target = expanded(path)
    try:
        root = stored.parent.stat()
        resolved = target.resolve()
        # By identity: a mount or another spelling may lead there too.
        is_inside = any(
            os.path.samestat(place.stat(), root)
            for place in (resolved, *resolved.parents)
            if place.exists()
        )
    except OSError as error:
        raise storage_error(error, f"look at {target}") from error
    if is_inside:
        raise InputRefusedError(
            f"{target} lies in the store {blobs.location}; nothing was written",
            do="Name a place outside the store's directory.",
            facts={"path": str(target)},
        )


@contextmanager
def _finished(target: Path, entropy: Entropy, *, is_directory: bool) -> Iterator[Path]:
    """A place beside the target to write to, which becomes the target when all went well."""
    target = expanded(target)
    try:
        target = target.absolute()
        # Of writers that were killed; also where this one is refused, since one that was killed
        # after it had given its file the name has left both.
        remove_abandoned_partials(target)
        _check_free(target, is_directory=is_directory)
        with partial_place(target, entropy, is_directory=is_directory) as temporary:
            yield temporary
            if is_directory:
                _name_directory(temporary, target)
            else:
                link_durably(temporary, target)
    except OSError as error:
        raise storage_error(error, f"write {target}") from error


def _check_names(plan: CheckoutPlan) -> None:
    """Whoever wrote the store may have named a file so that a loader runs it."""
    for file in plan.full_form.files:
        reason = why_never_taken(file.name)
        if reason is not None and (file.role != "weights" or is_other_weights(file.name)):
            raise InputRefusedError(
                f"version {plan.full.version} holds {file.name!r}, which is not handed out: "
                f"{reason}",
                do="Write the weights alone: `checkout_to_file`.",
                facts={"version": plan.full.version, "name": file.name},
            )


def _check_free(target: Path, *, is_directory: bool) -> None:
    """Refuse a target that is there, or whose parent is not."""
    if not target.parent.is_dir():
        raise InputRefusedError(
            f"{target.parent} is no directory",
            do="Create it first, or name another place.",
            facts={"path": str(target)},
        )
    is_empty_directory = (
        is_directory
        and target.is_dir()
        and not target.is_symlink()
        and next(target.iterdir(), None) is None
    )
    if os.path.lexists(target) and not is_empty_directory:
        raise InputRefusedError(
            f"{target} is there already; nothing was written",
            do="Name a place that does not exist yet"
            + (", or an empty directory." if is_directory else "."),
            facts={"path": str(target)},
        )


def _name_directory(temporary: Path, target: Path) -> None:
    """Give a directory its name; one that came there meanwhile stays, unless it is empty.

    After a crash: no directory or an empty one, or the whole one.
    """
    try:
        replace_durably(temporary, target)
    except StorageFailedError as error:
        if error.facts["errno"] not in _TAKEN_ERRNOS:
            raise
        raise InputRefusedError(
            f"{target} came to be while it was written; it was left as it is",
            do="Name a place that does not exist yet, or an empty directory.",
            facts={"path": str(target)},
        ) from error


def _write_weights(
    folder: Path,
    plan: CheckoutPlan,
    tensors: Mapping[str, HostTensor],
    settings: Settings,
    progress: Progress,
) -> None:
    schema = plan.schema
    arrays = [tensors[spec.name].units for spec in schema.tensors]

    def units_of(index: int, first_unit: int, unit_count: int) -> Units:
        return arrays[index][first_unit : first_unit + unit_count]

    plans = plan_anchor_files(schema, settings.anchor_file_size_bytes)
    meter = Meter(progress, "write", sum(each.size_bytes for each in plans))
    range_count = settings.limits.piece_element_count
    for each in plans:
        _write(folder / each.name, weight_chunks(each, schema, units_of, range_count, meter))
    if len(plans) > 1:
        _write(folder / INDEX_FILE_NAME, [hf_index_json(plans)])


def _write(path: Path, chunks: Iterable[Buffer]) -> None:
    # A file that stands alone is there already, empty and locked; nobody else knows its name.
    with path.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
    sync_path(path)


def _copy(stored: StoredFile, target: Path, workers: Workers, meter: Meter) -> None:
    """Copy a file and verify the copy; without a local file the bytes are verified in passing."""
    check_size(stored.blobs, stored.key, stored.size_bytes, stored.version)
    source = stored.blobs.local_path(stored.key)
    if source is None or not _copied_range(source, target):
        _write(target, verified_chunks(stored))
        meter.add(stored.size_bytes)
        return
    for size_bytes in workers.run(_checks(stored, target)):
        meter.add(size_bytes)
    sync_path(target)


def _copied_range(source: Path, target: Path) -> bool:
    """Copy inside the kernel, which shares blocks where the file system can."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with os.fdopen(os.open(source, flags), "rb") as opened, target.open("xb") as stream:
            while os.copy_file_range(opened.fileno(), stream.fileno(), _COPY_SIZE_BYTES):
                pass
    except OSError as error:
        if error.errno not in UNSUPPORTED_ERRNOS | {errno.ELOOP}:
            raise
        target.unlink(missing_ok=True)
        return False
    return True


def _checks(stored: StoredFile, target: Path) -> Iterator[Callable[[], int]]:
    buffers: Lender[bytearray] = Lender(lambda: bytearray(BLOCK_SIZE_BYTES))
    for block in range(block_count(stored.size_bytes)):
        yield partial(_check_block, stored, target, block, buffers)


def _check_block(stored: StoredFile, target: Path, block: int, buffers: Lender[bytearray]) -> int:
    start, _ = stored.block_bounds(block)
    with buffers.lend() as buffer, target.open("rb", buffering=0) as stream:
        stream.seek(start)
        size_bytes = _read_up_to(stream, memoryview(buffer))
        try:
            stored.blocks.check_block(block, memoryview(buffer)[:size_bytes])
        except CorruptObjectError as error:
            raise CorruptObjectError(
                f"version {stored.version}, {stored.key}: {error.message}",
                do=error.do,
                facts={**error.facts, "version": stored.version, "key": stored.key},
            ) from error
    return size_bytes


def _read_up_to(stream: io.RawIOBase, target: memoryview) -> int:
    """Fill a buffer until it is full or the file ends; one read may give less of either."""
    done = 0
    while done < target.nbytes and (count := stream.readinto(target[done:])):
        done += count
    return done
