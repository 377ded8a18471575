"""What a followed directory says of itself: which version its files hold, and which files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field

from weightstore.errors import CorruptObjectError, StorageFailedError
from weightstore.format.canonical import CanonicalModel, decode_model, encode_model
from weightstore.history.delta_path import VersionRef
from weightstore.ids import HEX128_PATTERN, SHA256_PATTERN, Sha256, StoreId, VersionId

MARK_NAME = "state"
FolderName = Literal["data-0", "data-1"]
FOLDER_NAMES: tuple[FolderName, FolderName] = ("data-0", "data-1")
"""A version that is written whole goes to the one that is not in use."""

_READ_SIZE_BYTES = 1 << 20


class FileMark(CanonicalModel):
    """One file, and the part of it that never changes.

    Attributes:
        name: In its folder.
        size_bytes: Of the file.
        fixed_size_bytes: So many bytes from its start stay as they are: the header of a file
            with weights, all of any other.
        fixed_sha256: Of those bytes.
        has_weights: Whether tensors follow.
    """

    name: str = Field(min_length=1, max_length=255, pattern=r"^[^/\x00]+$")
    size_bytes: int = Field(ge=0)
    fixed_size_bytes: int = Field(ge=0)
    fixed_sha256: Sha256 = Field(pattern=SHA256_PATTERN)
    has_weights: bool


class Mark(CanonicalModel):
    """What the link leads to while it is there.

    Attributes:
        mark_format: Of this form.
        change_id: Another one after each change, so that a load that spans one can tell.
        store_id: The store that the version is of.
        version: Its number.
        digest: Its state digest.
        schema_id: Of its tensors.
        folder: Which of `FOLDER_NAMES` holds it.
        files: By name; there are no others.
    """

    mark_format: Literal[1] = 1
    change_id: str = Field(pattern=HEX128_PATTERN)
    store_id: StoreId
    version: VersionId = Field(ge=1)
    digest: Sha256 = Field(pattern=SHA256_PATTERN)
    schema_id: Sha256 = Field(pattern=SHA256_PATTERN)
    folder: FolderName
    files: tuple[FileMark, ...]

    @property
    def ref(self) -> VersionRef:
        """The version."""
        return VersionRef(self.version, self.digest)

    def at(self, ref: VersionRef, change_id: str) -> Mark:
        """The same files with the tensors of another version."""
        changed = {"version": ref.version, "digest": ref.digest, "change_id": change_id}
        return self.model_copy(update=changed)

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return encode_model(self)


def parse_mark(data: bytes) -> Mark:
    """Parse what `Mark.to_bytes` gave.

    Raises:
        CorruptObjectError: it is empty, torn, or anything else.
    """
    mark = decode_model(Mark, data, what="the state of the directory")
    if any(each.name in {".", ".."} for each in mark.files):
        raise CorruptObjectError("the state of the directory names something outside")
    return mark


def mark_file(path: Path, fixed_size_bytes: int | None) -> FileMark:
    """Describe a file as it is now.

    Args:
        path: The file.
        fixed_size_bytes: The size of its header; None for a file without weights.

    Raises:
        StorageFailedError: it cannot be read.
    """
    try:
        size_bytes = path.stat().st_size
        fixed = size_bytes if fixed_size_bytes is None else fixed_size_bytes
        sha256 = _sha256_of(path, fixed)
    except OSError as error:
        raise StorageFailedError(
            f"cannot read {path}: {error.strerror}", do="Mend the storage and repeat."
        ) from error
    return FileMark(
        name=path.name,
        size_bytes=size_bytes,
        fixed_size_bytes=fixed,
        fixed_sha256=sha256,
        has_weights=fixed_size_bytes is not None,
    )


def foreign_change(folder: Path, mark: Mark, *, sizes_only: bool = False) -> str:
    """What somebody else has done to the files of a folder, the tensors' bits apart.

    Args:
        folder: Where they are.
        mark: What they should be.
        sizes_only: Do not read them.

    Returns:
        In words; empty where nothing was found.
    """
    try:
        # What a link leads to is somebody else's, whatever is in it.
        found = {} if folder.is_symlink() else {path.name: path for path in folder.iterdir()}
        expected = {each.name: each for each in mark.files}
        if found.keys() != expected.keys():
            names = sorted(found.keys() ^ expected.keys())
            return f"{len(names)} files, the first {names[0]!r}, came or went"
        for name, each in expected.items():
            path = found[name]
            if path.is_symlink() or not path.is_file():
                return f"{name!r} is no plain file"
            if path.stat().st_size != each.size_bytes:
                return f"{name!r} has another size"
            if not sizes_only and _sha256_of(path, each.fixed_size_bytes) != each.fixed_sha256:
                return f"{name!r} has another {'header' if each.has_weights else 'content'}"
    except OSError as error:
        return f"the files cannot be read: {error.strerror}"
    return ""


def _sha256_of(path: Path, size_bytes: int) -> Sha256:
    whole = hashlib.sha256()
    with path.open("rb") as stream:
        while size_bytes and (part := stream.read(min(size_bytes, _READ_SIZE_BYTES))):
            whole.update(part)
            size_bytes -= len(part)
    return Sha256(whole.hexdigest())
