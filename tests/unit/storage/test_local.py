"""The store on a disk keeps the contract, with and without files that have no name."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.contract import BlobStoreContract
from weightstore.testing.disk import FaultyDisk, without_unnamed_files


class TestLocalBlobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        return LocalBlobStore(tmp_path / "store", create=True)


class TestLocalBlobsUnderTemporaryNames(BlobStoreContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> BlobStore:
        disk = FaultyDisk(before=without_unnamed_files)
        return LocalBlobStore(tmp_path / "store", create=True, syscalls=disk.syscalls)
