"""The newest engine of a channel is found by few reads, from wherever the search begins."""

from __future__ import annotations

import pytest

from weightstore.receiver.ranks.channel import MemoryChannel, engine_key
from weightstore.receiver.ranks.newest import is_begun, newest_generation


class CountingChannel(MemoryChannel):
    read_count = 0

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes | None:
        self.read_count += 1
        return super().get(key, max_size_bytes=max_size_bytes)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 100])
def test_it_is_found_from_every_known_one(count: int) -> None:
    channel = CountingChannel()
    for generation in range(1, count + 1):
        channel.put(engine_key(generation), b"engine")
    for known in range(count + 1):
        channel.read_count = 0
        assert newest_generation(channel, known) == count
        assert channel.read_count <= 16
    assert not is_begun(channel, count + 1)


def test_the_known_one_costs_one_read() -> None:
    channel = CountingChannel()
    channel.put(engine_key(1), b"engine")
    assert newest_generation(channel, 1) == 1
    assert channel.read_count == 1
