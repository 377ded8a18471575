"""What an import would take from a user's checkpoint: found, checked and listed; nothing copied."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weightstore.arguments import expanded
from weightstore.errors import InputRefusedError
from weightstore.format.anchor_plan import SINGLE_FILE_NAME
from weightstore.format.canonical import Json
from weightstore.format.manifest import is_plain_file_name
from weightstore.format.safetensors_header import (
    SIZE_FIELD_BYTES,
    SafetensorsHeader,
    StoredTensor,
    parse_safetensors_header,
    read_header_size,
)
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blob_keys import TEMPORARY_MARK

WEIGHTS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
OTHER_WEIGHTS_SUFFIXES = (
    ".bin",
    ".bin.index.json",
    ".ckpt",
    ".cloudpickle",
    ".dill",
    ".gguf",
    ".h5",
    ".hdf5",
    ".joblib",
    ".keras",
    ".msgpack",
    ".nemo",
    ".npy",
    ".npz",
    ".onnx",
    ".ot",
    ".p",
    ".pdiparams",
    ".pdopt",
    ".pdparams",
    ".pickle",
    ".pk",
    ".pkl",
    ".pt",
    ".pt2",
    ".ptc",
    ".pth",
    ".th",
)
"""Weights in forms that run code when loaded, or that are not canonical; never taken over.

Compared without regard to case, and below suffixes of compression and archives."""
_PACKING_SUFFIXES = (".bz2", ".gz", ".lz4", ".lzma", ".tar", ".tgz", ".xz", ".z", ".zip", ".zst")

_LISTED_COUNT = 50


@dataclass(frozen=True, slots=True)
class ImportFile:
    """A file that will be stored.

    Attributes:
        name: Under which it is stored.
        source: The user's file, symbolic links resolved.
        size_bytes: When it was looked at.
        role: As in the manifest.
        header: Of a weight file.
        head_sha256: Of a weight file: over its bytes up to the first tensor.
    """

    name: str
    source: Path
    size_bytes: int
    role: Literal["weights", "asset", "index"]
    header: SafetensorsHeader | None = None
    head_sha256: str | None = None

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """Tensors of a weight file, in file order; none of another file."""
        return () if self.header is None else self.header.tensors


@dataclass(frozen=True, slots=True, eq=False)
class ImportPlan:
    """What an import stores.

    Attributes:
        source: The file or directory that the user named.
        schema: Every tensor of every weight file, as it is stored there; no aliases.
        files: Sorted by name.
        index: Bytes of an index to be written, where several weight files have none.
        skipped: What stays behind: name and reason.
        size_bytes: Of all files.
    """

    source: Path
    schema: Schema
    files: tuple[ImportFile, ...]
    index: bytes | None
    skipped: tuple[tuple[str, str], ...]
    size_bytes: int

    def __str__(self) -> str:
        weights = sum(file.role == "weights" for file in self.files)
        return (
            f"{self.source}: {len(self.schema.tensors)} tensors in {weights} files, "
            f"{len(self.files) - weights} other files, {self.size_bytes} bytes, "
            f"{len(self.skipped)} skipped"
        )


def plan_import(path: Path, limits: Limits) -> ImportPlan:
    """Look at a safetensors file, or at a checkpoint directory with one or several.

    Reads names, sizes, headers and the index; no weights. Symbolic links are followed, as
    in a Hugging Face cache. Two names with equal bytes are two tensors.

    Args:
        path: A `.safetensors` file, or a directory.
        limits: Bounds headers and other files.

    Raises:
        InputRefusedError: not there, not readable, changed meanwhile, no safetensors in it, a
            damaged file, or an index that disagrees with the files; everything that disagrees
            is listed.
        NameRefusedError, DTypeRefusedError, TensorRefusedError, LimitError: a tensor that
            cannot be stored.
    """
    source = expanded(path)
    try:
        return _plan_source(source, limits)
    except OSError as error:
        raise InputRefusedError(
            f"{source} cannot be read, or was changed while it was read: {error}",
            do="Make it readable, and import when nothing writes to it.",
            facts={"path": str(source)},
        ) from error


def _plan_source(source: Path, limits: Limits) -> ImportPlan:
    if source.is_dir():
        return _plan_directory(source, limits)
    if not source.is_file():
        raise InputRefusedError(
            f"{source} is no file and no directory",
            do="Name a .safetensors file or a checkpoint directory.",
            facts={"path": str(source)},
        )
    file = _weight_file(source, SINGLE_FILE_NAME, limits)
    return _plan(source, [file], index=None, skipped=[])


def _plan_directory(source: Path, limits: Limits) -> ImportPlan:
    names = {entry.name: entry for entry in sorted(source.iterdir(), key=lambda one: one.name)}
    indices = [name for name in names if name.endswith(INDEX_SUFFIX)]
    weights = [name for name in names if name.endswith(WEIGHTS_SUFFIX)]
    if not weights:
        raise _no_weights(source, list(names))
    skipped: list[tuple[str, str]] = []
    weight_map = None
    if indices:
        weight_map = _read_index(source, names, indices, limits)
        listed = set(weight_map.values())
        skipped += [(name, "not named by the index") for name in weights if name not in listed]
        weights = [name for name in weights if name in listed]
    files = [_weight_file(names[name], name, limits) for name in weights]
    problems = list(_disagreements(files, weight_map))
    if problems:
        more = len(problems) - _LISTED_COUNT
        lines = "".join(f"\n  {line}" for line in problems[:_LISTED_COUNT])
        raise InputRefusedError(
            f"the files of {source} do not belong together:{lines}"
            + (f"\n  and {more} more" if more > 0 else ""),
            do="Complete the download, or save the checkpoint again; nothing was imported.",
            facts={"path": str(source), "problems": tuple(problems)},
        )
    index = None if weight_map is not None or len(files) == 1 else _index_of(files)
    rest = [
        entry for name, entry in names.items() if not name.endswith((WEIGHTS_SUFFIX, INDEX_SUFFIX))
    ]
    for entry in [*rest, *(names[name] for name in indices)]:
        found = _other_file(entry, limits)
        if isinstance(found, ImportFile):
            files.append(found)
        else:
            skipped.append((entry.name, found))
    return _plan(source, files, index=index, skipped=skipped)


def _plan(
    source: Path,
    files: Sequence[ImportFile],
    *,
    index: bytes | None,
    skipped: Sequence[tuple[str, str]],
) -> ImportPlan:
    specs = [tensor.spec for file in files for tensor in file.tensors]
    if not specs:
        raise InputRefusedError(
            f"{source} holds no tensor", do="Name another checkpoint.", facts={"path": str(source)}
        )
    return ImportPlan(
        source=source,
        schema=Schema.build(specs),
        files=tuple(sorted(files, key=lambda file: file.name)),
        index=index,
        skipped=tuple(sorted(skipped)),
        size_bytes=sum(file.size_bytes for file in files),
    )


def _weight_file(entry: Path, name: str, limits: Limits) -> ImportFile:
    if not _is_storable(name):
        raise InputRefusedError(
            f"weight file {name!r} has a name that cannot be stored",
            do="Rename it with printable ASCII characters (and in the index, if there is one).",
            facts={"path": str(entry)},
        )
    source, size_bytes = _regular_file(entry)
    with source.open("rb") as stream:
        first = stream.read(SIZE_FIELD_BYTES)
        needed = read_header_size(
            first,
            file_size_bytes=size_bytes,
            limits=limits,
            what=str(entry),
            error=InputRefusedError,
        )
        head = first + stream.read(needed - SIZE_FIELD_BYTES)
    header = parse_safetensors_header(
        head, file_size_bytes=size_bytes, limits=limits, what=str(entry), error=InputRefusedError
    )
    return ImportFile(name, source, size_bytes, "weights", header, hashlib.sha256(head).hexdigest())


def why_never_taken(name: str) -> str | None:
    """Why a file of this name is not taken over, and not handed out; None if it may be."""
    if is_other_weights(name):
        return "weights or state in another form than safetensors"
    if name.startswith("."):
        return "a hidden file"
    if not _is_storable(name):
        return "its name cannot be stored: use 1 to 255 printable ASCII characters without space"
    return None


def is_other_weights(name: str) -> bool:
    """Whether loaders would take a file of this name for weights that are no safetensors."""
    stem = name.lower().rstrip(". ")
    while stem.endswith(_PACKING_SUFFIXES):
        stem = stem.rpartition(".")[0]
    return stem.endswith(OTHER_WEIGHTS_SUFFIXES)


def _other_file(entry: Path, limits: Limits) -> ImportFile | str:
    """A file beside the weights, or why it is left behind."""
    name = entry.name
    reason = why_never_taken(name)
    if reason is not None:
        return reason
    try:
        source, size_bytes = _regular_file(entry)
    except InputRefusedError:
        return "a directory" if entry.is_dir() else "not a regular file"
    if size_bytes > limits.asset_size_bytes:
        return f"{size_bytes} bytes, more than the {limits.asset_size_bytes} allowed"
    role: Literal["asset", "index"] = "index" if name.endswith(INDEX_SUFFIX) else "asset"
    return ImportFile(name, source, size_bytes, role)


def _regular_file(entry: Path) -> tuple[Path, int]:
    """A file behind any links, and its size; a pipe is never opened, since that may hang."""
    try:
        source = entry.resolve(strict=True)
        found = source.stat()
    except (OSError, RuntimeError) as error:
        raise InputRefusedError(
            f"{entry} leads to no file: {error}",
            do="Complete the download, or remove the link.",
            facts={"path": str(entry)},
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise InputRefusedError(
            f"{entry} is no regular file", do="Name a regular file.", facts={"path": str(entry)}
        )
    return source, found.st_size


def _is_storable(name: str) -> bool:
    return is_plain_file_name(name) and not name.startswith(TEMPORARY_MARK)


def _read_index(
    source: Path, names: Mapping[str, Path], indices: Sequence[str], limits: Limits
) -> dict[str, str]:
    """Tensor name to file name, as the directory's index says."""
    try:
        if len(indices) > 1:
            raise ValueError(f"there are {len(indices)}: {', '.join(indices)}")  # noqa: TRY301 -- one way out
        weight_map = _parse_index(names[indices[0]], limits)
        if SINGLE_FILE_NAME in names and SINGLE_FILE_NAME not in weight_map.values():
            raise ValueError(f"loaders would take {SINGLE_FILE_NAME}, which it does not name")  # noqa: TRY301 -- one way out
    except (ValueError, RecursionError) as error:
        raise InputRefusedError(
            f"the index of {source} is not usable: {error}",
            do="Leave one index that names every weight file, or none.",
            facts={"path": str(source), "index": indices[0]},
        ) from error
    return weight_map


def _parse_index(entry: Path, limits: Limits) -> dict[str, str]:
    path, size_bytes = _regular_file(entry)
    if size_bytes > limits.anchor_index_size_bytes:
        raise ValueError(f"{size_bytes} bytes are above {limits.anchor_index_size_bytes}")
    value: Json = json.loads(path.read_bytes())
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict):
        raise ValueError("it has no weight_map")  # noqa: TRY004 -- becomes InputRefusedError
    named = {name: file for name, file in weight_map.items() if isinstance(file, str)}
    if len(named) != len(weight_map):
        raise ValueError("its weight_map does not map names to file names")
    return named


def _disagreements(
    files: Sequence[ImportFile], weight_map: Mapping[str, str] | None
) -> Iterator[str]:
    holders: dict[str, list[str]] = {}
    for file in files:
        for tensor in file.tensors:
            holders.setdefault(tensor.spec.name, []).append(file.name)
    for name, held in holders.items():
        if len(held) > 1:
            yield f"tensor {name!r} is in {' and in '.join(held)}"
        elif weight_map is not None and name not in weight_map:
            yield f"tensor {name!r} of {held[0]} is not in the index"
    yield from _unmet({file.name for file in files}, holders, weight_map or {})


def _unmet(
    present: AbstractSet[str], holders: Mapping[str, Sequence[str]], weight_map: Mapping[str, str]
) -> Iterator[str]:
    for name, file_name in weight_map.items():
        if file_name not in present:
            yield f"tensor {name!r} should be in {file_name!r}, which is not in the directory"
        elif file_name not in holders.get(name, ()):
            yield f"tensor {name!r} should be in {file_name}, which does not hold it"


def _index_of(files: Sequence[ImportFile]) -> bytes:
    held = [(tensor, file.name) for file in files for tensor in file.tensors]
    value = {
        "metadata": {"total_size": sum(tensor.size_bytes for tensor, _ in held)},
        "weight_map": {tensor.spec.name: name for tensor, name in held},
    }
    return json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True).encode("utf-8")


def _no_weights(source: Path, names: Sequence[str]) -> InputRefusedError:
    other = [name for name in names if is_other_weights(name)]
    if other:
        return InputRefusedError(
            f"{source} holds no .safetensors file, but {', '.join(other[:5])}: loading such "
            "files can run code, so they are never opened",
            do="Convert first, for instance with transformers: "
            "model.save_pretrained(DIR) writes safetensors.",
            facts={"path": str(source), "files": tuple(other)},
        )
    return InputRefusedError(
        f"{source} holds no .safetensors file",
        do="Name a .safetensors file or a checkpoint directory with one.",
        facts={"path": str(source)},
    )
