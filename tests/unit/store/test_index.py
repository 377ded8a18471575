"""The index behind the facade: what it spares, where it lies, and that nobody needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.errors import InputRefusedError
from weightstore.format.format_file import FormatFile, encode_format_file
from weightstore.history.log import Log
from weightstore.history.log_index import LogIndex
from weightstore.history.store_format import open_store
from weightstore.history.tags import put_tag
from weightstore.ids import StoreId, TagName
from weightstore.settings import MIB, Limits, Settings
from weightstore.storage import index_place
from weightstore.storage.lmdb_index import LmdbIndexFile
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.store.opening import index_of
from weightstore.store.reading import Components
from weightstore.testing.store_lab import tree
from weightstore.testing.toy_store import ToyStore, write_versions

VERSION_COUNT = 10_000
TAG_COUNT = 200
MANY_VERSIONS = 60
EAGER = Settings(limits=Limits(index_miss_count=2, cached_record_count=8))


class CountingBlobs(MemoryBlobStore):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self.counts["get"] += 1
        return super().get(key, max_size_bytes=max_size_bytes)

    def size(self, key: str, /) -> int:
        self.counts["size"] += 1
        return super().size(key)


def opened(
    blobs: MemoryBlobStore, folder: Path | None, *, miss_count: int = Limits().index_miss_count
) -> WeightStore:
    """A handle as a new process has it: nothing is remembered but the files."""
    settings = Settings(limits=Limits(index_miss_count=miss_count))
    index = None
    store_id = open_store(blobs, Log(blobs, settings.limits))
    if folder is not None:
        index = LogIndex(
            lambda: LmdbIndexFile(folder, size_bytes_max=64 * MIB), store_id, settings.limits
        )
    components = Components(blobs, SystemClock(), SystemEntropy(), index)
    return WeightStore(components, store_id, settings=settings, cast={})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_handful_of_reads_finds_any_of_ten_thousand_versions(tmp_path: Path) -> None:
    blobs = CountingBlobs()
    write_versions(blobs, VERSION_COUNT)
    blobs.put_if_absent("FORMAT", encode_format_file(FormatFile(store_id=StoreId("a" * 32))))
    writer = ToyStore(blobs).writer()
    for number in range(TAG_COUNT):
        put_tag(writer, TagName(f"t{number}"), 1 + number, owner="")

    def counted(folder: Path | None, selector: str | int) -> Counter[str]:
        blobs.counts.clear()
        with opened(blobs, folder) as store:
            store.version("latest")
            assert store.version(selector).version == expected[selector]
        return Counter(blobs.counts)

    expected: dict[str | int, int] = {
        "latest": VERSION_COUNT,
        5000: 5000,
        "tag:t7": 8,
        f"grpo@{VERSION_COUNT // 3 + 1}": VERSION_COUNT // 3,
    }
    without = {selector: counted(None, selector) for selector in expected}
    with opened(blobs, tmp_path, miss_count=1) as store:
        assert len(list(store.versions())) == VERSION_COUNT
        assert len(store.tags()) == TAG_COUNT  # the newest records
    for selector in expected:
        current = counted(tmp_path, selector)
        assert current["get"] <= 6
        assert current["size"] <= 3
        assert current["get"] <= without[selector]["get"]
    assert without["tag:t7"]["get"] > TAG_COUNT * 0.9
    blobs.delete("head")
    lost = counted(tmp_path, "latest")
    assert lost["get"] <= 6
    assert lost["size"] <= 16 < counted(None, "latest")["size"]


def local_store(place: Path) -> WeightStore:
    """A store of some versions, none of which has been looked for."""
    with WeightStore.open(place, create=True):
        pass
    trainer = ToyStore(LocalBlobStore(place)).trainer()
    for step in range(MANY_VERSIONS):
        trainer.put(step)
    return WeightStore.open(place, settings=EAGER)


def test_the_index_of_a_local_store_lies_in_it_and_is_no_part_of_it(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with local_store(place) as store:
        before = tree(place)
        assert not (place / "index").exists(), "nothing has been looked for"
        versions = list(store.versions())
        blobs = LocalBlobStore(place)
        assert {path.name for path in (place / "index").iterdir()} == {
            "data.mdb",
            "guard",
            "lock.mdb",
        }
        assert not [info for info in blobs.list("") if info.key.startswith("index")]
        assert {path for path in tree(place) if not path.startswith("index/")} == set(before)
    with WeightStore.open(place, create=True) as again:
        assert list(again.versions()) == versions
    shutil.rmtree(place / "index")
    with WeightStore.open(place) as store:
        assert list(store.versions()) == versions


def test_a_directory_that_holds_only_an_index_is_no_empty_place(tmp_path: Path) -> None:
    with local_store(tmp_path / "a") as store:
        list(store.versions())
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "index").rename(tmp_path / "b" / "index")
    with pytest.raises(InputRefusedError, match="index"):
        WeightStore.open(tmp_path / "b", create=True)


def test_a_read_only_store_has_its_index_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache = tmp_path / "store", tmp_path / "cache"
    with local_store(place) as store:
        versions = list(WeightStore.open(place, settings=Settings(use_index=False)).versions())
        store_id = store.store_id
    monkeypatch.setattr(index_place, "_is_writable", lambda _: False)
    settings = Settings(cache_dir=cache, limits=EAGER.limits)
    for _ in range(2):
        with WeightStore.open(place, settings=settings) as store:
            assert list(store.versions()) == versions
    (folder,) = cache.iterdir()
    assert folder.name.startswith(f"{store_id}-")
    assert {path.name for path in folder.iterdir()} >= {"data.mdb", "lock.mdb"}
    assert not (place / "index").exists()


def test_without_a_cache_of_its_own_it_is_the_home_directorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_place, "_is_writable", lambda _: False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with local_store(tmp_path / "store") as store:
        list(store.versions())
        (folder,) = (tmp_path / "home" / ".cache" / "weightstore").iterdir()
        assert folder.name.startswith(f"{store.store_id}-")


def test_a_home_directory_that_nobody_has_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(index_place, "_is_writable", lambda _: False)
    monkeypatch.setattr(Path, "home", no_home)
    with local_store(tmp_path / "store") as store:
        assert len(list(store.versions())) == MANY_VERSIONS


def test_the_index_can_be_turned_off(tmp_path: Path) -> None:
    local_store(tmp_path).close()
    settings = Settings(use_index=False, limits=EAGER.limits)
    with WeightStore.open(tmp_path, settings=settings) as store:
        assert len(list(store.versions())) == MANY_VERSIONS
    assert not (tmp_path / "index").exists()
    assert index_of(LocalBlobStore(tmp_path), StoreId("a" * 32), settings) is None
    assert index_of(MemoryBlobStore(), StoreId("a" * 32), EAGER) is None


def test_two_handles_in_one_process_share_the_index(tmp_path: Path) -> None:
    place = tmp_path / "store"
    (tmp_path / "link").symlink_to(place)
    with (
        local_store(place) as one,
        WeightStore.open(tmp_path / "link", settings=EAGER) as two,
    ):
        versions = list(one.versions())
        assert list(two.versions()) == versions
        one.close()
        assert list(two.versions()) == versions
    assert (place / "index" / "data.mdb").exists()


def test_a_child_of_a_fork_reads_without_the_index_of_its_parent(tmp_path: Path) -> None:
    with local_store(tmp_path) as store:
        versions = list(store.versions())
        assert list(store.versions()) == versions
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with WeightStore.open(tmp_path, settings=EAGER) as anew:
                    code = 0 if list(store.versions()) == list(anew.versions()) == versions else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(store.versions()) == versions


READER = """
import os, sys
from pathlib import Path
from weightstore.settings import Limits, Settings
from weightstore.store import WeightStore

settings = Settings(limits=Limits(index_miss_count=2, cached_record_count=8))
with WeightStore.open(sys.argv[1], settings=settings) as store:
    found = [info.version for info in store.versions()]
    if sys.argv[2] == "die":
        held = store._components.index._file._shared._environment._began(write=False)
        os.kill(os.getpid(), 9)
    print(len(found), flush=True)
"""


def reader(place: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, str(place), how], stdout=subprocess.PIPE, text=True
    )


def test_readers_in_several_processes_and_one_that_is_killed(tmp_path: Path) -> None:
    with local_store(tmp_path) as store:
        versions = list(store.versions())
        assert list(store.versions()) == versions
        killed = reader(tmp_path, "die")
        assert killed.communicate(timeout=120)[0] == ""
        assert killed.returncode == -9
        readers = [reader(tmp_path, "end") for _ in range(3)]
        trainer = ToyStore(LocalBlobStore(tmp_path), "late").trainer(take_over=True)
        for step in range(MANY_VERSIONS, 2 * MANY_VERSIONS):
            trainer.put(step)
            list(store.versions())
        for each in readers:
            told = each.communicate(timeout=120)[0]
            assert MANY_VERSIONS <= int(told) <= 2 * MANY_VERSIONS
        assert len(list(store.versions())) == 2 * MANY_VERSIONS
        shared = store._components.index._file._shared  # type: ignore[union-attr]
        assert "no active readers" in shared._environment._lmdb.readers()


def test_a_full_disk_under_the_index_is_not_the_readers_trouble(tmp_path: Path) -> None:
    """Files of this process may not grow, as on a full disk; the store is only read."""
    local_store(tmp_path).close()
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))\n" + READER
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "end"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout == f"{MANY_VERSIONS}\n", done.stderr
    assert not (tmp_path / "index" / "data.mdb").exists()
