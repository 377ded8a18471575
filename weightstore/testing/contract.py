"""What every `BlobStore` promises, as one test class.

An implementation's test derives from it and gives the store:

    class TestLocalBlobs(BlobStoreContract):
        @pytest.fixture
        def blobs(self, tmp_path: Path) -> BlobStore:
            return LocalBlobStore(tmp_path)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    CorruptObjectError,
    InputRefusedError,
)
from weightstore.storage.blobs import BlobInfo, BlobStore
from weightstore.testing.faults import PowerCut
from weightstore.testing.hard_keys import REFUSED_KEYS, REFUSED_PREFIXES, STRANGE_KEYS

RACER_COUNT = 20
RACE_COUNT = 30
READER_BLOB_COUNT = 40


class BlobStoreContract:
    """Claims that hold for every store; `blobs` is an empty one."""

    @pytest.fixture
    def blobs(self) -> BlobStore:
        """The store under test, empty; to be overridden."""
        raise NotImplementedError

    # --- putting and reading ---

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 40])
    @pytest.mark.parametrize("durable", [True, False])
    def test_a_blob_is_read_as_it_was_put(
        self, blobs: BlobStore, data: bytes, *, durable: bool
    ) -> None:
        """The same bytes come back, whole and in ranges."""
        blobs.put_if_absent("log/1", data, durable=durable)
        assert blobs.get("log/1", max_size_bytes=len(data)) == data
        assert blobs.size("log/1") == len(data)
        target = bytearray(len(data))
        blobs.read_into("log/1", 0, target)
        assert target == data

    def test_the_second_put_of_a_key_is_refused_and_changes_nothing(
        self, blobs: BlobStore, tmp_path: Path
    ) -> None:
        """Whatever way the second one takes, the first blob stays."""
        source = tmp_path / "source"
        source.write_bytes(b"from a file")
        blobs.put_if_absent("log/1", b"first")
        for put in (
            lambda: blobs.put_if_absent("log/1", b"second"),
            lambda: blobs.put_if_absent("log/1", b"first", durable=False),
            lambda: blobs.put_stream_if_absent("log/1", [b"sec", b"ond"]),
            lambda: blobs.put_file_if_absent("log/1", source),
        ):
            with pytest.raises(BlobExistsError):
                put()
            assert blobs.get("log/1", max_size_bytes=5) == b"first"
        assert list(blobs.list("")) == [BlobInfo("log/1", 5)]

    def test_a_missing_blob_is_an_error_for_every_reader(self, blobs: BlobStore) -> None:
        """Next to others, in a folder that is there, and in one that is not."""
        blobs.put_if_absent("log/1", b"1")
        for key in ("log/2", "log/10", "packs/x", "head", "log/1/2"):
            for read in _readers(blobs, key):
                with pytest.raises(BlobNotFoundError):
                    read()

    def test_a_blob_above_the_bound_is_refused(self, blobs: BlobStore) -> None:
        """The bound itself is allowed, one byte more is not."""
        blobs.put_if_absent("log/1", b"12345")
        assert blobs.get("log/1", max_size_bytes=5) == b"12345"
        with pytest.raises(CorruptObjectError, match="5 bytes"):
            blobs.get("log/1", max_size_bytes=4)

    def test_ranges_are_exact(self, blobs: BlobStore) -> None:
        """Every range of a small blob, and none that passes its end."""
        data = b"abcde"
        blobs.put_if_absent("packs/1", data)
        for first in range(len(data) + 2):
            for size in range(len(data) + 2):
                target = bytearray(b"-" * size)
                if first + size <= len(data):
                    blobs.read_into("packs/1", first, target)
                    assert target == data[first : first + size]
                else:
                    with pytest.raises(CorruptObjectError):
                        blobs.read_into("packs/1", first, target)

    def test_a_range_is_read_into_buffers_of_any_type(self, blobs: BlobStore) -> None:
        """Item types and dims do not matter, bytes do."""
        blobs.put_if_absent("packs/1", bytes(range(16)))
        target = np.zeros((2, 3), np.uint16)
        blobs.read_into("packs/1", 2, target.data)
        assert target.tobytes() == bytes(range(2, 14))
        blobs.read_into("packs/1", 16, np.zeros((0, 3), np.uint64).data)

    def test_a_range_needs_a_writable_buffer_and_an_offset_from_0(self, blobs: BlobStore) -> None:
        """Both are refused before anything is read."""
        blobs.put_if_absent("packs/1", b"abc")
        with pytest.raises(InputRefusedError):
            blobs.read_into("packs/1", -1, bytearray(1))
        with pytest.raises(InputRefusedError):
            blobs.read_into("packs/1", 0, b"abc")

    @pytest.mark.parametrize(
        "data",
        [
            bytearray(b"abcdef"),
            memoryview(b"abcdef"),
            np.arange(6, dtype=np.uint16).reshape(2, 3).data,
            np.zeros((0, 4), np.uint64).data,
            np.zeros((), np.uint32).data,
        ],
        ids=["bytearray", "memoryview", "two dims", "empty", "no dims"],
    )
    def test_any_contiguous_buffer_can_be_put(
        self, blobs: BlobStore, data: bytearray | memoryview
    ) -> None:
        """The blob is the buffer's bytes."""
        expected = bytes(data)
        blobs.put_if_absent("log/1", data)
        assert blobs.put_stream_if_absent("log/2", [data, data]) == 2 * len(expected)
        assert blobs.get("log/1", max_size_bytes=99) == expected
        assert blobs.get("log/2", max_size_bytes=99) == expected * 2

    def test_later_edits_of_a_buffer_do_not_show(self, blobs: BlobStore) -> None:
        """The caller may reuse its memory as soon as a put returns."""
        data = bytearray(b"before")
        blobs.put_if_absent("log/1", data)
        blobs.overwrite("head", data)
        data[:] = b"after!"
        assert blobs.get("log/1", max_size_bytes=6) == b"before"
        assert blobs.get("head", max_size_bytes=6) == b"before"

    # --- streams and files ---

    def test_a_stream_becomes_one_blob(self, blobs: BlobStore) -> None:
        """Also when the same buffer carries every chunk, and when there is none."""

        def chunks() -> Iterator[bytearray]:
            chunk = bytearray(2)
            for number in range(50):
                chunk[:] = b"%02d" % number
                yield chunk

        expected = b"".join(b"%02d" % number for number in range(50))
        assert blobs.put_stream_if_absent("packs/1", chunks()) == len(expected)
        assert blobs.get("packs/1", max_size_bytes=len(expected)) == expected
        assert blobs.put_stream_if_absent("packs/2", []) == 0
        assert blobs.size("packs/2") == 0

    @pytest.mark.parametrize("error", [ValueError("stop"), OSError(28, "full"), PowerCut()])
    def test_a_stream_that_fails_leaves_no_blob(
        self, blobs: BlobStore, error: BaseException
    ) -> None:
        """The stream's own error comes out, unchanged, and the key is still free."""

        def chunks() -> Iterator[bytes]:
            yield b"part"
            raise error

        with pytest.raises(type(error)) as caught:
            blobs.put_stream_if_absent("packs/1", chunks())
        assert caught.value is error
        assert list(blobs.list("")) == []
        assert blobs.put_stream_if_absent("packs/1", [b"whole"]) == len(b"whole")

    def test_a_file_becomes_a_blob_that_later_edits_do_not_touch(
        self, blobs: BlobStore, tmp_path: Path
    ) -> None:
        """Also through the symbolic links that model caches are made of."""
        data = np.arange(200_000, dtype=np.uint32).tobytes()
        source = tmp_path / "source"
        source.write_bytes(data)
        (tmp_path / "link").symlink_to(source)
        assert blobs.put_file_if_absent("anchors/a/model.safetensors", source) == len(data)
        assert blobs.put_file_if_absent("anchors/b/model.safetensors", tmp_path / "link")
        with source.open("r+b") as file:
            file.write(b"edited")
            file.truncate(5_000)
        for key in ("anchors/a/model.safetensors", "anchors/b/model.safetensors"):
            assert blobs.get(key, max_size_bytes=len(data)) == data

    def test_an_empty_file_becomes_an_empty_blob(self, blobs: BlobStore, tmp_path: Path) -> None:
        """Nothing to copy is no error."""
        (tmp_path / "empty").touch()
        assert blobs.put_file_if_absent("anchors/a/empty", tmp_path / "empty") == 0
        assert blobs.size("anchors/a/empty") == 0

    def test_only_regular_files_are_taken(self, blobs: BlobStore, tmp_path: Path) -> None:
        """A pipe in particular must not make the put wait for a writer."""
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
        for source in (tmp_path, tmp_path / "pipe", tmp_path / "dangling", tmp_path / "nothing"):
            with pytest.raises(InputRefusedError):
                blobs.put_file_if_absent("anchors/a/x", source)
        assert list(blobs.list("")) == []

    # --- hints ---

    def test_hints_are_created_and_replaced(self, blobs: BlobStore) -> None:
        """The last overwrite is what is read, longer or shorter than the one before."""
        for data in (b"12", b"", b"a longer one", b"3"):
            for key in ("head", "receivers/0a-1"):
                blobs.overwrite(key, data)
                assert blobs.get(key, max_size_bytes=99) == data
        assert [info.key for info in blobs.list("")] == ["head", "receivers/0a-1"]

    @pytest.mark.parametrize(
        "key", ["FORMAT", "log/1", "heads", "head/1", "receivers", "receivers/a/b", "packs/head"]
    )
    def test_what_is_immutable_is_never_overwritten(self, blobs: BlobStore, key: str) -> None:
        """Whether it is there or not."""
        with pytest.raises(InputRefusedError):
            blobs.overwrite(key, b"x")
        blobs.put_if_absent(key, b"first")
        with pytest.raises(InputRefusedError):
            blobs.overwrite(key, b"x")
        assert blobs.get(key, max_size_bytes=99) == b"first"

    # --- listing and deleting ---

    def test_a_listing_is_sorted_by_key_and_holds_the_prefix_alone(self, blobs: BlobStore) -> None:
        """Sorted as text: `-` and `.` come before `/`, digits after it."""
        keys = ["a-b/1", "a.b/1", "a/1", "a/10", "a/2", "a0/1", "ab", "b/c/d", "b/c0", "b/c-"]
        for number, key in enumerate(reversed(keys)):
            blobs.put_if_absent(key, b"x" * number)
        sizes = {key: number for number, key in enumerate(reversed(keys))}
        prefixes = {key[:size] for key in keys for size in range(len(key) + 1)} | {"c", "a/1/"}
        for prefix in prefixes:
            expected = [BlobInfo(key, sizes[key]) for key in sorted(keys) if key.startswith(prefix)]
            assert list(blobs.list(prefix)) == expected, prefix

    def test_a_listing_has_no_end_at_a_thousand(self, blobs: BlobStore) -> None:
        """Every key of a large folder is listed once."""
        keys = [f"receipts/{number:05d}" for number in range(2_100)]
        for key in keys:
            blobs.put_if_absent(key, b"", durable=False)
        assert [info.key for info in blobs.list("receipts/")] == keys

    def test_a_listing_survives_that_its_blobs_are_deleted(self, blobs: BlobStore) -> None:
        """This is how a sweep goes."""
        for number in range(20):
            blobs.put_if_absent(f"packs/{number % 4}-1/{number}", b"", durable=False)
        for info in blobs.list("packs/"):
            blobs.delete(info.key)
        assert list(blobs.list("")) == []

    def test_a_deleted_blob_is_gone_and_no_other(self, blobs: BlobStore) -> None:
        """Deleting again is no error, and the key is free again."""
        blobs.put_if_absent("packs/1", b"1")
        blobs.put_if_absent("packs/10", b"10")
        for _ in range(2):
            blobs.delete("packs/1")
            with pytest.raises(BlobNotFoundError):
                blobs.size("packs/1")
        blobs.delete("never/was")
        assert list(blobs.list("")) == [BlobInfo("packs/10", 2)]
        blobs.put_if_absent("packs/1", b"again")
        assert blobs.get("packs/1", max_size_bytes=5) == b"again"

    def test_durability_can_be_confirmed_of_anything(self, blobs: BlobStore) -> None:
        """Of a folder, of part of a name, of what is not there."""
        blobs.put_if_absent("log/1", b"1", durable=False)
        for prefix in ("log/", "log/1", "lo", "", "packs/", "packs/a/b"):
            blobs.confirm_durable(prefix)
        assert blobs.get("log/1", max_size_bytes=1) == b"1"

    def test_files_are_shown_where_there_are_files(self, blobs: BlobStore) -> None:
        """A store without files says so; one with files shows the right one."""
        blobs.put_if_absent("packs/1", b"abc")
        path = blobs.local_path("packs/1")
        assert path is None or path.read_bytes() == b"abc"

    # --- keys ---

    @pytest.mark.parametrize("key", REFUSED_KEYS, ids=ascii)
    def test_a_bad_key_is_refused_by_every_call(
        self, blobs: BlobStore, key: str, tmp_path: Path
    ) -> None:
        """Before anything is touched."""
        source = tmp_path / "source"
        source.touch()
        calls: tuple[Callable[[], object], ...] = (
            *_readers(blobs, key),
            lambda: blobs.put_if_absent(key, b""),
            lambda: blobs.put_if_absent(key, b"", durable=False),
            lambda: blobs.put_stream_if_absent(key, []),
            lambda: blobs.put_file_if_absent(key, source),
            lambda: blobs.overwrite(key, b""),
            lambda: blobs.delete(key),
        )
        for call in calls:
            with pytest.raises(InputRefusedError):
                call()
        assert list(blobs.list("")) == []

    @pytest.mark.parametrize("prefix", REFUSED_PREFIXES, ids=ascii)
    def test_a_bad_prefix_is_refused(self, blobs: BlobStore, prefix: str) -> None:
        """At the call, not at the first step of the listing."""
        with pytest.raises(InputRefusedError):
            blobs.list(prefix)
        with pytest.raises(InputRefusedError):
            blobs.confirm_durable(prefix)

    def test_keys_are_compared_byte_by_byte(self, blobs: BlobStore) -> None:
        """Letters of two cases and two ways to write an accent are different keys."""
        keys = (*STRANGE_KEYS, "anchors/A/x", "anchors/a/x", "anchors/a/X")
        for key in keys:
            blobs.put_if_absent(key, key.encode())
        for key in keys:
            assert blobs.get(key, max_size_bytes=999) == key.encode()
        assert {info.key for info in blobs.list("")} == set(keys)

    # --- concurrency ---

    @pytest.mark.parametrize("durable", [True, False])
    def test_of_many_racers_exactly_one_wins(self, blobs: BlobStore, *, durable: bool) -> None:
        """And the blob is the winner's."""
        start = threading.Barrier(RACER_COUNT)

        def race(racer: int) -> list[int]:
            won = []
            for number in range(RACE_COUNT):
                start.wait()
                try:
                    blobs.put_if_absent(f"log/{number}", b"%d" % racer, durable=durable)
                except BlobExistsError:
                    continue
                won.append(number)
            return won

        with ThreadPoolExecutor(RACER_COUNT) as pool:
            won = list(pool.map(race, range(RACER_COUNT)))
        winners = {number: racer for racer in range(RACER_COUNT) for number in won[racer]}
        assert sorted(number for numbers in won for number in numbers) == list(range(RACE_COUNT))
        for number, racer in winners.items():
            assert blobs.get(f"log/{number}", max_size_bytes=9) == b"%d" % racer

    def test_a_reader_sees_no_blob_or_the_whole_one(self, blobs: BlobStore) -> None:
        """However often it looks while the blob is written, and while a hint is replaced."""
        bodies = [bytes([number]) * 300_000 for number in range(READER_BLOB_COUNT)]
        is_over = threading.Event()

        def read() -> int:
            seen = 0
            while not is_over.is_set():
                for number, body in enumerate(bodies):
                    for key in (f"packs/{number}", "head"):
                        try:
                            data = blobs.get(key, max_size_bytes=len(body))
                        except BlobNotFoundError:
                            continue
                        assert data == (body if key != "head" else data[:1] * len(body))
                        seen += 1
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            try:
                for number, body in enumerate(bodies):
                    blobs.put_if_absent(f"packs/{number}", body, durable=False)
                    blobs.overwrite("head", body)
            finally:
                is_over.set()
            for reader in readers:
                reader.result()


def _readers(blobs: BlobStore, key: str) -> tuple[Callable[[], object], ...]:
    return (
        lambda: blobs.get(key, max_size_bytes=99),
        lambda: blobs.read_into(key, 0, bytearray(1)),
        lambda: blobs.read_into(key, 0, bytearray()),
        lambda: blobs.size(key),
        lambda: blobs.local_path(key),
    )
