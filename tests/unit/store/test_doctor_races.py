"""The doctor beside others who put and retire: what they do meanwhile is no damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.history.log import Log
from weightstore.history.progress import no_progress
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore, doctor
from weightstore.store.doctor import examine
from weightstore.store.doctor_versions import Examination
from weightstore.store.findings import Severity
from weightstore.testing.store_lab import LAB_SETTINGS


def put(place: Path, *steps: int) -> None:
    with WeightStore.open(place, create=True, settings=LAB_SETTINGS) as store:
        for step in steps:
            weights: dict[str, NDArray[Any]] = {"w": np.arange(7_000, dtype=np.float32) + step}
            store.put_step(step, weights, run="grpo", anchor=True)


def retire(place: Path) -> None:
    with WeightStore.open(place, settings=LAB_SETTINGS) as store:
        store.retire(keep_newest=1)


def put_and_retire(place: Path) -> None:
    put(place, 10, 11)
    retire(place)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four full versions."""
    put(tmp_path / "store", 0, 1, 2, 3)
    return tmp_path / "store"


class Busy(LocalBlobStore):
    """A store in which others retire, or put, at a moment of the look."""

    def __init__(self, place: Path, moment: str, work: Callable[[], object]) -> None:
        super().__init__(place)
        self._moment = moment
        self._work: Callable[[], object] | None = work

    @property
    def is_idle(self) -> bool:
        return self._work is not None

    def _pass(self, moment: str) -> None:
        if self._work is not None and moment.startswith(self._moment):
            work, self._work = self._work, None
            work()

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        self._pass(f"list {prefix}")
        return super().list(prefix)

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        self._pass(f"get {key}")
        return super().get(key, max_size_bytes=max_size_bytes)

    def size(self, key: str, /) -> int:
        self._pass(f"size {key}")
        return super().size(key)


@pytest.mark.parametrize("work", [retire, put_and_retire])
@pytest.mark.parametrize("moment", ["list log/", "get head", "get manifests/", "size ", "list "])
def test_what_others_do_meanwhile_is_no_damage(
    place: Path, monkeypatch: pytest.MonkeyPatch, moment: str, work: Callable[[Path], None]
) -> None:
    busy: list[Busy] = []

    def made(path: Path) -> Busy:
        busy.append(Busy(path, moment, partial(work, place)))
        return busy[-1]

    monkeypatch.setattr(doctor, "LocalBlobStore", made)
    report = examine(place, deep=True)
    assert [each.is_idle for each in busy] == [False]
    assert [each for each in report.findings if each.severity is Severity.ERROR] == []


def test_a_hint_that_moved_on_with_its_log_is_the_last_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor, "LocalBlobStore", lambda path: Busy(path, "list log/", partial(put, place, 9))
    )
    (head,) = [each for each in examine(place).findings if each.check == "head"]
    assert head.severity is Severity.OK


@pytest.mark.parametrize("work", [retire, put_and_retire])
def test_each_check_asks_the_log_again_before_it_tells_of_damage(
    place: Path, work: Callable[[Path], None]
) -> None:
    blobs = LocalBlobStore(place)
    log = Log(blobs, LAB_SETTINGS.limits)
    exam = Examination(blobs, log, log.tail(), LAB_SETTINGS)
    work(place)
    found = [
        *exam.presence_findings(),
        *exam.newest_findings(),
        *exam.deep_findings(no_progress),
        *exam.garbage_findings("store"),
    ]
    assert [each.severity for each in found] == [Severity.OK] * 4
    exam = Examination(blobs, log, log.tail(), LAB_SETTINGS)
    next(place.glob("anchors/*/*")).unlink()
    assert next(exam.presence_findings()).severity is Severity.ERROR
