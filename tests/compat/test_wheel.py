"""The wheel: it has the migrations, and what is installed from it finds them there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROBE = """
import sys
import weightstore
from weightstore.store import migrating

assert weightstore.__file__.startswith(sys.argv[1]), weightstore.__file__
migrating.load_migrations()
print(sys.modules["weightstore._migrations.chain"].__file__)
from weightstore.cli import main
main(["migrate", sys.argv[2], "--dry-run"])
"""


@pytest.mark.slow
def test_a_wheel_brings_its_migrations(tmp_path: Path) -> None:
    built = tmp_path / "dist"
    # Without isolation: nothing is fetched.
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = built.glob("weightstore-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    expected = {
        f"weightstore/_migrations/{path.name}" for path in (ROOT / "migrations").glob("*.py")
    }
    found = {name for name in names if name.startswith("weightstore/_migrations/")}
    assert found == expected
    golden = ROOT / "tests" / "compat" / "stores" / "format-1" / "store"
    ran = subprocess.run(
        [sys.executable, "-c", PROBE, str(site), str(golden)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.stdout.splitlines() == [
        str(site / "weightstore" / "_migrations" / "chain.py"),
        "format 1 is the newest; nothing to do",
    ], ran.stdout + ran.stderr
