"""The index in memory keeps the contract."""

from __future__ import annotations

import pytest

from weightstore.storage.index_file import IndexFile
from weightstore.storage.memory_index import MemoryIndexFile
from weightstore.testing.index_contract import IndexFileContract


class TestMemoryIndex(IndexFileContract):
    @pytest.fixture
    def index(self) -> IndexFile:
        return MemoryIndexFile()


def test_it_says_where_it_is() -> None:
    assert MemoryIndexFile().location == "memory"
