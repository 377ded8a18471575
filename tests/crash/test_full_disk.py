"""A disk that is full: every operation with every amount of space left, then with enough.

Full is told as full, and then nothing of the operation is there; what was there before is
readable all the time; and after space is freed the same handle goes on to the same bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from weightstore.errors import NotAStoreError, StorageFullError
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.history_check import History, check_history
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, weights_of
from weightstore.testing.kill_server import KillServer
from weightstore.testing.small_disks import SmallDisk
from weightstore.testing.store_lab import tree
from weightstore.testing.trainer_lab import Bits, bits_of

BITS: dict[int, Bits] = {step: bits_of(weights_of(step)) for step in range(6)}
PAGE_COUNT_MAX = 400


@dataclass(frozen=True)
class Filling:
    """An operation that runs out of space.

    Attributes:
        before: The operation of `OPERATIONS` whose start it starts from.
        run: The operation on an open handle; the second argument is the place.
        versions: What the store holds in the end: version to step.
        stride: How many more pages are free in each turn.
    """

    before: str
    run: Callable[[WeightStore, Path], object]
    versions: dict[int, int]
    stride: int = 1


def _put(step: int, *, anchor: bool = False) -> Callable[[WeightStore, Path], object]:
    return lambda store, _: store.put_step(step, weights_of(step), run=RUN, anchor=anchor)


def _import(store: WeightStore, place: Path) -> object:
    return store.import_checkpoint(place / "given" / "checkpoint", run=RUN, step=0)


def _to_file(store: WeightStore, place: Path) -> object:
    return store.checkout_to_file(5, place / "out" / "5.safetensors")


def _export(version: int) -> Callable[[WeightStore, Path], object]:
    return lambda store, place: store.export(version, place / "out" / str(version))


FIVE = {version: version for version in range(1, 6)}
FILLINGS = {
    "first put": Filling("first put", _put(1), {1: 1}, stride=6),
    "delta": Filling("delta", _put(2), {1: 1, 2: 2}),
    "delta and full form": Filling("delta", _put(2, anchor=True), {1: 1, 2: 2}, stride=5),
    "import": Filling("import", _import, {1: 0}, stride=6),
    "tag": Filling("tag", lambda store, _: store.tag("best", 2), FIVE),
    "retire": Filling("retire", lambda store, _: store.retire(), FIVE),
    "checkout to file": Filling("checkout to file", _to_file, FIVE, stride=9),
    "export of a full form": Filling("export of a full form", _export(4), FIVE, stride=9),
    "export of a delta": Filling("export of a delta", _export(5), FIVE, stride=9),
}


def _versions(store: WeightStore) -> dict[int, int]:
    """Version to step; each one that is kept is read."""
    for info in store.versions():
        if info.kept:
            host = store.checkout(info.version).host
            assert {name: each.units.tobytes() for name, each in host.items()} == BITS[info.step]
    return {int(info.version): int(info.step) for info in store.versions()}


def _outside(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "out").iterdir())


@pytest.mark.parametrize("name", FILLINGS)
def test_whatever_space_is_left_full_means_nothing_and_freed_means_all(
    disk: SmallDisk, name: str
) -> None:
    filling = FILLINGS[name]
    full_count = 0
    for free_page_count in range(0, PAGE_COUNT_MAX, filling.stride):
        place = disk.folder / "place"
        OPERATIONS[filling.before].prepare(place, lambda *_: None)
        with WeightStore.open(place / "store", settings=SETTINGS) as store:
            before = _versions(store)
            outside = _outside(place)
            disk.fill(free_page_count=free_page_count)
            try:
                filling.run(store, place)
            except StorageFullError:
                full_count += 1
                is_full = True
                # Another process sees what was there before, and all of it.
                with WeightStore.open(place / "store", settings=SETTINGS) as reader:
                    assert _versions(reader) == before
                    assert not reader.tags()
                assert _outside(place) == outside
            else:
                is_full = False
                assert _versions(store) == filling.versions
            disk.free()
            if is_full:
                filling.run(store, place)
            assert _versions(store) == filling.versions
            if name in {"checkout to file", "export of a full form", "export of a delta"}:
                assert _given(place / "out").items() <= _given(place / "given").items()
        check_history(LocalBlobStore(place / "store"), History(), limits=SETTINGS.limits)
        shutil.rmtree(place)
        if not is_full:
            break
    assert not is_full
    assert full_count > (0 if name in {"tag", "retire"} else 3)


def _given(folder: Path) -> dict[str, bytes]:
    return {path: data for path, data in tree(folder).items() if not path.startswith("checkpoint")}


def test_a_full_disk_takes_the_index_and_no_process(disk: SmallDisk) -> None:
    """A map of a file that has no space would end the process that touches it (SIGBUS)."""
    place = disk.folder / "place"
    OPERATIONS["verify"].prepare(place, lambda *_: None)
    has_index = []
    with KillServer() as server:
        for free_page_count in (*range(0, 24, 2), PAGE_COUNT_MAX):
            shutil.rmtree(place / "store" / "index", ignore_errors=True)
            disk.fill(free_page_count=free_page_count)
            ended = server.run("verify", place)
            assert ended.exit_code == 0, (free_page_count, ended)
            has_index.append((place / "store" / "index" / "data.mdb").is_file())
            ended = server.run("verify", place)
            assert ended.exit_code == 0, (free_page_count, ended)
            disk.free()
    assert (has_index[0], has_index[-1]) == (False, True)


def test_a_full_disk_in_an_open_session_loses_no_step(disk: SmallDisk) -> None:
    """The same session puts on and on while the disk runs full and is freed, at each page."""
    OPERATIONS["first put"].prepare(disk.folder / "place", lambda *_: None)
    place = disk.folder / "place" / "store"
    full_count = 0
    with (
        WeightStore.open(place, settings=SETTINGS) as store,
        store.trainer(RUN) as trainer,
    ):
        assert trainer.put_step(1, weights_of(1)).result() == 1
        for step in range(2, 26):
            disk.fill(free_page_count=step - 2)
            try:
                version = int(trainer.put_step(step, weights_of(step)).result())
            except StorageFullError:
                full_count += 1
                with WeightStore.open(place, settings=SETTINGS) as reader:
                    assert reader.state().newest == step - 1
                disk.free()
                version = int(trainer.put_step(step, weights_of(step)).result())
            assert version == step
        disk.free()
    with WeightStore.open(place, settings=SETTINGS) as store:
        for version in (1, 2, 13, 25):
            host = store.checkout(version).host
            expected = bits_of(weights_of(version))
            assert {name: each.units.tobytes() for name, each in host.items()} == expected
    assert 3 < full_count < 20
    check_history(LocalBlobStore(place), History(), limits=SETTINGS.limits)


def test_a_store_is_made_on_a_full_disk_once_there_is_space(disk: SmallDisk) -> None:
    place = disk.folder / "store"
    full_count = 0
    for free_page_count in range(20):
        disk.fill(free_page_count=free_page_count)
        try:
            WeightStore.open(place, create=True, settings=SETTINGS).close()
        except StorageFullError:
            full_count += 1
            is_full = True
            with pytest.raises(NotAStoreError):
                WeightStore.open(place, settings=SETTINGS)
        else:
            is_full = False
        disk.free()
        with WeightStore.open(place, create=True, settings=SETTINGS) as store:
            assert store.put_step(1, weights_of(1), run=RUN) == 1
        shutil.rmtree(place)
        if not is_full:
            break
    assert not is_full
    assert full_count >= 2
