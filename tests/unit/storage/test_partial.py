"""What is being written beside a target: locked by its writer, removed once that is dead."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from weightstore.errors import StorageFailedError
from weightstore.storage import machine
from weightstore.storage.partial import partial_place, remove_abandoned_partials
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.virtual_time import SeededEntropy

MARK = machine.boot_id().replace("-", "")[:8]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def abandoned(target: Path, *, is_directory: bool, digit: str = "a", mark: str = MARK) -> Path:
    """What a killed writer has left: nobody holds its lock."""
    path = target.with_name(f".{target.name}.{mark}{digit * 24}.partial")
    if is_directory:
        path.mkdir()
        (path / "half").write_bytes(b"half")
    else:
        path.write_bytes(b"half")
    return path


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_partial_lies_beside_its_target_and_gets_its_name(
    target: Path, *, is_directory: bool
) -> None:
    with partial_place(target, SeededEntropy(), is_directory=is_directory) as path:
        assert path.parent == target.parent
        assert path.name.startswith(".out.")
        assert path.name.endswith(".partial")
        assert path.is_dir() == is_directory
        path.rename(target)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("is_directory", [False, True])
@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_after_an_error_nothing_is_left(
    target: Path, error: type[BaseException], *, is_directory: bool
) -> None:
    def fail() -> None:
        with partial_place(target, SeededEntropy(), is_directory=is_directory) as path:
            if is_directory:
                (path / "file").touch()
            raise error

    with pytest.raises(error):
        fail()
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("is_directory", [False, True])
def test_the_dead_are_removed_and_the_living_are_not(target: Path, *, is_directory: bool) -> None:
    left = abandoned(target, is_directory=is_directory)
    with partial_place(target, SeededEntropy(), is_directory=is_directory) as path:
        remove_abandoned_partials(target)
        assert path.exists()
        assert not left.exists()
        path.rename(target)


def test_only_partials_of_this_target_and_this_kernel_are_removed(target: Path) -> None:
    others = [
        abandoned(target.with_name("out2"), is_directory=False),
        abandoned(target.with_name("out.x"), is_directory=True),
        abandoned(target, is_directory=False, mark="01234567" if MARK[0] != "0" else "f" * 8),
        target.with_name(".out.partial"),
        target.with_name(f".out.{MARK}{'a' * 23}.partial"),
        target.with_name(f".out.{MARK}{'a' * 24}.partial.bak"),
    ]
    for path in others[3:]:
        path.touch()
    left = abandoned(target, is_directory=False)
    remove_abandoned_partials(target)
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_a_link_is_not_followed(target: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    path = target.with_name(f".out.{MARK}{'b' * 24}.partial")
    path.symlink_to(tmp_path / "mine")
    left = abandoned(target, is_directory=True)
    (left / "link").symlink_to(tmp_path / "mine")
    remove_abandoned_partials(target)
    assert (tmp_path / "mine" / "file").exists()
    assert path.is_symlink()
    assert not left.exists()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    remove_abandoned_partials(tmp_path / "nowhere" / "out")


@pytest.mark.parametrize("is_directory", [False, True])
def test_a_partial_that_was_removed_before_it_was_locked_is_made_anew(
    target: Path, monkeypatch: pytest.MonkeyPatch, *, is_directory: bool
) -> None:
    lock = fcntl.flock
    swept: list[int] = []

    def late(file: int, flags: int) -> None:
        if not swept:
            swept.append(file)
            remove_abandoned_partials(target)
        lock(file, flags)

    monkeypatch.setattr(fcntl, "flock", late)
    with partial_place(target, SeededEntropy(), is_directory=is_directory) as path:
        monkeypatch.undo()
        assert path.exists()
        remove_abandoned_partials(target)
        assert [path] == list(target.parent.iterdir())
        path.rename(target)


def test_whoever_always_removes_what_is_made_is_told_of(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*_: int) -> None:
        raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", taken)
    with (
        pytest.raises(StorageFailedError, match="removed by others"),
        partial_place(target, SeededEntropy(), is_directory=False),
    ):
        pass


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("is_directory", [False, True])
def test_an_error_of_the_look_at_a_new_partial_leaves_nothing(
    target: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], *, is_directory: bool
) -> None:
    lstat, failed = Path.lstat, list[Path]()

    def fail_once(path: Path) -> os.stat_result:
        if path.name.endswith(".partial") and not failed:
            failed.append(path)
            raise error
        return lstat(path)

    monkeypatch.setattr(Path, "lstat", fail_once)
    with all_files_closed():
        with (
            pytest.raises(error),
            partial_place(target, SeededEntropy(), is_directory=is_directory),
        ):
            pass
        assert failed
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("is_directory", [False, True])
def test_without_locks_nobody_takes_a_partial_for_abandoned(
    target: Path, monkeypatch: pytest.MonkeyPatch, *, is_directory: bool
) -> None:
    def no_locks(*_: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with partial_place(target, SeededEntropy(), is_directory=is_directory) as path:
        # Even by one that has locks again.
        monkeypatch.undo()
        remove_abandoned_partials(target)
        assert list(target.parent.iterdir()) == [path]
        path.rename(target)


def test_a_kernel_without_an_id_removes_nothing(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = abandoned(target, is_directory=False)
    monkeypatch.setattr(machine, "boot_id", lambda: "")
    remove_abandoned_partials(target)
    assert left.exists()
    with partial_place(target, SeededEntropy(), is_directory=False) as path:
        assert path.name.startswith(".out.00000000")
        path.unlink()
