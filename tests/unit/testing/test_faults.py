"""The stores that fail on purpose fail as they say, and keep the contract when they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from weightstore.errors import (
    BlobExistsError,
    BlobNotFoundError,
    BlobOutcomeUnknownError,
    StorageFailedError,
)
from weightstore.storage.blobs import BlobInfo, BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.contract import BlobStoreContract
from weightstore.testing.faults import (
    Call,
    CutBlobs,
    Fault,
    LossyBlobs,
    Method,
    PowerCut,
    RecordingBlobs,
    When,
    cuts,
    every,
    writes_in_turn,
)


class TestRecordingBlobs(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return RecordingBlobs(MemoryBlobStore())


class TestCutBlobsBeforeTheCut(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return CutBlobs(MemoryBlobStore(), 1_000_000_000, When.BEFORE)


class TestLossyBlobsWithoutLosses(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return LossyBlobs(MemoryBlobStore(), {})


def _every_call(blobs: BlobStore, source: Path) -> dict[Method, Callable[[], object]]:
    return {
        Method.GET: lambda: blobs.get("log/1", max_size_bytes=9),
        Method.READ_INTO: lambda: blobs.read_into("log/1", 0, bytearray(1)),
        Method.SIZE: lambda: blobs.size("log/1"),
        Method.PUT: lambda: blobs.put_if_absent("log/2", b"2"),
        Method.PUT_STREAM: lambda: blobs.put_stream_if_absent("packs/1", [b"1", b"2"]),
        Method.PUT_FILE: lambda: blobs.put_file_if_absent("packs/2", source),
        Method.OVERWRITE: lambda: blobs.overwrite("head", b"1"),
        Method.LIST: lambda: blobs.list(""),
        Method.DELETE: lambda: blobs.delete("log/2"),
        Method.CONFIRM: lambda: blobs.confirm_durable("log/"),
        Method.LOCAL_PATH: lambda: blobs.local_path("log/1"),
    }


@pytest.fixture
def inner() -> BlobStore:
    blobs = MemoryBlobStore()
    blobs.put_if_absent("log/1", b"1")
    return blobs


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"source")
    return path


def test_every_method_of_a_store_is_seen(inner: BlobStore, source: Path) -> None:
    recording = RecordingBlobs(inner)
    calls = _every_call(recording, source)
    for call in calls.values():
        call()
    assert {call.method for call in recording.calls} == set(Method) == {*calls, Method.CHUNK}
    assert [call.index for call in recording.calls] == list(range(len(recording.calls)))
    methods = {name for name in vars(BlobStore) if not name.startswith("_")} - {"location"}
    assert {method.value for method in calls} == methods


def test_after_a_cut_every_call_is_refused(inner: BlobStore, source: Path) -> None:
    for method in Method:
        if method is Method.CHUNK:
            continue
        blobs = CutBlobs(inner, 0, When.AFTER)
        with pytest.raises(PowerCut):
            blobs.size("log/1")
        with pytest.raises(PowerCut):
            _every_call(blobs, source)[method]()
        assert blobs.cut == Call(0, Method.SIZE, "log/1")
    assert list(inner.list("")) == [BlobInfo("log/1", 1)]


def test_a_cut_is_before_or_after_the_effect(inner: BlobStore) -> None:
    with pytest.raises(PowerCut):
        CutBlobs(inner, 0, When.BEFORE).put_if_absent("log/2", b"2")
    with pytest.raises(BlobNotFoundError):
        inner.size("log/2")
    with pytest.raises(PowerCut):
        CutBlobs(inner, 0, When.AFTER).put_if_absent("log/2", b"2")
    assert inner.size("log/2") == 1


@pytest.mark.parametrize("when", When)
def test_a_call_that_would_raise_is_cut_all_the_same(inner: BlobStore, when: When) -> None:
    """Else a walk would end at the first missing key and look as if it had come through."""
    with pytest.raises(PowerCut):
        CutBlobs(inner, 0, when).size("log/9")
    with pytest.raises(PowerCut):
        CutBlobs(inner, 0, when).put_if_absent("log/1", b"other")
    with pytest.raises(PowerCut):
        CutBlobs(inner, 1, when).put_stream_if_absent("log/1", [b"other"])


def test_a_walk_goes_past_calls_that_raise() -> None:
    def run(blobs: BlobStore) -> None:
        for key in ("log/0", "log/1"):
            try:
                blobs.size(key)
            except BlobNotFoundError:
                blobs.put_if_absent(key, b"")

    seen = [(cut.when, cut.call.index) for cut in cuts(MemoryBlobStore, run)]
    assert seen == [(when, index) for when in When for index in range(4)]


def test_a_power_cut_is_no_exception_that_code_tidies_up_after() -> None:
    assert not issubclass(PowerCut, Exception)


def test_cuts_walk_through_every_call_on_both_sides() -> None:
    def run(blobs: BlobStore) -> None:
        blobs.put_if_absent("log/0", b"0")
        blobs.put_stream_if_absent("packs/1", [b"1", b"2"])
        blobs.overwrite("head", b"0")

    seen = [(cut.when, cut.call.index, cut.call.method) for cut in cuts(MemoryBlobStore, run)]
    walk = [Method.PUT, Method.PUT_STREAM, Method.CHUNK, Method.CHUNK, Method.OVERWRITE]
    # The stream's own effect comes after its chunks, so a cut after it is walked in its place.
    assert seen == [(when, index, method) for when in When for index, method in enumerate(walk)]


def test_a_cut_in_the_middle_of_a_stream_leaves_no_blob() -> None:
    for cut in cuts(MemoryBlobStore, lambda blobs: blobs.put_stream_if_absent("x/1", [b"1", b"2"])):
        is_whole = cut.call.method is Method.PUT_STREAM and cut.when is When.AFTER
        assert [info.key for info in cut.blobs.list("")] == (["x/1"] if is_whole else [])


def test_code_that_swallows_a_power_cut_is_found_out() -> None:
    def run(blobs: BlobStore) -> None:
        try:
            blobs.put_if_absent("log/0", b"0")
        except BaseException:  # noqa: BLE001 -- what this test is about
            return

    with pytest.raises(AssertionError, match="the run went on"):
        list(cuts(MemoryBlobStore, run))


def test_every_cut_starts_from_a_fresh_store() -> None:
    def prepare() -> BlobStore:
        blobs = MemoryBlobStore()
        blobs.put_if_absent("log/0", b"0")
        return blobs

    for cut in cuts(prepare, lambda blobs: blobs.put_if_absent("log/1", b"1")):
        assert cut.blobs.size("log/0") == 1


def test_threads_all_die_of_one_cut(inner: BlobStore) -> None:
    blobs = CutBlobs(inner, 10, When.BEFORE)

    def work(number: int) -> None:
        for step in count():
            blobs.put_if_absent(f"packs/{number}-{step}", b"")

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, number) for number in range(4)]:
            with pytest.raises(PowerCut):
                future.result()
    assert len(list(inner.list("packs/"))) <= 10


def test_lost_requests_have_no_effect_and_lost_answers_have_it(inner: BlobStore) -> None:
    for fault, is_there in ((Fault.LOST_REQUEST, False), (Fault.LOST_ANSWER, True)):
        lossy = LossyBlobs(inner, {0: fault})
        key = f"log/{fault.value}"
        with pytest.raises(BlobOutcomeUnknownError):
            lossy.put_if_absent(key, b"x")
        assert (key in [info.key for info in inner.list("log/")]) == is_there


def test_a_lost_refusal_is_as_unknown_as_a_lost_success(inner: BlobStore) -> None:
    with pytest.raises(BlobOutcomeUnknownError):
        LossyBlobs(inner, {0: Fault.LOST_ANSWER}).put_if_absent("log/1", b"other")
    assert inner.get("log/1", max_size_bytes=9) == b"1"


def test_reads_without_an_answer_can_just_be_repeated(inner: BlobStore) -> None:
    for fault in (Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.DELAYED, Fault.UNAVAILABLE):
        lossy = LossyBlobs(inner, {0: fault})
        with pytest.raises(StorageFailedError):
            lossy.get("log/1", max_size_bytes=9)
        assert lossy.get("log/1", max_size_bytes=9) == b"1"


def test_a_repeated_put_finds_its_own_blob(inner: BlobStore) -> None:
    with pytest.raises(BlobExistsError):
        LossyBlobs(inner, {0: Fault.REPEATED}).put_if_absent("log/2", b"mine")
    assert inner.get("log/2", max_size_bytes=9) == b"mine"


def test_a_delayed_put_arrives_later_with_what_was_sent(inner: BlobStore) -> None:
    lossy = LossyBlobs(inner, {0: Fault.DELAYED}, delay_count=2)
    data = bytearray(b"sent")
    with pytest.raises(BlobOutcomeUnknownError):
        lossy.put_if_absent("log/2", data)
    data[:] = b"gone"
    with pytest.raises(BlobNotFoundError):
        lossy.size("log/2")
    assert lossy.get("log/2", max_size_bytes=9) == b"sent"


def test_a_delayed_put_that_comes_too_late_changes_nothing(inner: BlobStore) -> None:
    lossy = LossyBlobs(inner, {0: Fault.DELAYED}, delay_count=100)
    with pytest.raises(BlobOutcomeUnknownError):
        lossy.put_if_absent("log/2", b"late")
    lossy.put_if_absent("log/2", b"other")
    lossy.deliver_all()
    assert inner.get("log/2", max_size_bytes=9) == b"other"


def test_a_delayed_read_of_nothing_disturbs_nobody(inner: BlobStore) -> None:
    lossy = LossyBlobs(inner, {0: Fault.DELAYED})
    with pytest.raises(StorageFailedError):
        lossy.size("log/9")
    lossy.deliver_all()


def test_an_unavailable_store_says_a_clear_no(inner: BlobStore) -> None:
    with pytest.raises(StorageFailedError, match="503"):
        LossyBlobs(inner, {0: Fault.UNAVAILABLE}).put_if_absent("log/2", b"x")
    with pytest.raises(BlobNotFoundError):
        inner.size("log/2")


def test_schedules_are_the_same_in_every_run() -> None:
    def outcomes() -> Iterator[str]:
        schedule = writes_in_turn(Fault.LOST_ANSWER, None, Fault.UNAVAILABLE)
        lossy = LossyBlobs(MemoryBlobStore(), schedule)
        for number in range(6):
            try:
                lossy.put_if_absent(f"log/{number}", b"")
            except (BlobOutcomeUnknownError, StorageFailedError) as error:
                yield type(error).__name__
            else:
                yield "ok"

    turn = ["BlobOutcomeUnknownError", "ok", "StorageFailedError"]
    assert list(outcomes()) == list(outcomes()) == turn * 2


def test_every_nth_call_has_the_fault() -> None:
    schedule = every(Fault.UNAVAILABLE, 3, first=1)
    hit = [index for index in range(9) if schedule(Call(index, Method.GET, "")) is not None]
    assert hit == [1, 4, 7]
