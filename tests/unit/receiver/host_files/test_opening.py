"""Taking hold of a directory: what is refused, and that nothing was made then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.errors import FolderBusyError, InputRefusedError
from weightstore.receiver.host_files.opening import open_host_files
from weightstore.store import WeightStore
from weightstore.testing.trainer_lab import lab_settings, small_weights


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    path = tmp_path / "store"
    with WeightStore.open(path, create=True, settings=lab_settings()) as opened:
        opened.put_step(1, small_weights())
        yield opened


@pytest.mark.parametrize("kind", ["directory", "empty", "file", "link", "dangling"])
def test_what_has_the_name_is_left_as_it_is(store: WeightStore, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "live"
    if kind in {"directory", "empty"}:
        path.mkdir()
    if kind == "directory":
        (path / "mine").write_text("mine")
    elif kind == "file":
        path.write_text("mine")
    elif kind in {"link", "dangling"}:
        path.symlink_to("store" if kind == "link" else "nowhere/else")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputRefusedError, match="left as it is"):
        store.host_files(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_places_that_cannot_be_are_refused(store: WeightStore, tmp_path: Path) -> None:
    inside = tmp_path / "store" / "anchors" / "live"
    for path in (inside, tmp_path / "no" / "live", tmp_path / "store"):
        with pytest.raises(InputRefusedError):
            store.host_files(path)
    assert not inside.exists()
    for wrong in (3, "", "a\0b"):
        with pytest.raises(InputRefusedError):
            store.host_files(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputRefusedError, match="settings"):
        store.host_files(tmp_path / "live", settings=3)  # type: ignore[arg-type]


def test_one_follows_at_a_time_and_the_other_learns_who(store: WeightStore, tmp_path: Path) -> None:
    with store.host_files(tmp_path / "live") as files:
        with pytest.raises(FolderBusyError, match=f"process {os.getpid()} on ") as caught:
            store.host_files(tmp_path / "live")
        assert str(os.getpid()) in str(caught.value.facts["holder"])
        files.refit()
        assert files.verify().version == 1
    with store.host_files(tmp_path / "live") as again:
        assert again.version == 1


def test_the_function_is_what_the_store_calls() -> None:
    assert open_host_files.__module__ == "weightstore.receiver.host_files.opening"
