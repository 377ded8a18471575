"""Where baselines live: memory, or a file that the next process can prove and use."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import (
    InputRefusedError,
    StorageFailedError,
    StorageFullError,
    StoreReadOnlyError,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.trainer.baseline import plan_layout
from weightstore.trainer.baseline_places import FilePlace, MemoryPlace

LAYOUT = plan_layout(Schema.build([TensorSpec("w", DType.BF16, (100,))]))
OTHER = plan_layout(Schema.build([TensorSpec("v", DType.BF16, (100,))]))


def test_memory_forgets() -> None:
    place = MemoryPlace()
    place.create(LAYOUT).units(0)[:] = 3
    place.adopt()
    assert place.load(LAYOUT) is None
    place.close()


def test_a_file_is_found_again_after_it_was_adopted(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "baseline")
    assert place.load(LAYOUT) is None
    baseline = place.create(LAYOUT)
    baseline.units(0)[:] = 3
    assert place.load(LAYOUT) is None
    place.adopt()
    baseline.units(0)[5] = 9
    place.close()
    again = FilePlace(tmp_path / "baseline")
    found = again.load(LAYOUT)
    assert found is not None
    assert found.units(0).tolist() == [*[3] * 5, 9, *[3] * 94]
    assert again.load(OTHER) is None
    again.close()


def test_a_new_one_beside_it_leaves_the_present_one_alone(tmp_path: Path) -> None:
    place = FilePlace(tmp_path / "baseline")
    old = place.create(LAYOUT)
    old.units(0)[:] = 3
    place.adopt()
    for _ in range(2):
        place.create(OTHER).units(0)[:] = 4
    assert bool(np.all(old.units(0) == 3))
    assert place.load(LAYOUT) is not None
    place.adopt()
    assert place.load(LAYOUT) is None
    found = place.load(OTHER)
    assert found is not None
    assert bool(np.all(found.units(0) == 4))
    place.close()
    place.close()


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.ENOSPC, StorageFullError), (errno.EIO, StorageFailedError)]
)
def test_a_full_disk_is_found_before_anything_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(number, "refused")

    place = FilePlace(tmp_path / "baseline")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(expected, match="baseline"):
        place.create(LAYOUT)
    assert not list(tmp_path.glob("*.new"))
    place.close()


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="cannot be made"):
        FilePlace(tmp_path / "no such directory" / "baseline")


def test_a_directory_is_no_baseline_file(tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="directory"):
        FilePlace(tmp_path)
    assert not tmp_path.with_name(tmp_path.name + ".lock").exists()


def test_what_the_system_refuses_is_an_error_of_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "refused")

    place = FilePlace(tmp_path / "baseline")
    (tmp_path / "baseline.new").mkdir()
    with pytest.raises((StorageFailedError, StoreReadOnlyError), match=r"baseline\.new"):
        place.create(LAYOUT)
    (tmp_path / "baseline.new").rmdir()
    for name in ("open", "unlink"):
        monkeypatch.setattr(Path, name, refuse)
        with pytest.raises(StorageFailedError, match=r"baseline\.new"):
            place.create(LAYOUT)
        monkeypatch.undo()
    (tmp_path / "baseline").mkdir()
    with pytest.raises(StorageFailedError, match="baseline"):
        place.load(LAYOUT)
    place.close()
