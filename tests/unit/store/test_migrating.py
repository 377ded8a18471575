"""The way to the frozen code: which folder it comes from, and what its errors become."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import (
    CorruptLogError,
    InputRefusedError,
    NotAStoreError,
    UpgradeRequiredError,
)
from weightstore.store import WeightStore, migrating
from weightstore.store.migrating import MigrationPlan, migrate_store, plan_migration
from weightstore.testing.store_lab import tree

ROOT = Path(__file__).parents[3]
STEP = "FEATURES = ()\n\n\ndef convert(place, prefix):\n    pass\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with WeightStore.open(tmp_path / "store", create=True) as store:
        store.put_step(0, {"w": np.zeros(3, np.uint8)})
    return tmp_path / "store"


def test_format_1_is_the_newest(place: Path) -> None:
    before = tree(place)
    assert plan_migration(place) == migrate_store(str(place)) == MigrationPlan(1, 1, ())
    assert tree(place) == before


def test_steps_of_another_folder_are_taken(place: Path, tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "from_1_to_2.py").write_text(STEP)
    assert plan_migration(place, steps_folder=steps).steps == ("from_1_to_2",)
    assert migrate_store(place, steps_folder=steps) == MigrationPlan(1, 2, ("from_1_to_2",))
    with pytest.raises(UpgradeRequiredError, match="format 2") as caught:
        plan_migration(place)
    assert "release" in caught.value.do
    with pytest.raises(UpgradeRequiredError):
        WeightStore.open(place).checkout()


def test_errors_are_ours(place: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStoreError):
        plan_migration(tmp_path / "nowhere")
    with pytest.raises(InputRefusedError, match="URL"):
        plan_migration("s3://bucket/store")
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "from_2_to_3.py").write_text(STEP)
    with pytest.raises(InputRefusedError, match="format 1"):
        plan_migration(place, steps_folder=steps)
    record = max((place / "log").iterdir())
    record.chmod(0o644)
    record.write_bytes(b"?")
    with pytest.raises(CorruptLogError, match="no JSON"):
        migrate_store(place)


def test_the_packaged_folder_comes_before_that_of_the_checkout(tmp_path: Path) -> None:
    packaged = tmp_path / "weightstore" / "_migrations"
    shutil.copytree(ROOT / "migrations", packaged, ignore=shutil.ignore_patterns("__pycache__"))
    try:
        for folders, expected in (
            ((packaged, ROOT / "migrations"), packaged),
            ((tmp_path / "nowhere", ROOT / "migrations"), ROOT / "migrations"),
            ((packaged, tmp_path / "nowhere"), packaged),
        ):
            code = migrating.load_migrations(folders)
            found = sys.modules[f"{migrating.PACKAGE}.chain"].__file__
            assert found == str(expected / "chain.py")
            assert callable(code.plan)
    finally:
        migrating.load_migrations()


def test_an_installation_without_the_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputRefusedError, match="lacks its migrations"):
        migrating.load_migrations([tmp_path])


def test_this_checkout_uses_its_own_folder() -> None:
    packaged, checkout = migrating.FOLDERS
    assert packaged == ROOT / "weightstore" / "_migrations"
    assert checkout == ROOT / "migrations"
    assert not packaged.exists()
