"""A disk that turns read-only while a store on it is in use, and back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from weightstore.errors import StoreReadOnlyError
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.disk import DiskCall, FaultyDisk
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened, weights_of
from weightstore.testing.small_disks import MountRefusedError, SmallDisk
from weightstore.testing.store_lab import store_on
from weightstore.testing.trainer_lab import bits_of

WRITES: dict[str, Callable[[WeightStore, Path], object]] = {
    "put": lambda store, _: store.put_step(6, weights_of(6), run=RUN),
    "claim": lambda store, _: store.trainer(RUN),
    "import": lambda store, place: store.import_checkpoint(place / "given" / "5", run="base"),
    "tag": lambda store, _: store.tag("best", 2),
    "retire": lambda store, _: store.retire(),
    "checkout to file": lambda store, place: store.checkout_to_file(5, place / "out" / "5"),
    "export": lambda store, place: store.export(5, place / "out" / "e"),
}


def _check_readable(store: WeightStore) -> None:
    assert store.state().newest == 5
    for version in (4, 5):
        host = store.checkout(version).host
        found = {name: each.units.tobytes() for name, each in host.items()}
        assert found == bits_of(weights_of(version))
        store.verify(version, scan=True)


def test_writers_are_told_and_readers_go_on_and_writers_after_them(
    disk: SmallDisk, tmp_path: Path
) -> None:
    place = disk.folder / "place"
    OPERATIONS["tag"].prepare(place, lambda *_: None)
    # The kernel turns no disk on which a file is open for writing, such as an index.
    bare = replace(SETTINGS, use_index=False)
    cached = replace(SETTINGS, cache_dir=tmp_path / "cache")
    with WeightStore.open(place / "store", settings=bare) as before:
        _check_readable(before)
        try:
            disk.make_read_only()
        except MountRefusedError as error:
            pytest.skip(f"a mount may not be made read-only here: {error}")
        _check_readable(before)
        for name, write in WRITES.items():
            with pytest.raises(StoreReadOnlyError):
                write(before, place)
            assert not list((place / "out").iterdir()), name
        with WeightStore.open(
            place / "store", settings=cached
        ) as after:  # opened on the read-only disk
            _check_readable(after)
            with pytest.raises(StoreReadOnlyError):
                WRITES["put"](after, place)
            disk.make_writable()
            assert WRITES["put"](after, place) == 6
        for name in ("tag", "checkout to file", "export", "retire"):
            WRITES[name](before, place)
        assert [tag.version for tag in before.tags()] == [2]
        assert {info.version for info in before.versions() if info.kept} >= {1, 2, 4, 5, 6}


def test_a_session_on_a_disk_that_turns_read_only_puts_on_when_it_turns_back(
    folder: Path,
) -> None:
    """The kernel refuses to turn a disk that somebody writes; after an error it does it alone."""
    place = folder / "place"
    OPERATIONS["tag"].prepare(place, lambda *_: None)
    is_read_only = False

    def fault(call: DiskCall) -> OSError | None:
        is_read = call.name == "fsync"
        return (
            OSError(errno.EROFS, os.strerror(errno.EROFS)) if is_read_only and not is_read else None
        )

    blobs = LocalBlobStore(place / "store", syscalls=FaultyDisk(before=fault).syscalls)
    with store_on(blobs, settings=SETTINGS) as store, store.trainer(RUN) as trainer:
        assert trainer.put_step(6, weights_of(6)).result() == 6
        is_read_only = True
        for _ in range(2):
            with pytest.raises(StoreReadOnlyError):
                trainer.put_step(7, weights_of(7)).result()
        host = store.checkout(6).host
        assert bits_of(weights_of(6)) == {name: each.units.tobytes() for name, each in host.items()}
        is_read_only = False
        assert trainer.put_step(7, weights_of(7)).result() == 7
    with opened(place) as store:
        assert [info.version for info in store.versions()] == [7, 6, 5, 4, 3, 2, 1]
        store.verify(7, scan=True)
