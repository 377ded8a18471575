"""Stores that fail on purpose: at a chosen call, or by a written-down schedule.

All of them wrap any `BlobStore` and see every call before the wrapped store does.
"""

from __future__ import annotations

import enum
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, assert_never

from typing_extensions import Buffer

from weightstore.errors import (
    BlobOutcomeUnknownError,
    StorageFailedError,
    WeightStoreError,
)
from weightstore.storage.blobs import BlobInfo, BlobStore
from weightstore.storage.buffers import byte_view

CUT_COUNT_MAX = 10_000
"""A run that outlives this many cuts of one kind is taken for endless."""

_Result = TypeVar("_Result")


class PowerCut(BaseException):
    """The power is gone.

    No `Exception`: code that tidies up after errors must not get to tidy up after this one.
    """


class Method(enum.Enum):
    """A call that a store can get; `CHUNK` is one step of the iterable of a stream."""

    GET = "get"
    READ_INTO = "read_into"
    SIZE = "size"
    PUT = "put_if_absent"
    PUT_STREAM = "put_stream_if_absent"
    PUT_FILE = "put_file_if_absent"
    OVERWRITE = "overwrite"
    LIST = "list"
    DELETE = "delete"
    CONFIRM = "confirm_durable"
    LOCAL_PATH = "local_path"
    CHUNK = "chunk"

    @property
    def is_write(self) -> bool:
        """Whether an answer that is lost leaves something to find out."""
        return self in _WRITES


_WRITES = frozenset(
    {Method.PUT, Method.PUT_STREAM, Method.PUT_FILE, Method.OVERWRITE, Method.DELETE}
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its number from 0, what it was, and the key or prefix."""

    index: int
    method: Method
    key: str


class When(enum.Enum):
    """On which side of a call's effect the power is cut."""

    BEFORE = "before"
    AFTER = "after"


class RecordingBlobs:
    """A store that writes down every call, for counting and for showing.

    Attributes:
        calls: What was called so far, in order.
    """

    def __init__(self, inner: BlobStore) -> None:
        self.inner = inner
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        """Where the wrapped store is."""
        return self.inner.location

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        """See `BlobStore.get`."""
        return self._call(
            Method.GET, key, lambda: self.inner.get(key, max_size_bytes=max_size_bytes)
        )

    def read_into(self, key: str, offset: int, target: Buffer, /) -> None:
        """See `BlobStore.read_into`."""
        self._call(Method.READ_INTO, key, lambda: self.inner.read_into(key, offset, target))

    def size(self, key: str, /) -> int:
        """See `BlobStore.size`."""
        return self._call(Method.SIZE, key, lambda: self.inner.size(key))

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """See `BlobStore.put_if_absent`."""
        sent = bytes(byte_view(data))  # a delayed request carries what was sent, not what is now
        self._call(Method.PUT, key, lambda: self.inner.put_if_absent(key, sent, durable=durable))

    def put_stream_if_absent(self, key: str, chunks: Iterable[Buffer], /) -> int:
        """See `BlobStore.put_stream_if_absent`; each chunk is a call of its own, too."""
        stepped = self._stepped(key, chunks)
        return self._call(
            Method.PUT_STREAM, key, lambda: self.inner.put_stream_if_absent(key, stepped)
        )

    def put_file_if_absent(self, key: str, source: Path, /) -> int:
        """See `BlobStore.put_file_if_absent`."""
        return self._call(Method.PUT_FILE, key, lambda: self.inner.put_file_if_absent(key, source))

    def overwrite(self, key: str, data: Buffer, /) -> None:
        """See `BlobStore.overwrite`."""
        sent = bytes(byte_view(data))
        self._call(Method.OVERWRITE, key, lambda: self.inner.overwrite(key, sent))

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        """See `BlobStore.list`; the listing is read whole at once."""
        return iter(self._call(Method.LIST, prefix, lambda: tuple(self.inner.list(prefix))))

    def delete(self, key: str, /) -> None:
        """See `BlobStore.delete`."""
        self._call(Method.DELETE, key, lambda: self.inner.delete(key))

    def confirm_durable(self, prefix: str, /) -> None:
        """See `BlobStore.confirm_durable`."""
        self._call(Method.CONFIRM, prefix, lambda: self.inner.confirm_durable(prefix))

    def local_path(self, key: str, /) -> Path | None:
        """See `BlobStore.local_path`."""
        return self._call(Method.LOCAL_PATH, key, lambda: self.inner.local_path(key))

    def _stepped(self, key: str, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        for chunk in chunks:
            yield self._call(Method.CHUNK, key, lambda given=chunk: given)  # type: ignore[misc]

    def _call(self, method: Method, key: str, effect: Callable[[], _Result]) -> _Result:
        """Write one call down and let it happen."""
        with self._lock:
            call = Call(len(self.calls), method, key)
            self.calls.append(call)
        return self._happen(call, effect)

    def _happen(self, call: Call, effect: Callable[[], _Result]) -> _Result:
        """Let a call happen; what the stores below change."""
        del call
        return effect()


class CutBlobs(RecordingBlobs):
    """A store whose power is cut at one call, and which then refuses every other.

    Args:
        inner: The store that outlives the cut.
        cut_at: Number of the call, from 0.
        when: Before the call has its effect, or right after.
    """

    def __init__(self, inner: BlobStore, cut_at: int, when: When) -> None:
        super().__init__(inner)
        self._cut_at = cut_at
        self._when = when
        self._dead = threading.Event()

    @property
    def cut(self) -> Call | None:
        """The call at which the power was cut, or None if it was not yet."""
        return self.calls[self._cut_at] if self._dead.is_set() else None

    def _happen(self, call: Call, effect: Callable[[], _Result]) -> _Result:
        is_cut = call.index == self._cut_at
        if self._dead.is_set() or (is_cut and self._when is When.BEFORE):
            self._dead.set()
            raise PowerCut
        try:
            return effect()
        finally:
            # The cut comes whatever the answer would have been, an error too. And a call of
            # another thread may have been under way when the power went: it had its effect,
            # and nobody is left to hear of it.
            if self._dead.is_set() or is_cut:
                self._dead.set()
                raise PowerCut


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a run was cut, and the store as the cut left it.

    Attributes:
        call: The call; its `index` is the number of the cut.
        when: On which side of the call's effect.
        blobs: The store, alive again: open it, recover, and check.
    """

    call: Call
    when: When
    blobs: BlobStore


def cuts(prepare: Callable[[], BlobStore], run: Callable[[BlobStore], object]) -> Iterator[Cut]:
    """Cut a run at every storage call, before and after its effect, until it outlives the cut.

    Args:
        prepare: Makes a fresh store in the state that the run starts from; not cut.
        run: What is cut. It gets a store that dies at the cut.

    Yields:
        Each cut, once the run has died of it.

    Raises:
        AssertionError: the run came to its end although the power was cut: something in it
            swallowed the `PowerCut`.
    """
    for when in When:
        for index in range(CUT_COUNT_MAX):
            inner = prepare()
            blobs = CutBlobs(inner, index, when)
            try:
                run(blobs)
            except PowerCut:
                assert blobs.cut is not None
                yield Cut(blobs.cut, when, inner)
                continue
            assert blobs.cut is None, f"{blobs.cut} was cut, and the run went on"
            break
        else:
            raise AssertionError(f"the run makes more than {CUT_COUNT_MAX} calls")


class Fault(enum.Enum):
    """What can become of a request to a store that is far away.

    Members:
        LOST_REQUEST: It never arrived.
        LOST_ANSWER: It arrived; what came of it was not heard.
        REPEATED: The answer was lost, and a library below sent the request again: a put
            finds the blob that it has made itself.
        DELAYED: Nothing was heard; it arrives before a later call of the schedule.
        UNAVAILABLE: It was turned away (as an object store's 503); a clear no.
    """

    LOST_REQUEST = "lost_request"
    LOST_ANSWER = "lost_answer"
    REPEATED = "repeated"
    DELAYED = "delayed"
    UNAVAILABLE = "unavailable"


class LossyBlobs(RecordingBlobs):
    """A store that loses requests and answers by a schedule, the same in every run.

    A write without an answer raises `BlobOutcomeUnknownError`, as any real one does; a read
    without an answer raises `StorageFailedError`.

    Args:
        inner: The store behind it.
        schedule: The fault of each call by its number, or a function of the call.
        delay_count: How many calls later a `DELAYED` request arrives.
    """

    def __init__(
        self,
        inner: BlobStore,
        schedule: Mapping[int, Fault] | Callable[[Call], Fault | None],
        *,
        delay_count: int = 3,
    ) -> None:
        super().__init__(inner)
        self._fault_of = schedule if callable(schedule) else lambda call: schedule.get(call.index)
        self._delay_count = delay_count
        self._delayed: list[tuple[int, Callable[[], object]]] = []

    def deliver_all(self) -> None:
        """Let every delayed request arrive now."""
        self._deliver(None)

    def _happen(self, call: Call, effect: Callable[[], _Result]) -> _Result:
        self._deliver(call.index)
        fault = None if call.method is Method.CHUNK else self._fault_of(call)
        match fault:
            case None:
                return effect()
            case Fault.UNAVAILABLE:
                raise StorageFailedError(f"{call.method.value} {call.key}: slow down (503)")
            case Fault.LOST_REQUEST:
                raise _no_answer(call)
            case Fault.DELAYED:
                with self._lock:
                    self._delayed.append((call.index + self._delay_count, effect))
                raise _no_answer(call)
            case Fault.LOST_ANSWER:
                _arrive(effect)
                raise _no_answer(call)
            case Fault.REPEATED:
                _arrive(effect)
                return effect()
            case _:
                assert_never(fault)

    def _deliver(self, index: int | None) -> None:
        with self._lock:
            due = [late for late in self._delayed if index is None or late[0] <= index]
            self._delayed = [late for late in self._delayed if late not in due]
        for _, effect in due:
            _arrive(effect)


def every(fault: Fault, nth: int, *, first: int = 0) -> Callable[[Call], Fault | None]:
    """A schedule with the same fault at each nth call."""
    return lambda call: fault if call.index >= first and (call.index - first) % nth == 0 else None


def writes_in_turn(*faults: Fault | None) -> Callable[[Call], Fault | None]:
    """A schedule that goes through faults in turn, one for each write; reads go well."""
    turns = itertools.cycle(faults)
    return lambda call: next(turns) if call.method.is_write else None


def _arrive(effect: Callable[[], object]) -> None:
    """A request reaches the store; nobody hears what came of it, an error included."""
    with suppress(WeightStoreError):
        effect()


def _no_answer(call: Call) -> BlobOutcomeUnknownError | StorageFailedError:
    message = f"{call.method.value} {call.key}: no answer"
    if call.method.is_write or call.method is Method.CONFIRM:
        return BlobOutcomeUnknownError(
            message, do="Read the key before anything else.", facts={"key": call.key}
        )
    return StorageFailedError(message, do="Repeat.", facts={"key": call.key})
