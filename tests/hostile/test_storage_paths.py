"""Nothing that lies in a store's directory leads a call out of it, or makes it wait."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from weightstore.errors import (
    BlobNotFoundError,
    CorruptObjectError,
    InputRefusedError,
    NotAStoreError,
    StorageFailedError,
    WeightStoreError,
)
from weightstore.storage.local import LocalBlobStore

SECRET = b"outside"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    return folder


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobStore:
    store = LocalBlobStore(tmp_path / "store", create=True)
    store.put_if_absent("FORMAT", b"x")
    return store


def _reads(blobs: LocalBlobStore, key: str) -> list[Callable[[], object]]:
    return [
        lambda: blobs.get(key, max_size_bytes=99),
        lambda: blobs.read_into(key, 0, bytearray(1)),
        lambda: blobs.size(key),
        lambda: blobs.local_path(key),
    ]


def _writes(blobs: LocalBlobStore, key: str, source: Path) -> list[Callable[[], object]]:
    return [
        lambda: blobs.put_if_absent(key, b"new"),
        lambda: blobs.put_if_absent(key, b"new", durable=False),
        lambda: blobs.put_stream_if_absent(key, [b"new"]),
        lambda: blobs.put_file_if_absent(key, source),
        lambda: blobs.delete(key),
    ]


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("depth", [1, 2])
def test_a_linked_folder_is_refused_by_every_call(
    blobs: LocalBlobStore, outside: Path, depth: int
) -> None:
    link = blobs.root.joinpath(*["packs", "a-1"][:depth])
    link.parent.mkdir(exist_ok=True)
    (outside / "a-1").mkdir()
    link.symlink_to(outside)
    key = "packs/a-1/secret" if depth > 1 else "packs/secret"
    calls: tuple[Callable[[], object], ...] = (
        *_reads(blobs, key),
        *_writes(blobs, key, outside / "secret"),
        lambda: list(blobs.list("packs/a-1/" if depth > 1 else "packs/")),
        lambda: blobs.confirm_durable("packs/a-1/" if depth > 1 else "packs/"),
    )
    for call in calls:
        with pytest.raises(CorruptObjectError, match="link"):
            call()
    assert _files(outside) == {"secret": SECRET}


def test_a_linked_hint_folder_is_refused(blobs: LocalBlobStore, outside: Path) -> None:
    (blobs.root / "receivers").symlink_to(outside)
    with pytest.raises(CorruptObjectError):
        blobs.overwrite("receivers/secret", b"new")
    assert _files(outside) == {"secret": SECRET}


def test_a_linked_blob_is_never_followed(blobs: LocalBlobStore, outside: Path) -> None:
    for name, target in (("head", "secret"), ("dangling", "nothing")):
        (blobs.root / name).symlink_to(outside / target)
        for read in _reads(blobs, name):
            with pytest.raises(CorruptObjectError):
                read()
        with pytest.raises(WeightStoreError):
            blobs.put_if_absent(name, b"new")
    blobs.overwrite("head", b"new")  # takes the link's place, not its target's
    assert blobs.get("head", max_size_bytes=9) == b"new"
    blobs.delete("dangling")
    assert _files(outside) == {"secret": SECRET}


def test_what_is_no_file_is_refused_and_makes_nobody_wait(
    blobs: LocalBlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (blobs.root / "log").mkdir()
    monkeypatch.chdir(blobs.root / "log")  # a socket's path has little room
    os.mkfifo("pipe")
    Path("folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("pipe", "folder", "socket"):
            for read in _reads(blobs, f"log/{name}"):
                with pytest.raises(CorruptObjectError):
                    read()
            with pytest.raises(WeightStoreError):
                blobs.put_if_absent(f"log/{name}", b"new")


def test_a_pipe_where_a_folder_should_be_is_refused(blobs: LocalBlobStore) -> None:
    os.mkfifo(blobs.root / "packs")
    for call in (*_reads(blobs, "packs/a"), *_writes(blobs, "packs/a", blobs.root / "FORMAT")):
        with pytest.raises(CorruptObjectError):
            call()


def test_listings_show_blobs_alone(blobs: LocalBlobStore, outside: Path) -> None:
    log = blobs.root / "log"
    log.mkdir()
    (log / "1").write_bytes(b"1")
    os.mkfifo(log / "pipe")
    (log / "link").symlink_to(outside / "secret")
    (log / "folder-link").symlink_to(outside)
    (log / "~tmp-1").touch()
    (log / "no key").touch()
    (log / os.fsdecode(b"\xff")).touch()
    (blobs.root / "~tmp-2").mkdir()
    (blobs.root / "~tmp-2" / "x").touch()
    (blobs.root / "locks").mkdir()
    (blobs.root / "locks" / "x").touch()
    deep = blobs.root.joinpath(*"abcdefghij")
    deep.mkdir(parents=True)
    (deep / "x").touch()
    for prefix in ("", "l", "log/", "log/1"):
        keys = [info.key for info in blobs.list(prefix)]
        assert keys == (["FORMAT", "log/1"] if prefix == "" else ["log/1"])
    assert not list(blobs.list("locks/"))


@pytest.mark.parametrize("name", ["no key", os.fsdecode(b"\xff"), "pipe", "link"])
def test_what_a_listing_leaves_out_of_a_directory_can_be_asked_for(
    blobs: LocalBlobStore, outside: Path, name: str
) -> None:
    for ours in ("locks", "log", "~tmp-1"):
        (blobs.root / ours).mkdir()
    assert blobs.unlisted_name() is None
    if name == "link":
        (blobs.root / name).symlink_to(outside)
    elif name == "pipe":
        os.mkfifo(blobs.root / name)
    else:
        (blobs.root / name).touch()
    assert blobs.unlisted_name() == name


def test_a_file_that_is_cut_short_is_never_padded(blobs: LocalBlobStore) -> None:
    blobs.put_if_absent("packs/1", b"x" * 100)
    os.truncate(blobs.root / "packs" / "1", 60)
    target = bytearray(b"-" * 100)
    with pytest.raises(CorruptObjectError, match="ends at byte 60"):
        blobs.read_into("packs/1", 0, target)
    assert target == b"-" * 100


def test_a_store_that_is_gone_is_not_an_empty_one(blobs: LocalBlobStore) -> None:
    """An empty answer would be taken for the end of the log."""
    blobs.root.rename(blobs.root.with_name("moved"))
    calls: tuple[Callable[[], object], ...] = (
        *_reads(blobs, "FORMAT"),
        *_writes(blobs, "log/1", blobs.root.with_name("moved") / "FORMAT"),
        lambda: list(blobs.list("")),
        lambda: blobs.confirm_durable("log/"),
        lambda: blobs.overwrite("head", b"1"),
    )
    for call in calls:
        with pytest.raises(StorageFailedError, match="No such file"):
            call()
    blobs.root.mkdir()  # as an unmounted disk leaves its mount point
    for call in calls:
        with pytest.raises(StorageFailedError, match="another directory"):
            call()
    assert not _files(blobs.root)


def test_a_path_that_is_no_directory_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("missing", "file", "file/below", "loop", "missing/below"):
        with pytest.raises(NotAStoreError, match="no store at"):
            LocalBlobStore(tmp_path / name)
    for name in ("file", "file/below"):
        with pytest.raises((InputRefusedError, NotAStoreError)):
            LocalBlobStore(tmp_path / name, create=True)


def test_the_root_itself_may_be_reached_through_links(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    blobs = LocalBlobStore(tmp_path / "data" / "store", create=True)
    assert blobs.root == (tmp_path / "disk" / "store").resolve()
    blobs.put_if_absent("log/1", b"1")
    assert LocalBlobStore(tmp_path / "disk" / "store").size("log/1") == 1


def test_a_blob_where_a_folder_is_needed_is_no_blob_below_it(blobs: LocalBlobStore) -> None:
    with pytest.raises(BlobNotFoundError):
        blobs.get("FORMAT/x", max_size_bytes=9)
    with pytest.raises(StorageFailedError, match="Not a directory"):
        blobs.put_if_absent("FORMAT/x", b"new")
    assert blobs.get("FORMAT", max_size_bytes=9) == b"x"
