"""A followed directory: equal to an export at every version, in place, and healed by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from weightstore.errors import (
    LiveWeightsError,
    NotReadyError,
    SelectorError,
    StoreClosedError,
    VersionGoneError,
)
from weightstore.ids import VersionId
from weightstore.layout.tensors import HostTensor
from weightstore.receiver.host_files.file_layout import read_file_header
from weightstore.receiver.host_files.host_files import HostFiles, Recovery
from weightstore.receiver.live_state import Way
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.testing.store_lab import store_on, tree
from weightstore.testing.trainer_lab import Weights, bf16, changed, lab_settings, small_weights

SETTINGS = lab_settings(full_after_chain_ratio=1e6, anchor_file_size_bytes=100_000)
EVERY_SCAN = ReceiverSettings(pool_ratio=0.25, scan_refit_count=1)
STEP_COUNT = 4
LOAD_COUNT_MAX = 1_000_000


@pytest.fixture
def blobs() -> MemoryBlobStore:
    return MemoryBlobStore()


@pytest.fixture
def store(blobs: MemoryBlobStore) -> Iterator[WeightStore]:
    """Versions 1 to 4, the first in full."""
    with store_on(blobs, settings=SETTINGS) as opened:
        weights = small_weights()
        for step in range(1, STEP_COUNT + 1):
            opened.put_step(step, weights)
            weights = changed(weights, step)
        yield opened


@pytest.fixture
def files(store: WeightStore, tmp_path: Path) -> Iterator[HostFiles]:
    with store.host_files(tmp_path / "live", settings=EVERY_SCAN) as opened:
        yield opened


def expected(store: WeightStore, tmp_path: Path, version: int) -> dict[str, bytes]:
    target = tmp_path / f"export-{version}"
    if not target.exists():
        store.export(version, target)
    return tree(target)


def held(files: HostFiles) -> dict[str, bytes]:
    assert files.directory.is_symlink()
    return tree(files.directory.resolve())


def place(files: HostFiles) -> Path:
    return files.directory.with_name(".live.weightstore")


def test_a_new_directory_is_nowhere_and_has_no_version(files: HostFiles) -> None:
    assert files.version is None
    assert files.last_recovery == Recovery(None)
    assert not files.directory.exists()
    with pytest.raises(NotReadyError, match="nothing was written yet"):
        files.verify()


def test_every_version_is_as_exported_whatever_came_before(
    store: WeightStore, files: HostFiles, tmp_path: Path
) -> None:
    ways = []
    for version in (1, 2, 4, 4, 3, 4, 1):
        report = files.refit(version)
        ways.append(report.way)
        assert held(files) == expected(store, tmp_path, version)
        assert files.verify().version == files.version == report.target == version
        left = {path.name for path in place(files).iterdir()}
        assert left == {"lock", "state", files.directory.readlink().name}
    full, change, nothing = Way.FULL, Way.CHANGE, Way.NOTHING
    assert ways == [full, change, change, nothing, full, change, full]


def test_a_change_keeps_files_and_sizes_and_writes_only_what_changed(
    store: WeightStore, files: HostFiles
) -> None:
    files.refit(1)
    paths = sorted(files.directory.iterdir())
    before = [(path.stat().st_ino, path.stat().st_size) for path in paths]
    report = files.refit("latest")
    assert [(path.stat().st_ino, path.stat().st_size) for path in paths] == before
    assert (report.base, report.target, report.way) == (1, STEP_COUNT, Way.CHANGE)
    assert 0 < report.applied_count < store.describe(1).unit_count // 10
    assert report.pause_s <= sum(report.seconds.values())


def test_the_next_process_goes_on_where_the_last_one_was(
    store: WeightStore, tmp_path: Path
) -> None:
    with store.host_files(tmp_path / "live") as first:
        first.refit(2)
    with store.host_files(tmp_path / "live") as second:
        assert second.last_recovery == Recovery(VersionId(2))
        assert second.refit(3).way is Way.CHANGE
        assert held(second) == expected(store, tmp_path, 3)


@pytest.mark.parametrize("kind", ["bit", "header", "index", "longer", "more", "fewer", "link"])
@pytest.mark.parametrize("noticed_by", ["verify", "refit", "start"])
def test_what_somebody_else_did_to_the_files_is_noticed_and_healed(
    store: WeightStore, files: HostFiles, tmp_path: Path, kind: str, noticed_by: str
) -> None:
    files.refit(1)
    _spoil(files.directory.resolve(), kind)
    if noticed_by == "verify":
        with pytest.raises(LiveWeightsError):
            files.verify()
        assert files.version is None
        assert not files.directory.is_symlink()
    elif noticed_by == "start":
        files.close()
        files = store.host_files(tmp_path / "live")
        assert files.last_recovery.version is None
        assert files.last_recovery.reason
        assert not files.directory.is_symlink()
    elif kind in {"header", "index"}:
        assert files.refit(2).target == 2  # looked at by `verify` and at each start
        with pytest.raises(LiveWeightsError):
            files.verify()
    report = files.refit(2)
    assert report.way is Way.FULL
    assert report.reason
    assert held(files) == expected(store, tmp_path, 2)
    files.close()


def _spoil(folder: Path, kind: str) -> None:
    weights = folder / "model-00001-of-00002.safetensors"
    data = bytearray(weights.read_bytes())
    if kind == "bit":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif kind == "header":
        weights.write_bytes(data.replace(b'"pt"', b'"tf"', 1))
    elif kind == "index":
        index = folder / "model.safetensors.index.json"
        index.write_bytes(index.read_bytes().replace(b"00001", b"00002", 1))
    elif kind == "longer":
        weights.write_bytes(data + b"\0")
    elif kind == "more":
        (folder / "more.safetensors").write_bytes(data)
    elif kind == "fewer":
        weights.unlink()
    else:
        weights.rename(folder.parent / "elsewhere")
        weights.symlink_to("../elsewhere")


@pytest.mark.parametrize("size", [0, 1, 100, -1])
@pytest.mark.parametrize("name", ["state", "journal"])
def test_a_state_or_journal_that_is_empty_or_torn_heals_by_itself(
    store: WeightStore, files: HostFiles, tmp_path: Path, name: str, size: int
) -> None:
    files.refit(2)
    path = place(files) / name
    data = path.read_bytes() if name == "state" else b"WSREDO01" + bytes(200)
    path.write_bytes(data[:size])
    files.close()
    with store.host_files(tmp_path / "live") as again:
        # A journal is of use only where a change was cut; the files themselves say what they are.
        assert again.last_recovery.version == (None if name == "state" else 2)
        assert again.directory.exists() == (name == "journal")
        again.refit(3)
        assert held(again) == expected(store, tmp_path, 3)


def test_a_lost_state_is_no_version_and_the_link_goes(
    store: WeightStore, files: HostFiles, tmp_path: Path
) -> None:
    files.refit(2)
    (place(files) / "state").unlink()
    files.close()
    with store.host_files(tmp_path / "live") as again:
        assert again.last_recovery.reason == "its state is lost"
        assert not again.directory.is_symlink()


def test_a_directory_of_another_store_is_written_anew(files: HostFiles, tmp_path: Path) -> None:
    files.refit(2)
    files.close()
    with store_on(MemoryBlobStore(), seed="other", settings=SETTINGS) as other:
        other.put_step(1, small_weights(7))
        with other.host_files(tmp_path / "live") as again:
            assert again.last_recovery.reason == "it held a version of another store"
            assert again.refit().way is Way.FULL
            assert held(again) == expected(other, tmp_path, 1)


def test_a_version_that_is_retired_meanwhile_is_still_the_base_of_a_change(
    store: WeightStore, tmp_path: Path
) -> None:
    with store.host_files(tmp_path / "live") as first:
        first.refit(2)
    store.put_step(5, changed(small_weights(), 9), anchor=True)
    store.put_step(6, changed(small_weights(), 10))
    store.retire(keep_newest=1)
    with store.host_files(tmp_path / "live") as again:
        assert again.version == 2
        with pytest.raises(VersionGoneError):
            again.refit(3)
        assert again.version == 2
        again.refit()
        assert held(again) == expected(store, tmp_path, 6)


def test_another_schema_is_written_beside_and_takes_over_the_link(
    store: WeightStore, files: HostFiles, tmp_path: Path
) -> None:
    files.refit()
    before = files.directory.resolve()
    store.put_step(9, {"other": np.arange(9, dtype=np.float32)}, new_schema=True)
    assert files.refit().way is Way.FULL
    assert files.directory.resolve() != before
    assert not before.exists()
    assert held(files) == expected(store, tmp_path, STEP_COUNT + 1)


def test_a_change_that_does_not_fit_the_pool_is_written_whole(
    store: WeightStore, tmp_path: Path
) -> None:
    small = ReceiverSettings(pool_size_bytes=64)
    with store.host_files(tmp_path / "live", settings=small) as files:
        files.refit(1)
        report = files.refit(2)
        assert (report.way, "whole version" in report.reason) == (Way.FULL, True)
        assert held(files) == expected(store, tmp_path, 2)


def test_all_bit_patterns_tied_names_and_configuration_come_through(tmp_path: Path) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    mask = np.zeros(3, np.uint8)
    with WeightStore.open(tmp_path / "store", create=True, settings=SETTINGS) as store:
        with store.trainer("run") as trainer:
            for step, units in enumerate((patterns, patterns[::-1].copy())):
                given: dict[str, HostTensor | NDArray[Any]] = {
                    "a": bf16("a", units), "tied": bf16("tied", units), "b": mask
                }  # fmt: skip
                trainer.put_step(step, given).result()
        roomy = ReceiverSettings(pool_ratio=4.0)
        with store.host_files(tmp_path / "live", settings=roomy) as files:
            files.refit(1)
            report = files.refit(2)
            assert files.verify().version == 2
            assert held(files) == expected(store, tmp_path, 2)
            assert report.way is Way.CHANGE
            shards = files.directory.glob("*.safetensors")
            headers = [read_file_header(shard, SETTINGS.limits) for shard in shards]
            names = {tensor.spec.name for header in headers for tensor in header.tensors}
            assert names == {"a", "b", "tied"}


def test_an_imported_checkpoint_keeps_its_own_files_and_layout(tmp_path: Path) -> None:
    """Tensors at odd offsets, as other writers leave them, are changed in place too."""
    source = tmp_path / "source"
    source.mkdir()
    weights: Weights = {
        "a": np.arange(3, dtype=np.uint8),
        "b": np.arange(50, dtype=np.float32),
        "c": np.arange(70, dtype=np.float16),
    }
    save_file(weights, source / "model.safetensors", {"format": "pt"})
    (source / "config.json").write_text(json.dumps({"model_type": "x"}))
    with WeightStore.open(tmp_path / "store", create=True, settings=SETTINGS) as store:
        store.import_checkpoint(source)
        after = changed(weights, 3)
        store.put_step(1, after, run="base")
        with store.host_files(tmp_path / "live") as files:
            files.refit(1)
            assert held(files) == tree(source)
            assert files.refit(2).way is Way.CHANGE
            loaded = load_file(files.directory / "model.safetensors")
            assert {n: v.tobytes() for n, v in loaded.items()} == {
                n: v.tobytes() for n, v in after.items()
            }
            assert (files.directory / "config.json").read_bytes() == (
                source / "config.json"
            ).read_bytes()
            files.verify()


def test_a_broken_delta_is_gone_round_by_a_full_form(
    blobs: MemoryBlobStore, tmp_path: Path
) -> None:
    with store_on(blobs, settings=SETTINGS) as store:
        weights = small_weights()
        store.put_step(1, weights)
        store.put_step(2, changed(weights, 1), anchor=True)
        with store.host_files(tmp_path / "live") as files:
            files.refit(1)
            (pack,) = [each.key for each in blobs.list("packs/") if "/2-" in each.key]
            blobs.delete(pack)
            report = files.refit(2)
            assert report.way is Way.FULL
            assert "deltas cannot be used" in report.reason
            assert held(files) == expected(store, tmp_path, 2)


def test_a_load_that_compares_the_state_before_and_after_is_never_a_mixture(
    store: WeightStore, files: HostFiles, tmp_path: Path
) -> None:
    """A reader that never waits, while another thread changes the files again and again."""
    known = {version: expected(store, tmp_path, version) for version in range(1, STEP_COUNT + 1)}
    files.refit(1)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [files.refit(1 + turn % STEP_COUNT) for turn in range(20)])
        whole_count = 0
        for _ in range(LOAD_COUNT_MAX):
            if writing.done():
                break
            try:
                before = (place(files) / "state").read_bytes()
                found = {path.name: path.read_bytes() for path in files.directory.iterdir()}
                # In this order: a link that is back has its new state below it.
                is_there = files.directory.is_symlink()
                after = (place(files) / "state").read_bytes()
            except FileNotFoundError:
                continue  # the link was away
            if is_there and before == after:
                whole_count += 1
                assert found == known[json.loads(before)["version"]]
        writing.result()
    assert whole_count > 0


def test_a_closed_one_and_a_wrong_selector_are_refused(files: HostFiles) -> None:
    with pytest.raises(SelectorError):
        files.refit(1.5)  # type: ignore[arg-type]
    files.close()
    files.close()
    for call in (files.refit, files.verify):
        with pytest.raises(StoreClosedError):
            call()
