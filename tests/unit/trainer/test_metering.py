"""A put says how far it is: every byte that is read once, and a full form that is written."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import numpy as np
import pytest

from weightstore.history.progress import no_progress
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.store_lab import store_on
from weightstore.trainer.inputs import MappedInputs, open_source
from weightstore.trainer.metering import metered

Told = list[tuple[str, int, int]]


class Ear:
    """Remembers what it is told; two at once are an error."""

    def __init__(self) -> None:
        self.told: Told = []
        self._lock = threading.Lock()

    def __call__(self, phase: str, done_bytes: int, total_bytes: int, /) -> None:
        assert self._lock.acquire(blocking=False)
        self.told.append((phase, done_bytes, total_bytes))
        self._lock.release()

    def phases(self) -> dict[str, Told]:
        found: dict[str, Told] = {}
        for each in self.told:
            found.setdefault(each[0], []).append(each)
        return found


def weights(value: float) -> dict[str, np.ndarray]:
    return {
        "large": np.full(3_000_000, value, np.float32),
        "small": np.full(10, value, np.float32),
        "scalar": np.array(value, np.float32),
    }


SIZE_BYTES = 4 * 3_000_011


@pytest.mark.parametrize("anchor", [False, True])
def test_a_put_tells_of_every_byte_once(*, anchor: bool) -> None:
    with store_on(MemoryBlobStore()) as store, store.trainer("run") as session:
        first, second = Ear(), Ear()
        session.put_step(0, weights(0), progress=first).result()
        session.put_step(1, weights(1), anchor=anchor, progress=second).result()
    assert set(first.phases()) == {"read", "write"}
    assert set(second.phases()) == ({"read", "write"} if anchor else {"read"})
    for ear in (first, second):
        for phase, told in ear.phases().items():
            done = [each[1] for each in told]
            assert done == sorted(done), phase
            assert done[-1] == told[-1][2], phase
        assert ear.phases()["read"][-1] == ("read", SIZE_BYTES, SIZE_BYTES)


def test_a_repeat_that_compares_reads_once_too() -> None:
    with store_on(MemoryBlobStore()) as store, store.trainer("run") as session:
        session.put_step(0, weights(0)).result()
        ear = Ear()
        assert session.put_step(0, weights(0), progress=ear).report().repeated
    assert ear.phases()["read"][-1] == ("read", SIZE_BYTES, SIZE_BYTES)


def test_ranges_that_are_read_again_do_not_count() -> None:
    ear = Ear()
    with ExitStack() as at_end:
        inputs = open_source(weights(0), at_end=at_end, limits=Limits())
        found = metered(inputs, ear)
        assert isinstance(found, MappedInputs)
        for _ in range(3):
            found.tensors["small"].read(0, 10)
    assert [done for _, done, _ in ear.told] == [40, 40, 40]


def test_who_does_not_ask_and_a_stream_pay_nothing() -> None:
    with ExitStack() as at_end:
        inputs = open_source(weights(0), at_end=at_end, limits=Limits())
        assert metered(inputs, no_progress) is inputs
        stream = open_source(iter(weights(0).items()), at_end=at_end, limits=Limits())
        assert metered(stream, Ear()) is stream
