"""The store in memory keeps the contract, and stays in its process."""

from __future__ import annotations

import os

import pytest

from weightstore.errors import StoreClosedError
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.contract import BlobStoreContract


class TestMemoryBlobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return MemoryBlobStore()


def test_a_forked_child_is_refused() -> None:
    blobs = MemoryBlobStore()
    blobs.put_if_absent("log/1", b"parent")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            blobs.put_if_absent("log/2", b"child")
        except StoreClosedError:
            code = 42
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42
    blobs.put_if_absent("log/2", b"parent")
