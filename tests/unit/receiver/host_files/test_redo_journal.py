"""The journal: what was written comes back, and anything else is a typed error."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.errors import CorruptObjectError
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.host_files.redo_journal import (
    FilePart,
    Journal,
    JournalHead,
    journal_chunks,
    read_journal,
)
from weightstore.settings import Limits


def parts() -> tuple[FilePart, ...]:
    found = []
    for base, dtype in ((100, np.uint16), (3, np.uint8), (8, np.uint64), (16, np.uint32)):
        places = np.array([0, 5, 70_000, 70_001, 200_000], np.int64)
        bits: Units = np.arange(5).astype(dtype)
        found.append(FilePart("f", base, BlockedChange.of(places, bits, ~bits)))
    nothing = np.empty(0, np.uint16)
    found.append(FilePart("g", 0, BlockedChange.of(np.empty(0, np.int64), nothing, nothing)))
    return tuple(found)


def head(given: tuple[FilePart, ...]) -> JournalHead:
    return JournalHead(
        base=VersionId(1),
        base_digest=Sha256("0" * 64),
        target=VersionId(2),
        target_digest=Sha256("1" * 64),
        folder="data-0",
        parts=tuple(each.head for each in given),
    )


def written(path: Path) -> bytes:
    path.write_bytes(b"".join(bytes(chunk) for chunk in journal_chunks(head(parts()), parts())))
    return path.read_bytes()


def read(path: Path) -> Journal:
    with path.open("rb") as stream:
        return read_journal(stream, Limits())


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    found = read(tmp_path / "journal")
    assert found.head == head(parts())
    assert (found.head.base_ref.version, found.head.target_ref.version) == (1, 2)
    for each, other in zip(found.parts, parts(), strict=True):
        assert (each.file, each.base) == (other.file, other.base)
        assert np.array_equal(each.change.places(), other.change.places())
        assert np.array_equal(each.change.new_bits, other.change.new_bits)
        assert each.change.new_bits.dtype == other.change.new_bits.dtype


def test_every_cut_and_every_changed_byte_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "journal")
    for size in range(0, len(data), 7):
        (tmp_path / "journal").write_bytes(data[:size])
        with pytest.raises(CorruptObjectError):
            read(tmp_path / "journal")
    for at in range(0, len(data), 11):
        (tmp_path / "journal").write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
        with pytest.raises(CorruptObjectError):
            read(tmp_path / "journal")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"count":5', b'"count":6'),
        (b'"window_count":3', b'"window_count":2'),
        (b'"base":100', b'"base":-10'),
        (b'"width_bytes":8', b'"width_bytes":3'),
        (b'"folder"', b'"fooder"'),
    ],
)
def test_a_journal_that_vouches_for_itself_but_lies_is_refused(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    data = written(tmp_path / "journal")[:-32].replace(old, new, 1)
    (tmp_path / "journal").write_bytes(data + hashlib.sha256(data).digest())
    with pytest.raises(CorruptObjectError):
        read(tmp_path / "journal")
    size = 8 + 8
    lying = data[:8] + (2**40).to_bytes(8, "little") + data[size:]
    (tmp_path / "journal").write_bytes(lying + hashlib.sha256(lying).digest())
    with pytest.raises(CorruptObjectError, match="head of"):
        read(tmp_path / "journal")


def test_a_file_of_another_size_than_its_head_says_is_refused_before_it_is_read(
    tmp_path: Path,
) -> None:
    whole = written(tmp_path / "journal")
    for size_bytes in (1 << 34, len(whole) + 8, len(whole) - 8):
        # Sparse: it takes no disk, and half a minute to hash.
        with (tmp_path / "journal").open("r+b") as file:
            file.truncate(size_bytes)
        with pytest.raises(CorruptObjectError, match=f"{size_bytes} bytes, its head says"):
            read(tmp_path / "journal")


@pytest.mark.parametrize("field", ["base_digest", "target_digest"])
def test_a_digest_of_another_form_is_refused(tmp_path: Path, field: str) -> None:
    lying = head(parts()).model_copy(update={field: "G" * 64})
    data = b"".join(bytes(chunk) for chunk in journal_chunks(lying, parts()))
    (tmp_path / "journal").write_bytes(data)
    with pytest.raises(CorruptObjectError):
        read(tmp_path / "journal")
