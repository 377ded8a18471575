"""Host agents and ranks as real processes, killed at every point of their work.

A rank whose agent dies goes on by itself, bit for bit; the next agent at the same path is found;
and a rank that dies leaves nothing behind in its agent.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.layout.tensors import HostTensor, Units
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.client import LONGEST_BACKOFF_S, AgentClient
from weightstore.receiver.host_agent.messages import PackRequest, encode_message
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.local import LocalBlobStore
from weightstore.testing import totals
from weightstore.testing.agent_lab import WAIT_S, AgentForks, with_agent
from weightstore.testing.real_versions import (
    RealVersions,
    mixed_schema,
    next_weights,
    random_weights,
)

pytestmark = pytest.mark.crash

VERSION_COUNT = 5
POINT_COUNT_MAX = 500
"""An agent that has more points in two refits than this is taken for endless."""
RANK = """
import sys, threading
from pathlib import Path
from weightstore.clock import SystemClock
from weightstore.receiver.host_agent.client import AgentClient
from weightstore.receiver.host_agent.messages import decode_request
place, store_id, request = sys.argv[1:]
client = AgentClient(Path(place), lambda: store_id, clock=SystemClock(), size_bytes_max=1 << 16,
                     wait_s=20, answer_s=20)
grant = client.ask(decode_request(request.encode()))
print("holds", flush=True)
threading.Event().wait()
"""


class Place:
    """A store on disk with five versions, and what each of them holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.socket = folder / "agent"
        self._socket_count = 0
        schema = mixed_schema()
        self.blobs = LocalBlobStore(self.folder, create=True, entropy=SystemEntropy())
        self.versions = RealVersions(self.blobs, schema, pieces_per_pack=3, piece_unit_count=40_000)
        self.weights = {1: random_weights(schema, 0)}
        self.versions.put(self.weights[1])
        for version in range(2, VERSION_COUNT + 1):
            self.weights[version] = next_weights(self.weights[version - 1], version)
            self.versions.put(self.weights[version])
        store = self.versions.store
        self.source = VersionSource(self.blobs, store.log, store.settings)

    def next_socket(self) -> None:
        """Another path, where no agent has been."""
        self._socket_count += 1
        self.socket = self.folder.with_name(f"agent-{self._socket_count}")

    def receiver(self) -> tuple[Receiver, dict[str, Units]]:
        """A rank at version 1, its agent at this place's socket."""
        arrays = {
            spec.name: np.zeros(spec.unit_count, spec.dtype.unit_dtype)
            for spec in self.versions.schema.tensors
        }
        given: dict[str, Units | HostTensor] = dict(arrays)
        receiver = Receiver(
            self.source,
            partial(place_arrays, targets=given, boxes={}),
            clock=self.versions.store.clock,
            settings=with_agent(self.socket),
        )
        receiver.refit(1)
        return receiver, arrays

    def check(self, arrays: dict[str, Units], version: int) -> None:
        for name, units in arrays.items():
            assert np.array_equal(units, self.weights[version][name]), (name, version)

    def request(self) -> PackRequest:
        manifest = self.versions.plan().deltas[0]
        assert manifest.delta is not None
        pack = manifest.delta.packs[0]
        return PackRequest.of(manifest, pack, 20_000)


@pytest.fixture(scope="module")
def forks() -> Iterator[AgentForks]:
    with AgentForks() as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One store for all: neither agents nor ranks write to it."""
    return Place(tmp_path_factory.mktemp("agents"))


def die_in_a_refit(forks: AgentForks, place: Place, die_at: int) -> str:
    """Refit twice through an agent that dies, then once through the next one.

    Returns:
        Where it died; empty if it outlived both.
    """
    receiver, arrays = place.receiver()
    doomed = forks.start(place.folder, place.socket, die_at=die_at)
    reasons = []
    for version in (2, 3):
        report = receiver.refit(version)
        assert report.way.value == "change"
        place.check(arrays, version)
        reasons.append(report.reason)
    forks.end(doomed)
    # After its end: the last points come when the rank has its answer already.
    died_at = forks.died_at()
    if not died_at:
        assert reasons == ["", ""]
        return ""
    place.versions.store.clock.sleep(LONGEST_BACKOFF_S)
    following = forks.start(place.folder, place.socket)
    report = receiver.refit(5)
    assert (report.way.value, report.reason, report.size_bytes.wire) == ("change", "", 0)
    place.check(arrays, 5)
    forks.end(following)
    return died_at


def kills(forks: AgentForks, place: Place, first: int, stride: int) -> list[str]:
    """Let an agent die at every so-manieth point of its work, until it outlives that."""
    points: list[str] = []
    for die_at in range(first, POINT_COUNT_MAX, stride):
        place.next_socket()
        died_at = die_in_a_refit(forks, place, die_at)
        if not died_at:
            break
        points.append(died_at)
    else:
        raise AssertionError(f"an agent has outlived none of {POINT_COUNT_MAX} points")
    totals.add("sigkills", len(points))
    return points


def test_an_agent_that_dies_now_and_then_costs_its_ranks_nothing(
    forks: AgentForks, place: Place
) -> None:
    assert len(kills(forks, place, 3, 7)) >= 10


@pytest.mark.slow
def test_an_agent_that_dies_at_any_point_costs_its_ranks_nothing(
    forks: AgentForks, place: Place
) -> None:
    points = kills(forks, place, 0, 1)
    expected = {
        f"{side} {name}"
        for side in ("before", "after")
        for name in ("send", "receive", "take", "give_back", "get", "make_segment", "_write")
    }
    assert set(points) == expected
    assert len(points) >= 80


def test_what_a_killed_rank_held_is_free(place: Place) -> None:
    place.next_socket()
    store = place.versions.store
    request = place.request()
    bounds = HostAgentSettings(segment_count=1)
    store_id = store.create()
    with HostAgent(
        place.blobs,
        store_id,
        place.socket,
        agent_settings=bounds,
        settings=store.settings,
        clock=SystemClock(),
        entropy=SystemEntropy(),
    ) as agent:
        words = [str(place.socket), store_id, encode_message(request).decode()]
        rank = subprocess.Popen([sys.executable, "-c", RANK, *words], stdout=subprocess.PIPE)
        try:
            assert rank.stdout is not None
            assert select.select([rank.stdout], [], [], 60)[0], "the rank says nothing"
            assert rank.stdout.readline() == b"holds\n"
            entries = agent._cache._entries
            assert [each.user_count for each in entries.values()] == [1]
        finally:
            rank.kill()
            rank.communicate(timeout=60)
        totals.add("sigkills", 1)
        # There is room for one segment, so that another one proves that it is free.
        client = AgentClient(
            place.socket,
            lambda: store_id,
            clock=SystemClock(),
            size_bytes_max=1 << 16,
            wait_s=WAIT_S,
            answer_s=WAIT_S,
        )
        clock, deadline_s = SystemClock(), SystemClock().monotonic_s() + 20
        while agent.stats().connection_count and clock.monotonic_s() < deadline_s:
            select.select([], [], [], 0.01)
        assert [each.user_count for each in entries.values()] == [0]
        os.close(client.ask(request).file)
        client.close()
        receiver, arrays = place.receiver()
        assert receiver.refit(5).way.value == "change"
        place.check(arrays, 5)


def test_a_socket_that_a_killed_agent_left_is_replaced(forks: AgentForks, place: Place) -> None:
    place.next_socket()
    for _ in range(3):
        number = forks.start(place.folder, place.socket)
        receiver, arrays = place.receiver()
        report = receiver.refit(4)
        assert (report.reason, report.size_bytes.wire) == ("", 0)
        place.check(arrays, 4)
        # The kernel drops the lock with the process, which may take a moment.
        forks.end(number)
        assert place.socket.exists()
    totals.add("sigkills", 3)
