"""Places for tests of faults: small disks, and folders in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.testing.small_disks import MountRefusedError, SmallDisk

DISK_SIZE_BYTES = 8 * 1024 * 1024


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a kill leaves what was written, synced or not."""
    memory = Path("/dev/shm")
    is_there = memory.is_dir() and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(dir=memory if is_there else tmp_path) as made:
        yield Path(made)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A small file system of its own."""
    try:
        made = SmallDisk(tmp_path / "disk", DISK_SIZE_BYTES)
    except MountRefusedError as error:
        pytest.skip(f"cannot mount a file system here: {error}")
    with made:
        yield made


@pytest.fixture
def of_this_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Path:
    """A folder of this module that all processes of this run share, and no other run."""
    base = tmp_path_factory.getbasetemp()
    return (base if worker_id == "master" else base.parent) / request.path.stem
