"""Opening a place: what is a store, what becomes one, and what is refused and left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.errors import (
    CorruptLogError,
    InputRefusedError,
    NotAStoreError,
    StoreClosedError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.settings import Settings
from weightstore.store import WeightStore
from weightstore.store.opening import open_local
from weightstore.testing.store_lab import tree


def test_a_store_is_made_in_a_new_directory_and_opened_again(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "store"
    with WeightStore.open(place, create=True) as made:
        store_id = made.store_id
    before = tree(place)
    with WeightStore.open(str(place)) as found, WeightStore.open(place, create=True) as again:
        assert found.store_id == again.store_id == store_id
        assert found.location == str(place)
        assert found.state().record_count == 1
    assert tree(place) == before


def test_an_empty_directory_becomes_a_store(tmp_path: Path) -> None:
    WeightStore.open(tmp_path, create=True).close()
    blobs, store_id = open_local(
        tmp_path, create=False, settings=Settings(), clock=SystemClock(), entropy=SystemEntropy()
    )
    assert blobs.location == str(tmp_path)
    assert len(store_id) == 32


def test_two_stores_have_two_identities(tmp_path: Path) -> None:
    with (
        WeightStore.open(tmp_path / "a", create=True) as left,
        WeightStore.open(tmp_path / "b", create=True) as right,
    ):
        assert left.store_id != right.store_id


def test_a_directory_with_other_things_is_never_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputRefusedError, match=r"config\.json") as caught:
        WeightStore.open(tmp_path, create=True)
    assert "empty place" in caught.value.do
    assert tree(tmp_path) == {"config.json": b"{}"}


def test_a_directory_of_links_and_odd_names_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "model dir \u00e9").symlink_to(tmp_path)
    with pytest.raises(InputRefusedError, match="not empty"):
        WeightStore.open(tmp_path / "store", create=True)
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["model dir \u00e9"]


@pytest.mark.parametrize("place", ["s3://bucket/policy", "file:///tmp/policy", "hf://org/model"])
def test_a_url_is_refused(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputRefusedError, match="object storage is not there yet"):
        WeightStore.open(place, create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_place_without_a_store_is_no_store_and_stays_as_it_was(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(NotAStoreError) as caught:
            WeightStore.open(place)
        assert caught.value.do
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [False, True])
def test_a_file_in_the_way_is_refused(tmp_path: Path, create: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    with pytest.raises(WeightStoreError) as caught:
        WeightStore.open(file, create=create)
    assert isinstance(caught.value, InputRefusedError | NotAStoreError)
    assert file.read_bytes() == b"weights"


@pytest.mark.parametrize("create", [False, True])
def test_a_store_of_a_newer_format_asks_for_an_upgrade(tmp_path: Path, create: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    WeightStore.open(tmp_path, create=True).close()
    document = json.loads((tmp_path / "FORMAT").read_bytes())
    document["format"] = 2
    (tmp_path / "FORMAT").chmod(0o644)
    (tmp_path / "FORMAT").write_bytes(
        json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    )
    before = tree(tmp_path)
    with pytest.raises(UpgradeRequiredError):
        WeightStore.open(tmp_path, create=create)
    assert tree(tmp_path) == before


def test_a_store_whose_making_was_cut_is_finished_by_create(tmp_path: Path) -> None:
    WeightStore.open(tmp_path, create=True).close()
    whole = (tmp_path / "FORMAT").read_bytes()
    for path in [*(tmp_path / "log").rglob("*"), tmp_path / "head"]:
        if path.is_file():
            path.unlink()
    with pytest.raises(NotAStoreError, match="cut"):
        WeightStore.open(tmp_path)
    with WeightStore.open(tmp_path, create=True) as opened:
        assert opened.store_id in whole.decode()
        assert opened.state().record_count == 1


def test_a_log_of_another_store_is_noticed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        WeightStore.open(tmp_path / name, create=True).close()
    (tmp_path / "a" / "FORMAT").unlink()
    (tmp_path / "b" / "FORMAT").rename(tmp_path / "a" / "FORMAT")
    with pytest.raises(CorruptLogError, match="init record"):
        WeightStore.open(tmp_path / "a")


def test_a_closed_handle_refuses_every_call(tmp_path: Path) -> None:
    store = WeightStore.open(tmp_path, create=True)
    store.close()
    store.close()
    calls = (
        store.state,
        store.version,
        store.tags,
        store.verify,
        store.describe,
        lambda: list(store.versions()),
        lambda: list(store.log()),
        store.checkout,
        lambda: store.put_step(0, {}),
        lambda: store.trainer("run"),
        lambda: store.tag("name"),
        lambda: store.untag("name"),
        store.retire,
        lambda: store.import_checkpoint(tmp_path / "model.safetensors"),
    )
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()
