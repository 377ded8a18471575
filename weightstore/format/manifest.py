"""The manifest of a version: which objects make it up, each by key, size and hash.

A manifest is hostile until `decode_manifest` has compared it with its record: its bytes by
hash, its fields one by one, and every key in it with the one key that may stand there.
"""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import MAX_INTEGER, CanonicalModel, decode_model
from weightstore.format.keys import (
    MANIFESTS_PREFIX,
    PACKS_PREFIX,
    anchor_key,
    digest_table_key,
    parse_trainer_key,
    trainer_anchor_id,
)
from weightstore.format.objects import KEY_LENGTH_MAX, ObjectRef
from weightstore.format.records import Base, VersionRecord
from weightstore.ids import (
    ANCHOR_ID_PATTERN,
    HEX128_PATTERN,
    NAME_LENGTH_MAX,
    RUN_PATTERN,
    SHA256_PATTERN,
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Step,
    VersionId,
)
from weightstore.settings import Limits

MANIFEST_FORMAT = 1
BLOCKS_NAME = "weightstore.blocks"
"""Name of an anchor's sidecar of block hashes, beside its files."""

_FILE_NAME = re.compile(r"[!-.0-\[\]-~]{1,255}")

_Int = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
_Positive = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
_Sha = Annotated[Sha256, Field(pattern=SHA256_PATTERN)]
_Key = Annotated[str, Field(min_length=1, max_length=KEY_LENGTH_MAX)]


def is_plain_file_name(name: str) -> bool:
    """Whether a name may stand in an anchor.

    It is 1 to 255 printable ASCII characters without slash and backslash, and neither `.`,
    `..` nor the sidecar's name: as a key or below any directory it leads nowhere else.
    """
    return bool(_FILE_NAME.fullmatch(name)) and name not in {".", "..", BLOCKS_NAME}


class PackRef(CanonicalModel):
    """A pack of a delta.

    Attributes:
        key: Under `packs/`, of this version's own attempt.
        size_bytes: Of the whole pack.
        sha256: Over the whole pack.
        rank: Who wrote it.
        piece_count: Pieces in it.
    """

    key: _Key
    size_bytes: _Int
    sha256: _Sha
    rank: _Int
    piece_count: _Positive


class DeltaForm(CanonicalModel):
    """A version as changes of its base.

    Attributes:
        packs: In any order; they change disjoint units. None when nothing changed.
        changed_count: Changed units in all packs.
        piece_count: Pieces in all packs.
        size_bytes: Bytes of all packs.
    """

    packs: tuple[PackRef, ...]
    changed_count: _Int
    piece_count: _Int
    size_bytes: _Int

    @model_validator(mode="after")
    def _check(self) -> Self:
        _demand(
            self.piece_count == sum(pack.piece_count for pack in self.packs)
            and self.size_bytes == sum(pack.size_bytes for pack in self.packs),
            "the sums over the packs are others",
        )
        _demand(
            self.changed_count >= self.piece_count and bool(self.changed_count) == bool(self.packs),
            "the changed count does not fit the packs",
        )
        keys = {pack.key for pack in self.packs}
        _demand(len(keys) == len(self.packs), "a pack is named twice")
        return self


class AnchorFile(CanonicalModel):
    """One file of a full form.

    Attributes:
        name: See `is_plain_file_name`.
        size_bytes: Of the file.
        role: `weights` is a safetensors file, `index` names the file of each tensor,
            `asset` is everything else (configuration, tokenizer).
    """

    name: str
    size_bytes: _Int
    role: Literal["weights", "asset", "index"]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _demand(is_plain_file_name(self.name), f"{self.name!r} is no plain file name")
        return self


class FullForm(CanonicalModel):
    """A version as a checkpoint directory.

    Attributes:
        anchor_id: The files are `anchors/<anchor_id>/<name>`.
        files: Sorted by name.
        blocks: The sidecar with the hashes of all files' blocks.
        size_bytes: Of all files, without the sidecar.
    """

    anchor_id: Annotated[str, Field(pattern=ANCHOR_ID_PATTERN)]
    files: tuple[AnchorFile, ...]
    blocks: ObjectRef
    size_bytes: _Int

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [file.name for file in self.files]
        _demand(all(a < b for a, b in pairwise(names)), "the files are not sorted by name")
        _demand(any(file.role == "weights" for file in self.files), "no file has weights")
        _demand(
            self.size_bytes == sum(file.size_bytes for file in self.files),
            "the sum over the files is another",
        )
        _demand(
            self.blocks.key == anchor_key(self.anchor_id, BLOCKS_NAME),
            "the block hashes are not beside the files",
        )
        return self


class IndexRange(CanonicalModel):
    """Tensors of the schema by index, from `first` to `last`, both included."""

    first: _Int
    last: _Int


class Manifest(CanonicalModel):
    """What a version consists of.

    Attributes:
        format: Of this manifest.
        version: As in the record, like run to step, base and digest.
        run: The trainer's run.
        epoch: Of the claim under which it was made.
        session: Of the launch.
        commit_id: Of the record that names this manifest.
        attempt: Which try at the version.
        step: The trainer's own count.
        base: The version that `delta` starts from.
        schema_ref: The schema; a version with an old schema names the old object.
        schema_id: SHA-256 of the schema.
        digests: The table of per-tensor digest lanes, beside this manifest.
        digest: State digest of the version.
        delta: The version as changes of its base, if it has this form.
        full: The version as a checkpoint, if it has this form. It has at least one.
        chain_count: Deltas from the nearest full form to this version; 0 with `full`.
        chain_size_bytes: Bytes of their packs; 0 with `full`.
        unmentioned: Tensors that the put did not give, taken over unchanged; sorted.
    """

    format: Annotated[int, Field(ge=MANIFEST_FORMAT, le=MANIFEST_FORMAT)] = MANIFEST_FORMAT
    version: Annotated[VersionId, Field(ge=1, le=MAX_INTEGER)]
    run: Annotated[RunId, Field(pattern=RUN_PATTERN, max_length=NAME_LENGTH_MAX)]
    epoch: Annotated[Epoch, Field(ge=0, le=MAX_INTEGER)]
    session: Annotated[SessionId, Field(pattern=HEX128_PATTERN)]
    commit_id: Annotated[CommitId, Field(pattern=HEX128_PATTERN)]
    attempt: Annotated[Attempt, Field(ge=1, le=MAX_INTEGER)]
    step: Annotated[Step, Field(ge=0, le=MAX_INTEGER)]
    base: Base | None
    schema_ref: ObjectRef
    schema_id: _Sha
    digests: ObjectRef
    digest: _Sha
    delta: DeltaForm | None
    full: FullForm | None
    chain_count: _Int
    chain_size_bytes: _Int
    unmentioned: tuple[IndexRange, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        _demand(self.delta is not None or self.full is not None, "the version has no form")
        _demand(self.base is not None or self.delta is None, "the delta has no base")
        _demand(
            self.base is None or self.base.version < self.version, "the base is no older version"
        )
        self._check_chain()
        self._check_unmentioned()
        self._check_keys()
        return self

    def _check_chain(self) -> None:
        if self.full is not None:
            is_right = self.chain_count == 0 and self.chain_size_bytes == 0
        else:
            own_bytes = 0 if self.delta is None else self.delta.size_bytes
            is_right = (
                1 <= self.chain_count <= Limits().chain_count and self.chain_size_bytes >= own_bytes
            )
        _demand(is_right, "the length or size of the chain is impossible")

    def _check_unmentioned(self) -> None:
        _demand(self.base is not None or not self.unmentioned, "unmentioned tensors have no base")
        _demand(
            all(part.first <= part.last for part in self.unmentioned)
            and all(a.last < b.first for a, b in pairwise(self.unmentioned)),
            "the unmentioned tensors are not sorted",
        )

    def _check_keys(self) -> None:
        own_table = digest_table_key(self.run, self.epoch, self.version, self.commit_id)
        _demand(self.digests.key == own_table, "the digest table is not beside the manifest")
        schema = parse_trainer_key(self.schema_ref.key)
        _demand(
            schema is not None
            and self.schema_ref.key.startswith(MANIFESTS_PREFIX)
            and self.schema_ref.key.endswith(".schema")
            and schema.version is not None
            and schema.version <= self.version,
            f"{self.schema_ref.key!r} is no schema of this version or one before",
        )
        own_anchor = trainer_anchor_id(self.run, self.epoch, self.version, self.attempt)
        _demand(
            self.full is None or self.full.anchor_id == own_anchor,
            "the full form is not this attempt's own",
        )
        own_packs = f"{PACKS_PREFIX}{self.run}-{self.epoch}/{self.version}-{self.attempt}-"
        for pack in () if self.delta is None else self.delta.packs:
            _demand(
                pack.key.startswith(f"{own_packs}{pack.rank}-")
                and parse_trainer_key(pack.key) is not None,
                f"{pack.key!r} is no pack of this attempt and rank",
            )


def decode_manifest(data: bytes, record: VersionRecord) -> Manifest:
    """Parse the manifest that a version record names.

    Args:
        data: Stored bytes.
        record: A valid record of the log.

    Raises:
        CorruptObjectError: size, hash, form or any field is not as the record says.
    """
    what = f"the manifest of version {record.version}"
    if len(data) != record.manifest_size_bytes:
        raise CorruptObjectError(
            f"{what} has {len(data)} bytes, expected {record.manifest_size_bytes}",
            facts={"version": record.version},
        )
    found_sha256 = hashlib.sha256(data).hexdigest()
    if found_sha256 != record.manifest_sha256:
        raise CorruptObjectError(
            f"{what} has SHA-256 {found_sha256}, expected {record.manifest_sha256}",
            facts={
                "version": record.version,
                "expected": record.manifest_sha256,
                "found": found_sha256,
            },
        )
    manifest = decode_model(Manifest, data, what=what)
    for field in _SHARED_FIELDS:
        expected, found = getattr(record, field), getattr(manifest, field)
        if expected != found:
            raise CorruptObjectError(
                f"{what} says {field} {found}, its record says {expected}",
                facts={"version": record.version, "field": field},
            )
    return manifest


_SHARED_FIELDS = (
    "version",
    "run",
    "epoch",
    "session",
    "commit_id",
    "attempt",
    "step",
    "base",
    "schema_id",
    "digest",
)


def _demand(is_right: bool, otherwise: str) -> None:  # noqa: FBT001 -- reads as a sentence
    if not is_right:
        raise ValueError(otherwise)
