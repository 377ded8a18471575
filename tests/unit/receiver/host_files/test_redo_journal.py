"""The journal: what was written comes back, and anything else is a typed error."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from weightstore.codec.blocked import BlockedChange
from weightstore.codec.lanes import Units
from weightstore.errors import CorruptObjectError
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.host_files.redo_journal import (
    FilePart,
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


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    found = read_journal(tmp_path / "journal", Limits())
    assert found is not None
    assert found.head == head(parts())
    assert (found.head.base_ref.version, found.head.target_ref.version) == (1, 2)
    for each, other in zip(found.parts, parts(), strict=True):
        assert (each.file, each.base) == (other.file, other.base)
        assert np.array_equal(each.change.places(), other.change.places())
        assert np.array_equal(each.change.new_bits, other.change.new_bits)
        assert each.change.new_bits.dtype == other.change.new_bits.dtype
    assert read_journal(tmp_path / "nothing", Limits()) is None


def test_every_cut_and_every_changed_byte_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "journal")
    for size in range(0, len(data), 7):
        (tmp_path / "journal").write_bytes(data[:size])
        with pytest.raises(CorruptObjectError):
            read_journal(tmp_path / "journal", Limits())
    for at in range(0, len(data), 11):
        (tmp_path / "journal").write_bytes(data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :])
        with pytest.raises(CorruptObjectError):
            read_journal(tmp_path / "journal", Limits())


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
        read_journal(tmp_path / "journal", Limits())
    size = 8 + 8
    lying = data[:8] + (2**40).to_bytes(8, "little") + data[size:]
    (tmp_path / "journal").write_bytes(lying + hashlib.sha256(lying).digest())
    with pytest.raises(CorruptObjectError, match="head of"):
        read_journal(tmp_path / "journal", Limits())


def test_what_is_no_plain_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    written(tmp_path / "journal")
    (tmp_path / "link").symlink_to(tmp_path / "journal")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path):
        with pytest.raises(CorruptObjectError):
            read_journal(path, Limits())
