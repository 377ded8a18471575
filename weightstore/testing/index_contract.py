"""What every `IndexFile` promises, as one test class.

An implementation's test derives from it and gives the index:

    class TestMemoryIndex(IndexFileContract):
        @pytest.fixture
        def index(self) -> IndexFile:
            return MemoryIndexFile()
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from weightstore.errors import InputRefusedError, StoreClosedError
from weightstore.storage.index_file import INDEX_KEY_SIZE_BYTES_MAX, Expected, IndexFile

NEW = Expected(b"state", None)
THREAD_COUNT = 8
ROUND_COUNT = 25
BIG_VALUE_COUNT = 320
BIG_VALUE_SIZE_BYTES = 65_536


class IndexFileContract:
    """Claims that hold for every index; `index` is an empty one."""

    @pytest.fixture
    def index(self) -> IndexFile:
        """The index under test, empty; to be overridden."""
        raise NotImplementedError

    def test_an_empty_index_has_nothing(self, index: IndexFile) -> None:
        """Before anything was put."""
        assert index.get_many([b"a", b"b"]) == (None, None)
        assert index.get_many([]) == ()
        index.clear()
        assert index.get_many([b"a"]) == (None,)

    @pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)) * 300])
    def test_values_come_back_in_the_order_of_the_keys(
        self, index: IndexFile, value: bytes
    ) -> None:
        """Empty ones too, which are not the same as none."""
        assert index.put_many({b"a": value, b"b": b"2"}, expected=NEW)
        assert index.get_many([b"b", b"missing", b"a", b"b"]) == (b"2", None, value, b"2")

    def test_entries_are_replaced(self, index: IndexFile) -> None:
        """And those that are not named stay."""
        assert index.put_many({b"a": b"1", b"b": b"1"}, expected=NEW)
        assert index.put_many({b"a": b"2"}, expected=Expected(b"a", b"1"))
        assert index.get_many([b"a", b"b"]) == (b"2", b"1")

    @pytest.mark.parametrize("wrong", [None, b"", b"old", b"states"])
    def test_another_value_than_expected_changes_nothing(
        self, index: IndexFile, wrong: bytes | None
    ) -> None:
        """Neither the expected key nor any other one."""
        assert index.put_many({b"state": b"state", b"a": b"1"}, expected=NEW)
        assert not index.put_many({b"a": b"2", b"b": b"2"}, expected=Expected(b"state", wrong))
        assert index.get_many([b"state", b"a", b"b"]) == (b"state", b"1", None)

    @pytest.mark.parametrize("size_bytes", [0, INDEX_KEY_SIZE_BYTES_MAX + 1, 5000])
    def test_keys_that_do_not_fit_are_refused(self, index: IndexFile, size_bytes: int) -> None:
        """By every method, and before anything is changed."""
        bad = b"k" * size_bytes
        with pytest.raises(InputRefusedError, match=f"{size_bytes} bytes"):
            index.get_many([b"a", bad])
        with pytest.raises(InputRefusedError, match=f"{size_bytes} bytes"):
            index.put_many({b"a": b"1", bad: b"1"}, expected=NEW)
        with pytest.raises(InputRefusedError, match=f"{size_bytes} bytes"):
            index.put_many({b"a": b"1"}, expected=Expected(bad, None))
        assert index.get_many([b"a"]) == (None,)

    def test_the_longest_key_is_taken(self, index: IndexFile) -> None:
        """Two that differ in their last byte are two."""
        one, two = (b"k" * (INDEX_KEY_SIZE_BYTES_MAX - 1) + end for end in (b"1", b"2"))
        assert index.put_many({one: b"1", two: b"2"}, expected=NEW)
        assert index.get_many([two, one]) == (b"2", b"1")

    def test_it_grows_with_what_it_holds(self, index: IndexFile) -> None:
        """Far above any first guess, in the middle of one change."""
        entries = {
            b"%d" % number: b"%d" % number * (BIG_VALUE_SIZE_BYTES // 8)
            for number in range(10_000_000, 10_000_000 + BIG_VALUE_COUNT)
        }
        assert index.put_many(entries, expected=NEW)
        assert dict(zip(entries, index.get_many(list(entries)), strict=True)) == entries

    def test_clearing_forgets_everything(self, index: IndexFile) -> None:
        """And it can be filled again, any number of times."""
        for _ in range(3):
            assert index.put_many({b"state": b"1", b"a": b"1"}, expected=NEW)
            index.clear()
            assert index.get_many([b"state", b"a"]) == (None, None)

    def test_of_two_changes_from_one_state_one_is_made(self, index: IndexFile) -> None:
        """Threads that race to add the next entry add each one once."""
        added: list[tuple[int, int]] = []
        barrier = threading.Barrier(THREAD_COUNT)

        def race(thread: int) -> None:
            for number in range(ROUND_COUNT):
                old = str(number - 1).encode() if number else None
                new = {b"state": str(number).encode(), b"by%d" % number: b"%d" % thread}
                barrier.wait()
                if index.put_many(new, expected=Expected(b"state", old)):
                    added.append((number, thread))

        with ThreadPoolExecutor(THREAD_COUNT) as pool:
            list(pool.map(race, range(THREAD_COUNT)))
        assert [number for number, _ in added] == list(range(ROUND_COUNT))
        winners = index.get_many([b"by%d" % number for number, _ in added])
        assert winners == tuple(b"%d" % thread for _, thread in added)

    def test_readers_see_whole_changes(self, index: IndexFile) -> None:
        """Two entries that are always changed together are always read together."""
        index.put_many({b"one": b"0", b"two": b"0"}, expected=NEW)
        done = threading.Event()

        def read() -> int:
            count = 0
            while not done.is_set():
                one, two = index.get_many([b"one", b"two"])
                assert one == two
                count += 1
            return count

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            for number in range(ROUND_COUNT):
                same = b"%d" % number
                old = index.get_many([b"one"])[0]
                index.put_many({b"one": same, b"two": same}, expected=Expected(b"one", old))
            done.set()
            assert all(reader.result() > 0 for reader in readers)

    def test_a_closed_index_is_refused(self, index: IndexFile) -> None:
        """By everything but another close."""
        index.put_many({b"a": b"1"}, expected=NEW)
        index.close()
        index.close()
        for call in (
            lambda: index.get_many([b"a"]),
            lambda: index.put_many({b"a": b"2"}, expected=NEW),
            index.clear,
        ):
            with pytest.raises(StoreClosedError):
                call()
