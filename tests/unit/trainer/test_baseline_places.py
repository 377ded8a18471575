"""Where baselines live: memory, or a file that the next process can prove and use."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import (
    InputRefusedError,
    StorageFailedError,
    StorageFullError,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.storage.durable import SYSCALLS
from weightstore.testing.open_files import all_files_closed
from weightstore.trainer.baseline import plan_layout
from weightstore.trainer.baseline_places import FilePlace, MemoryPlace

LAYOUT = plan_layout(Schema.build([TensorSpec("w", DType.BF16, (100,))]))
OTHER = plan_layout(Schema.build([TensorSpec("v", DType.BF16, (100,))]))


def test_memory_forgets() -> None:
    place = MemoryPlace()
    place.create(LAYOUT).units(0)[:] = 3
    place.adopt()
    assert place.load(LAYOUT) is None
    place.close()


def test_a_file_is_found_again_after_it_was_adopted(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "baseline")
    assert place.load(LAYOUT) is None
    baseline = place.create(LAYOUT)
    baseline.units(0)[:] = 3
    assert place.load(LAYOUT) is None
    place.adopt()
    baseline.units(0)[5] = 9
    place.close()
    again = FilePlace(tmp_path / "baseline")
    found = again.load(LAYOUT)
    assert found is not None
    assert found.units(0).tolist() == [*[3] * 5, 9, *[3] * 94]
    assert again.load(OTHER) is None
    again.close()


def test_a_new_one_beside_it_leaves_the_present_one_alone(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "baseline")
    old = place.create(LAYOUT)
    old.units(0)[:] = 3
    place.adopt()
    for _ in range(2):
        place.create(OTHER).units(0)[:] = 4
    assert bool(np.all(old.units(0) == 3))
    assert place.load(LAYOUT) is not None
    place.adopt()
    assert place.load(LAYOUT) is None
    found = place.load(OTHER)
    assert found is not None
    assert bool(np.all(found.units(0) == 4))
    place.close()
    place.close()


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, StorageFullError), (errno.EIO, StorageFailedError)]
)
def test_a_full_disk_is_found_before_anything_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, "refused")

    place = FilePlace(tmp_path / "baseline")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(expected, match="baseline"):
        place.create(LAYOUT)
    assert not list(tmp_path.glob("*.new"))
    place.close()


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="cannot be made"):
        FilePlace(tmp_path / "no such directory" / "baseline")


def test_a_directory_is_no_baseline_file(tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="directory"):
        FilePlace(tmp_path)
    assert not tmp_path.with_name(tmp_path.name + ".lock").exists()


def test_where_no_file_is_without_a_name_a_baseline_is_begun_under_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "no such files here")

    monkeypatch.setattr(
        "weightstore.trainer.baseline_places.SYSCALLS", replace(SYSCALLS, open=lacking)
    )
    place = FilePlace(tmp_path / "baseline")
    place.create(LAYOUT)
    place.adopt()
    assert place.load(LAYOUT) is not None
    place.close()


def test_what_the_system_refuses_is_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "refused")

    place = FilePlace(tmp_path / "baseline")
    for owner, name in ((os, "open"), (Path, "unlink"), (os, "posix_fallocate")):
        monkeypatch.setattr(owner, name, refuse)
        with pytest.raises((StorageFailedError, InputRefusedError), match=r"baseline\.new"):
            place.create(LAYOUT)
        monkeypatch.undo()
    place.create(LAYOUT)
    place.adopt()
    monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(StorageFailedError, match="baseline"):
        place.load(LAYOUT)
    place.close()


def _linked(path: Path) -> Path:
    other = path.with_name("other")
    other.hardlink_to(path)
    return other


def _through_linked_folder(path: Path) -> Path:
    folder = path.parent / "folder"
    folder.symlink_to(path.parent)
    return folder / path.name


@pytest.mark.parametrize("alias", [_linked, _through_linked_folder])
def test_a_second_name_of_a_held_file_is_in_use(
    tmp_path: Path, alias: Callable[[Path], Path]
) -> None:
    path = tmp_path / "baseline"
    place = FilePlace(path)
    kept = place.create(LAYOUT)
    place.adopt()
    other = alias(path)
    (tmp_path / "baseline.lock").unlink()
    with pytest.raises(InputRefusedError, match=f"{other} is in use"):
        FilePlace(other)
    place.close()
    again = FilePlace(other)
    assert again.load(LAYOUT) is not None
    again.close()
    assert kept.layout is LAYOUT


def test_a_replaced_file_stays_locked_for_as_long_as_it_is_mapped(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "baseline")
    old = place.create(LAYOUT)
    place.adopt()
    other = _linked(tmp_path / "baseline")
    place.create(OTHER)
    place.adopt()
    with pytest.raises(InputRefusedError, match="in use"):
        FilePlace(other)
    assert old.layout is LAYOUT
    del old
    FilePlace(other).close()
    place.close()


@pytest.mark.parametrize("suffix", ["", ".new"])
@pytest.mark.parametrize("kind", ["data", "zeros", "fifo", "link", "directory"])
def test_what_is_no_baseline_is_refused_and_left_alone(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    path = tmp_path / f"baseline{suffix}"
    target = tmp_path / "target"
    target.write_bytes(b"")
    make: dict[str, Callable[[], object]] = {
        "data": lambda: path.write_bytes(b"my only copy"),
        "zeros": lambda: path.write_bytes(bytes(100)),
        "fifo": lambda: os.mkfifo(path),
        "link": lambda: path.symlink_to(target),
        "directory": path.mkdir,
    }
    make[kind]()
    before = {one: one.lstat() for one in tmp_path.iterdir()}
    with pytest.raises(InputRefusedError, match=re.escape(f"{path} is ")):
        FilePlace(tmp_path / "baseline")
    after = {one: one.lstat() for one in tmp_path.iterdir()}
    assert {one: (s.st_ino, s.st_mtime_ns) for one, s in after.items()} == {
        one: (s.st_ino, s.st_mtime_ns) for one, s in before.items()
    }


def test_a_file_that_appears_later_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "baseline"
    place = FilePlace(path)
    place.create(LAYOUT)
    path.write_bytes(b"my only copy")
    with pytest.raises(InputRefusedError, match="neither empty nor a baseline"):
        place.adopt()
    path.with_name("baseline.new").write_bytes(b"another")
    with pytest.raises(InputRefusedError, match="neither empty nor a baseline"):
        place.create(LAYOUT)
    assert path.read_bytes() == b"my only copy"
    place.close()


def test_another_file_under_the_name_of_the_made_one_is_not_adopted(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "baseline")
    place.create(LAYOUT)
    (tmp_path / "baseline.new").unlink()
    (tmp_path / "baseline.new").write_bytes(b"")
    with pytest.raises(InputRefusedError, match="was replaced"):
        place.adopt()
    assert not (tmp_path / "baseline").exists()
    place.close()


def test_an_empty_file_is_replaced(tmp_path: Path) -> None:
    for name in ("baseline", "baseline.new"):
        (tmp_path / name).write_bytes(b"")
    place = FilePlace(tmp_path / "baseline")
    assert place.load(LAYOUT) is None
    place.create(LAYOUT)
    place.adopt()
    assert place.load(LAYOUT) is not None
    place.close()


def test_locks_that_cannot_be_let_go_are_closed_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_lock(*_: int) -> None:
        raise OSError(errno.EIO, "it failed")

    with all_files_closed():
        place = FilePlace(tmp_path / "baseline")
        place.create(LAYOUT)
        place.adopt()
        place.create(LAYOUT)
        with monkeypatch.context() as failed:
            failed.setattr(fcntl, "flock", failing_lock)
            with pytest.raises(OSError, match="it failed"):
                place.close()
    place.close()
    FilePlace(tmp_path / "baseline").close()


def test_an_interrupted_close_closes_no_file_of_anybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = os.close
    place = FilePlace(tmp_path / "baseline")
    taken: list[int] = []

    def interrupted(file: int) -> None:
        close(file)
        taken.append(os.open(tmp_path / "other", os.O_CREAT | os.O_WRONLY))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.close()
    monkeypatch.undo()
    place.close()
    assert os.write(taken[0], b"still open") == len(b"still open")
    close(taken[0])
    FilePlace(tmp_path / "baseline").close()
