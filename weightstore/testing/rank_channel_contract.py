"""What every `RankChannel` promises, as one test class; see `testing.contract`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from weightstore.errors import BlobExistsError, CorruptObjectError
from weightstore.receiver.ranks.channel import RankChannel, answer_key, engine_key, order_key

RACER_COUNT = 8
SIZE_MAX = 1 << 20


class RankChannelContract:
    """Claims that hold for every channel; `channel` is an empty one."""

    @pytest.fixture
    def channel(self) -> RankChannel:
        """The channel under test, empty; to be overridden."""
        raise NotImplementedError

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 100])
    def test_an_object_is_read_as_it_was_put(self, channel: RankChannel, data: bytes) -> None:
        """The same bytes come back."""
        channel.put(engine_key(1), data)
        assert channel.get(engine_key(1), max_size_bytes=SIZE_MAX) == data

    def test_what_was_not_put_is_none(self, channel: RankChannel) -> None:
        """No error, and no empty object."""
        assert channel.get(order_key(1, 1), max_size_bytes=SIZE_MAX) is None

    def test_the_same_object_may_be_put_again(self, channel: RankChannel) -> None:
        """A put whose answer was lost is repeated."""
        channel.put(answer_key(1, 2, 3), b"answer")
        channel.put(answer_key(1, 2, 3), b"answer")
        assert channel.get(answer_key(1, 2, 3), max_size_bytes=6) == b"answer"

    @pytest.mark.parametrize("other", [b"other", b"a longer one than before", b""])
    def test_another_object_is_refused(self, channel: RankChannel, other: bytes) -> None:
        """The first one stays."""
        channel.put(answer_key(1, 2, 3), b"first")
        with pytest.raises(BlobExistsError):
            channel.put(answer_key(1, 2, 3), other)
        assert channel.get(answer_key(1, 2, 3), max_size_bytes=SIZE_MAX) == b"first"

    def test_an_object_that_is_too_large_is_refused(self, channel: RankChannel) -> None:
        """Before it is read."""
        channel.put(engine_key(1), b"12345")
        with pytest.raises(CorruptObjectError):
            channel.get(engine_key(1), max_size_bytes=4)

    def test_one_of_many_puts_wins(self, channel: RankChannel) -> None:
        """Two leaders never begin the same engine."""

        def won(number: int) -> bool:
            try:
                channel.put(engine_key(7), bytes([number]))
            except BlobExistsError:
                return False
            return True

        with ThreadPoolExecutor(RACER_COUNT) as pool:
            assert sum(pool.map(won, range(RACER_COUNT))) == 1

    def test_keys_are_listed_by_prefix_and_deleted(self, channel: RankChannel) -> None:
        """Deleting what is not there is no error."""
        keys = [order_key(1, 1), answer_key(1, 1, 0), engine_key(1)]
        for key in keys:
            channel.put(key, key.encode())
        assert set(channel.keys("rounds/")) == set(keys[:2])
        channel.delete([order_key(1, 1), order_key(9, 9)])
        assert set(channel.keys("")) == set(keys[1:])
        assert channel.get(order_key(1, 1), max_size_bytes=SIZE_MAX) is None

    def test_it_says_where_it_is(self, channel: RankChannel) -> None:
        """For messages."""
        assert channel.location
