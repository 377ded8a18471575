"""A host agent from an open store."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.errors import InputRefusedError, StorageFailedError, StoreClosedError
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store.hosting import agent_stats, host_agent
from weightstore.testing.store_lab import store_on


def test_it_serves_as_long_as_it_is_entered(tmp_path: Path) -> None:
    store = store_on(MemoryBlobStore())
    place = tmp_path / "agent"
    with store.host_agent(place, memory_bytes=1000):
        found = store.host_agent_stats(str(place))
        assert (found.memory_limit_bytes, found.connection_count) == (1000, 1)
    with pytest.raises(StorageFailedError, match=str(place)):
        store.host_agent_stats(place)


def test_an_agent_of_another_store_is_not_asked(tmp_path: Path) -> None:
    with store_on(MemoryBlobStore(), seed=1).host_agent(tmp_path / "agent"):
        other = store_on(MemoryBlobStore(), seed=2)
        with pytest.raises(StorageFailedError, match="of store"):
            agent_stats(other._components, other.store_id, other._settings, tmp_path / "agent")


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    store = store_on(MemoryBlobStore())
    parts = (store._components, store.store_id, store._settings)
    for memory_bytes in (0, True, 1.5):
        with pytest.raises(InputRefusedError):
            host_agent(*parts, tmp_path / "agent", memory_bytes)  # type: ignore[arg-type]
    for socket in (7, "", tmp_path / ("a" * 200)):
        with pytest.raises(InputRefusedError):
            host_agent(*parts, socket, None)  # type: ignore[arg-type]


def test_a_closed_store_has_none(tmp_path: Path) -> None:
    store = store_on(MemoryBlobStore())
    store.close()
    with pytest.raises(StoreClosedError):
        store.host_agent(tmp_path / "agent")
    with pytest.raises(StoreClosedError):
        store.host_agent_stats(tmp_path / "agent")
