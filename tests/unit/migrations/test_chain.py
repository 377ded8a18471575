"""Chains of steps: a cut anywhere is repeated, others that write are fenced, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrations import chain, log_1
from migrations.failures import (
    BusyStoreError,
    DamagedStoreError,
    MissingStepError,
    NewerStoreError,
    NoStoreError,
)
from migrations.place import Place
from migrations.record_1 import encode
from weightstore.errors import UpgradeRequiredError
from weightstore.store import WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS, tree

STEP = '''
from .place import Place
from .log_1 import Prefix

FEATURES = ({features})


def convert(place: Place, prefix: Prefix) -> None:
    """Writes a file for each version."""
    newest = prefix.now["newest"]
    for version in range(1, (newest["version"] if newest else 0) + 1):
        place.put_if_absent(f"format_{target}/{{version}}", b"%d" % version)
'''


class PowerCut(BaseException):
    """Nothing of the process goes on."""


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Two steps: from 1 to 2, which adds a feature, and from 2 to 3."""
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "from_1_to_2.py").write_text(STEP.format(target=2, features="'two',"))
    (folder / "from_2_to_3.py").write_text(STEP.format(target=3, features=""))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of two versions."""
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        for step in range(2):
            store.put_step(step, {"w": np.arange(9, dtype=np.uint8) + step})
    return tmp_path / "store"


def migrate(place: Path, steps: Path) -> chain.Plan:
    numbers = count(1)
    return chain.run(place, nonce=lambda: f"{next(numbers):032x}", unix_ms=1, folder=steps)


def test_the_first_format_is_the_newest_and_nothing_is_to_be_done(place: Path) -> None:
    before = tree(place)
    assert chain.plan(place) == chain.Plan(format=1, newest=1, steps=())
    assert chain.run(place, nonce=str, unix_ms=0) == chain.Plan(1, 1, ())
    assert tree(place) == before


def test_a_plan_changes_nothing_and_names_the_steps(place: Path, steps: Path) -> None:
    before = tree(place)
    expected = chain.Plan(1, 3, ("from_1_to_2", "from_2_to_3"))
    assert chain.plan(place, steps) == expected
    assert tree(place) == before
    assert migrate(place, steps) == expected
    assert chain.plan(place, steps) == chain.Plan(3, 3, ())
    assert migrate(place, steps) == chain.Plan(3, 3, ())


def test_what_was_there_stays_and_the_log_says_the_new_format(place: Path, steps: Path) -> None:
    before = tree(place)
    migrate(place, steps)
    after = tree(place)
    assert {key: after[key] for key in before} == before
    assert {key for key in after if key.startswith("format_")} == {
        "format_2/1", "format_2/2", "format_3/1", "format_3/2",
    }  # fmt: skip
    now = log_1.read_log(Place(place)).now
    assert (now["format"], now["features"]) == (3, ["two"])
    assert now["newest"]["version"] == 2


def test_old_writers_and_readers_are_fenced(place: Path, steps: Path) -> None:
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        store.put_step(7, {"w": np.zeros(9, np.uint8)})
        migrate(place, steps)
        with pytest.raises(UpgradeRequiredError, match="format 2"):
            store.put_step(8, {"w": np.ones(9, np.uint8)})
        with pytest.raises(UpgradeRequiredError):
            store.checkout("latest")
        with pytest.raises(UpgradeRequiredError):
            store.close()
    with WeightStore.open(place) as late, pytest.raises(UpgradeRequiredError):
        late.state()


def test_a_cut_anywhere_is_repeated_to_the_same_store(
    place: Path, steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every change of the disk, until the migration outlives the cut."""
    whole = tmp_path / "whole"
    shutil.copytree(place, whole)
    migrate(whole, steps)
    calls = [getattr(os, name) for name in ("link", "fsync", "write")]
    cut_count = 0
    for cut in count():
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(place, copy)
        with monkeypatch.context() as patched:
            left = iter(range(cut, -1, -1))
            for call in calls:
                patched.setattr(os, call.__name__, cutting(call, left))
            try:
                migrate(copy, steps)
            except PowerCut:
                cut_count += 1
            else:
                break
        assert chain.plan(copy, steps).format in {1, 2, 3}
        migrate(copy, steps)
        assert kept(copy) == kept(whole)
        shutil.rmtree(copy)
    assert cut_count > 60


def cutting(call: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    """The call, cut before or after its effect when `left` says 0; dead from then on."""

    def cut(*arguments: object, **named: object) -> object:
        if next(left, 0) == 0:
            raise PowerCut
        result: object = call(*arguments, **named)
        if next(left, 0) == 0:
            raise PowerCut
        return result

    return cut


def kept(place: Path) -> dict[str, bytes]:
    """All files but what a cut may leave; nonces of records apart."""
    found = {}
    for key, data in tree(place).items():
        if "~tmp-" in key:
            continue
        if key.startswith("log/"):
            record = json.loads(data)
            found[key] = repr((record["kind"], record.get("format"), record["slot"])).encode()
        else:
            found[key] = data
    return found


def test_a_version_that_comes_meanwhile_is_converted_too(
    place: Path, steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Place.put_if_absent
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:

        def put_late(self: Place, key: str, data: bytes) -> bool:
            if key == "format_2/2":
                monkeypatch.setattr(Place, "put_if_absent", put)
                store.put_step(9, {"w": np.full(9, 9, np.uint8)})
            return put(self, key, data)

        loaded = chain.find_steps(steps)[1].convert.__globals__["Place"]
        assert loaded is Place
        monkeypatch.setattr(Place, "put_if_absent", put_late)
        migrate(place, steps)
        with pytest.raises(UpgradeRequiredError):
            store.close()
    assert (place / "format_2/3").read_bytes() == b"3"
    assert log_1.read_log(Place(place)).now["newest"]["version"] == 3


def test_a_log_that_never_rests_ends_in_an_error(
    place: Path, steps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Place, "put_if_absent", lambda *_: False)
    with pytest.raises(BusyStoreError, match="moved 16 times"):
        migrate(place, steps)


def test_newer_stores_are_refused(place: Path, steps: Path, tmp_path: Path) -> None:
    migrate(place, steps)
    (steps / "from_2_to_3.py").unlink()
    with pytest.raises(NewerStoreError, match="format 3"):
        chain.plan(place, steps)
    with pytest.raises(NewerStoreError, match="format 3"):
        chain.plan(place)
    other = tmp_path / "other"
    WeightStore.open(other, create=True).close()
    file = other / "FORMAT"
    file.chmod(0o644)
    file.write_bytes(encode(json.loads(file.read_bytes()) | {"format": 7}))
    with pytest.raises(NewerStoreError, match="format 7"):
        chain.plan(other, steps)


def test_a_feature_of_nobody_is_refused(place: Path, steps: Path) -> None:
    (steps / "from_1_to_2.py").write_text(STEP.format(target=2, features="'strange',"))
    (steps / "from_2_to_3.py").unlink()
    migrate(place, steps)
    (steps / "from_1_to_2.py").write_text(STEP.format(target=2, features=""))
    with pytest.raises(NewerStoreError, match="strange"):
        chain.plan(place, steps)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="no directory"):
        chain.plan(tmp_path / "nowhere")
    with pytest.raises(NoStoreError, match="no FORMAT"):
        chain.plan(tmp_path)
    for text in (
        "", "[]", "[" * 4_000, '{"a":' * 800, '{"magic":"other","format":1}',
        '{"magic":"weightstore","format":true}', '{"magic":"weightstore","format":[1]}',
    ):  # fmt: skip
        (tmp_path / "FORMAT").write_text(text)
        with pytest.raises(NoStoreError, match="something else"):
            chain.plan(tmp_path)


def test_a_format_file_of_any_size_or_kind_is_refused(place: Path) -> None:
    file = place / "FORMAT"
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data + b" " * (chain.FORMAT_SIZE_BYTES_MAX - len(data)))
    assert chain.plan(place).format == 1
    file.write_bytes(data + b" " * (chain.FORMAT_SIZE_BYTES_MAX + 1 - len(data)))
    with pytest.raises(DamagedStoreError, match="larger than 4096 bytes"):
        chain.plan(place)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DamagedStoreError, match="no plain file"):
        chain.plan(place)


def raised_by_another(place: Path) -> bytes:
    """The record of another process that raises the format to 2."""
    return log_1.format_record(
        log_1.read_log(Place(place)),
        format_number=2,
        features=["two"],
        nonce=lambda: "b" * 32,
        unix_ms=1,
    )


@pytest.mark.parametrize("look", [1, 2])
def test_nothing_is_done_or_said_to_be_done_on_a_record_whose_name_may_vanish(
    place: Path, steps: Path, monkeypatch: pytest.MonkeyPatch, look: int
) -> None:
    """Another process links the record and is cut before it syncs: before the plan, or later."""
    (steps / "from_2_to_3.py").unlink()
    record, slot = raised_by_another(place), log_1.read_log(Place(place)).next_slot
    read, fsync = log_1.read_log, os.fsync
    look_count, synced = 0, False

    def read_late(where: Place) -> log_1.Prefix:
        nonlocal look_count
        look_count += 1
        if look_count == look:
            (place / log_1.log_key(slot)).write_bytes(record)
        return read(where)

    def noted_fsync(file: int) -> None:
        nonlocal synced
        is_there = (place / log_1.log_key(slot)).exists()
        synced |= is_there and Path(f"/proc/self/fd/{file}").readlink() == place / "log"
        fsync(file)

    monkeypatch.setattr(log_1, "read_log", read_late)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    assert migrate(place, steps).newest == 2
    assert look_count == look
    assert len(list((place / "log").iterdir())) == slot + 1
    assert synced


def test_a_damaged_log_is_refused(place: Path) -> None:
    record = sorted((place / "log").iterdir())[2]
    record.chmod(0o644)
    record.write_bytes(record.read_bytes()[:-1])
    with pytest.raises(DamagedStoreError):
        chain.plan(place)


def test_steps_with_a_gap_or_down_are_refused(place: Path, steps: Path) -> None:
    (steps / "from_1_to_2.py").rename(steps / "from_4_to_5.py")
    with pytest.raises(MissingStepError, match="from format 1"):
        chain.plan(place, steps)
    (steps / "from_4_to_5.py").rename(steps / "from_4_to_4.py")
    with pytest.raises(MissingStepError, match="from_4_to_4"):
        chain.plan(place, steps)
