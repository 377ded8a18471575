"""The serving gate: what may be served, who waits for whom, and who is told afterwards."""

from __future__ import annotations

import threading

import pytest

from weightstore.errors import NotReadyError
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.gate import SampleVersions, ServedVersion, ServingGate, Wanted
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.serve_policy import TailView
from weightstore.testing.waiting import WAIT_S


def ref(version: int) -> VersionRef:
    return VersionRef(VersionId(version), Sha256(f"{version:064x}"))


def look(newest: int | None) -> TailView:
    return TailView(None if newest is None else VersionId(newest), None, None, 1.0)


@pytest.fixture
def gate() -> ServingGate:
    found = ServingGate()
    found.open(ref(5))
    return found


def refuses(gate: ServingGate, **wanted: int) -> bool:
    try:
        with gate.serving(Wanted(**wanted)):
            return False
    except NotReadyError:
        return True


def test_a_new_gate_is_closed() -> None:
    assert refuses(ServingGate())


def test_a_block_is_told_its_version(gate: ServingGate) -> None:
    with gate.serving() as version:
        assert version == 5


@pytest.mark.parametrize(
    ("wanted", "newest", "is_served"),
    [
        ({"exact": 5}, 5, True),
        ({"exact": 4}, 5, False),
        ({"exact": 6}, 6, False),
        ({"at_least": 5}, 5, True),
        ({"at_least": 4}, 5, True),
        ({"at_least": 6}, 9, False),
        ({"max_lag": 0}, 5, True),
        ({"max_lag": 0}, 6, False),
        ({"max_lag": 2}, 7, True),
        ({"max_lag": 2}, 8, False),
        ({"at_least": 5, "max_lag": 1}, 6, True),
    ],
)
def test_only_what_was_asked_for_is_served(
    gate: ServingGate,
    wanted: dict[str, int],
    newest: int,
    is_served: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    gate.hear(look(newest))
    assert refuses(gate, **wanted) is not is_served


def test_an_older_rumour_of_the_newest_changes_nothing(gate: ServingGate) -> None:
    for newest in (9, 7, None):
        gate.hear(look(newest))
    assert refuses(gate, max_lag=3)


def test_a_refusal_says_why(gate: ServingGate) -> None:
    gate.shut("the bits are a mixture")
    with pytest.raises(NotReadyError, match="the bits are a mixture"), gate.serving():
        raise AssertionError


def test_closing_waits_for_open_blocks(gate: ServingGate) -> None:
    inside, leave, closed = threading.Event(), threading.Event(), []

    def read() -> None:
        with gate.serving():
            inside.set()
            assert leave.wait(WAIT_S)

    reader = threading.Thread(target=read)
    reader.start()
    assert inside.wait(WAIT_S)
    writer = threading.Thread(target=lambda: closed.append(gate.close("a change", 10)))
    writer.start()
    while gate.open_version is not None:
        pass
    assert refuses(gate)
    assert not closed
    leave.set()
    writer.join(WAIT_S)
    reader.join(WAIT_S)
    assert closed == [True]
    gate.open(ref(6))
    assert not refuses(gate, exact=6)


def test_a_block_that_spans_a_stop_is_told_at_its_end(gate: ServingGate) -> None:
    with pytest.raises(NotReadyError, match="inside a serving block"), gate.serving():  # noqa: PT012 -- the end of the block raises
        assert gate.close("a change", 0) is False
        gate.open(ref(6))
    assert not refuses(gate, exact=6)


def test_a_block_that_fails_by_itself_says_that(gate: ServingGate) -> None:
    with pytest.raises(ValueError, match="mine"), gate.serving():  # noqa: PT012 -- as above
        gate.shut("a change")
        raise ValueError("mine")
    assert gate.close("again", 0)


def test_blocks_of_several_threads_are_open_at_once(gate: ServingGate) -> None:
    meet = threading.Barrier(4)

    def read() -> None:
        with gate.serving():
            meet.wait(WAIT_S)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(WAIT_S)
    assert not meet.broken


def test_a_sample_carries_its_versions_in_order() -> None:
    sample = SampleVersions()
    for version, token in [(3, 0), (3, 8), (4, 16), (4, 24), (3, 32)]:
        sample.add(VersionId(version), token)
    assert sample.served == (
        ServedVersion(VersionId(3), 0),
        ServedVersion(VersionId(4), 16),
        ServedVersion(VersionId(3), 32),
    )
