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
    with pytest.raises(InputRefusedError, match="object storage is not there yet"):
        plan_migration("s3://bucket/store")
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "from_2_to_3.py").write_text(STEP)
    with pytest.raises(InputRefusedError, match="format 1"):
        plan_migration(place, steps_folder=steps)
    (place / "FORMAT").chmod(0o644)
    format_file = (place / "FORMAT").read_bytes()
    (place / "FORMAT").write_bytes(b"x" * 5_000)
    with pytest.raises(CorruptLogError, match="larger than"):
        plan_migration(place)
    (place / "FORMAT").write_bytes(format_file)
    record = max((place / "log").iterdir())
    record.chmod(0o644)
    record.write_bytes(b"?")
    with pytest.raises(CorruptLogError, match="no JSON"):
        migrate_store(place)


def test_the_packaged_folder_comes_before_that_of_the_checkout(tmp_path: Path) -> None:
    packaged = tmp_path / "weightstore" / "_migrations"
    copy_code(packaged)
    try:
        for folders, expected in (
            ((packaged, ROOT / "migrations"), packaged),
            ((tmp_path / "nowhere", ROOT / "migrations"), ROOT / "migrations"),
            ((packaged, tmp_path / "nowhere"), packaged),
        ):
            code = migrating.load_migrations(*folders)
            found = sys.modules[f"{migrating.PACKAGE}.chain"].__file__
            assert found == str(expected / "chain.py")
            assert callable(code.plan)
    finally:
        migrating.load_migrations()


def copy_code(folder: Path) -> None:
    shutil.copytree(ROOT / "migrations", folder, ignore=shutil.ignore_patterns("__pycache__"))


@pytest.mark.parametrize(
    "project",
    [None, "", "[", "project = 3", "[project]", '[project]\nname = "other"', b"\xff"],
)
def test_a_package_of_that_name_beside_an_installed_one_is_not_run(
    tmp_path: Path, project: str | bytes | None
) -> None:
    """It lies where the checkout would have its migrations: in `site-packages`."""
    foreign = tmp_path / "migrations"
    foreign.mkdir()
    for name in ("__init__.py", "chain.py"):
        (foreign / name).write_text("raise SystemExit('somebody else was run')")
    if project is not None:
        data = project if isinstance(project, bytes) else project.encode()
        (tmp_path / "pyproject.toml").write_bytes(data)
    with pytest.raises(InputRefusedError, match="lacks its migrations"):
        migrating.load_migrations(tmp_path / "weightstore" / "_migrations", foreign)


def test_a_checkout_is_known_by_its_project(tmp_path: Path) -> None:
    copy_code(tmp_path / "migrations")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    nowhere = tmp_path / "weightstore" / "_migrations"
    try:
        migrating.load_migrations(nowhere, tmp_path / "migrations")
        found = sys.modules[f"{migrating.PACKAGE}.chain"].__file__
        assert found == str(tmp_path / "migrations" / "chain.py")
        (tmp_path / "migrations" / "chain.py").unlink()
        with pytest.raises(InputRefusedError, match="lacks its migrations"):
            migrating.load_migrations(nowhere, tmp_path / "migrations")
    finally:
        migrating.load_migrations()


def test_this_checkout_uses_its_own_folder() -> None:
    assert migrating.PACKAGED_FOLDER == ROOT / "weightstore" / "_migrations"
    assert migrating.CHECKOUT_FOLDER == ROOT / "migrations"
    assert not migrating.PACKAGED_FOLDER.exists()
