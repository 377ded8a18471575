"""Making a store ends in one store, from any beginning; what is no store is said to be none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typing_extensions import Buffer

from weightstore.errors import (
    BlobOutcomeUnknownError,
    CorruptLogError,
    InputRefusedError,
    NotAStoreError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.canonical import encode_json
from weightstore.format.format_file import decode_format_file
from weightstore.format.keys import log_key
from weightstore.format.records import InitRecord
from weightstore.history.log import Log
from weightstore.history.store_format import check_place, open_store
from weightstore.ids import Slot, StoreId
from weightstore.settings import Limits
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Method, RecordingBlobs
from weightstore.testing.toy_store import ToyStore


def opened(blobs: MemoryBlobStore) -> StoreId:
    return open_store(blobs, Log(blobs, Limits()))


def test_making_a_store_is_repeatable_and_opening_finds_it() -> None:
    blobs = MemoryBlobStore()
    first = ToyStore(blobs, 1).create()
    before = [info.key for info in blobs.list("")]
    assert ToyStore(blobs, 2).create() == first
    assert [info.key for info in blobs.list("")] == before
    assert opened(blobs) == first
    data = blobs.get("FORMAT", max_size_bytes=1000)
    assert decode_format_file(data, location="x").store_id == first
    record = Log(blobs, Limits()).stored_at(Slot(0)).record
    assert isinstance(record, InitRecord)
    assert (record.store_id, record.features) == (first, ())


def test_a_place_without_a_store_says_what_to_do() -> None:
    with pytest.raises(NotAStoreError) as caught:
        opened(MemoryBlobStore())
    assert "weightstore init" in caught.value.do


def test_a_place_with_other_things_is_refused_before_anything_is_written() -> None:
    blobs = MemoryBlobStore()
    blobs.put_if_absent("packs/mine", b"my thesis")
    with pytest.raises(InputRefusedError):
        check_place(blobs, Log(blobs, Limits()))
    with pytest.raises(InputRefusedError) as caught:
        ToyStore(blobs).create()
    assert caught.value.facts["found"] == "packs/mine"
    assert [info.key for info in blobs.list("")] == ["packs/mine"]


def test_a_checkpoint_directory_on_a_disk_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputRefusedError):
        ToyStore(LocalBlobStore(tmp_path)).create()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "model-00001-of-00002.safetensors",
    ]


def test_what_a_cut_probe_left_behind_is_in_nobodys_way() -> None:
    blobs = MemoryBlobStore()
    blobs.put_if_absent("probe/" + "a" * 32, b"first")
    assert check_place(blobs, Log(blobs, Limits())) is None
    made = ToyStore(blobs).create()
    assert check_place(blobs, Log(blobs, Limits())) == made


def test_a_store_whose_making_was_cut_is_none_until_it_is_finished() -> None:
    blobs = MemoryBlobStore()
    first = ToyStore(blobs, 1).create()
    blobs.delete(log_key(Slot(0)))
    with pytest.raises(NotAStoreError, match="cut"):
        opened(blobs)
    assert ToyStore(blobs, 2).create() == first
    assert opened(blobs) == first


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", NotAStoreError),
        (b"weights", NotAStoreError),
        (b"x" * 70_000, NotAStoreError),
        (encode_json({"format": 1, "magic": "other", "store_id": "a" * 32}), NotAStoreError),
        (
            encode_json({"format": 2, "magic": "weightstore", "store_id": "a" * 32}),
            UpgradeRequiredError,
        ),
    ],
)
def test_a_format_file_of_something_else_is_refused(
    body: bytes, kind: type[WeightStoreError]
) -> None:
    blobs = MemoryBlobStore()
    blobs.put_if_absent("FORMAT", body)
    with pytest.raises(kind):
        opened(blobs)
    with pytest.raises(kind):
        ToyStore(blobs).create()
    assert [info.key for info in blobs.list("")] == ["FORMAT"]


def test_a_log_of_another_store_is_refused() -> None:
    blobs, other = MemoryBlobStore(), MemoryBlobStore()
    ToyStore(blobs, 1).create()
    ToyStore(other, 2).create()
    blobs.delete(log_key(Slot(0)))
    key = log_key(Slot(0))
    blobs.put_if_absent(key, other.get(key, max_size_bytes=5000))
    with pytest.raises(CorruptLogError):
        opened(blobs)
    with pytest.raises(CorruptLogError):
        ToyStore(blobs, 3).create()


def test_a_format_file_that_was_found_is_made_durable_before_the_log_begins() -> None:
    inner = MemoryBlobStore()
    ToyStore(inner, 1).create()
    inner.delete(log_key(Slot(0)))
    blobs = RecordingBlobs(inner)
    ToyStore(blobs, 2).create()
    methods = [(call.method, call.key) for call in blobs.calls]
    confirmed = methods.index((Method.CONFIRM, ""))
    assert confirmed < methods.index((Method.PUT, log_key(Slot(0))))


class RacingBlobs(MemoryBlobStore):
    """Somebody else makes the store just before one call of ours."""

    def __init__(self, call: str) -> None:
        super().__init__()
        self.call = call
        self.other: StoreId | None = None

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        self._race(f"put {key}")
        super().put_if_absent(key, data, durable=durable)

    def list(self, prefix: str, /):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self._race("list")
        return super().list(prefix)

    def _race(self, call: str) -> None:
        if self.other is None and call == self.call:
            self.other = StoreId("")
            self.other = ToyStore(self, "other").create()


@pytest.mark.parametrize("call", ["list", "put FORMAT", f"put {log_key(Slot(0))}"])
def test_two_makers_at_once_end_with_one_store(call: str) -> None:
    blobs = RacingBlobs(call)
    made = ToyStore(blobs, "ours").create()
    assert blobs.other == made == opened(blobs)


class LossyFormat(MemoryBlobStore):
    """Loses the answers, or the requests, of the first writes of FORMAT."""

    def __init__(self, *, count: int, lands: bool) -> None:
        super().__init__()
        self.count = count
        self.lands = lands

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        if key == "FORMAT" and self.count:
            self.count -= 1
            if self.lands:
                super().put_if_absent(key, data, durable=durable)
            raise BlobOutcomeUnknownError("no answer")
        super().put_if_absent(key, data, durable=durable)


@pytest.mark.parametrize(("count", "lands"), [(1, True), (1, False), (2, False)])
def test_a_lost_answer_for_the_format_file_is_resolved_by_reading(
    count: int, *, lands: bool
) -> None:
    blobs = LossyFormat(count=count, lands=lands)
    assert ToyStore(blobs).create() == opened(blobs)


def test_a_format_file_that_is_never_answered_stays_unknown() -> None:
    with pytest.raises(BlobOutcomeUnknownError):
        ToyStore(LossyFormat(count=9, lands=False)).create()
