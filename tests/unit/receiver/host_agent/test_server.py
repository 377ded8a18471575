"""The agent: one decoding for any number of ranks, and nothing that a rank does harms another."""

from __future__ import annotations

import errno
import gc
import os
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weightstore.clock import SystemClock
from weightstore.errors import StorageFailedError, StoreBusyError
from weightstore.format.manifest import PackRef
from weightstore.ids import StoreId
from weightstore.receiver.host_agent import server
from weightstore.receiver.host_agent.agent_feed import AgentFeed
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.channel import Channel, ChannelError
from weightstore.receiver.host_agent.client import AgentClient, NoAgentError
from weightstore.receiver.host_agent.messages import (
    Hello,
    PackRequest,
    Refused,
    StatsRequest,
    Welcome,
    decode_reply,
    encode_message,
)
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.settings import Limits
from weightstore.testing.agent_lab import AgentLab, with_agent
from weightstore.testing.piece_feed_contract import packs_of
from weightstore.testing.real_versions import mixed_schema, next_weights
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock
from weightstore.testing.waiting import WAIT_S, wait_until

RANK_COUNT = 8


@pytest.fixture
def lab() -> AgentLab:
    return AgentLab.with_versions(mixed_schema(), 4, share=0.02)


@pytest.fixture
def agent(lab: AgentLab, tmp_path: Path) -> Iterator[HostAgent]:
    with lab.agent(tmp_path / "agent", HostAgentSettings(connection_count=40)) as running:
        yield running


def user_counts(agent: HostAgent) -> set[int]:
    """Of all packs that an agent keeps; nothing where it keeps none."""
    return {entry.user_count for entry in agent._cache._entries.values()}


def delta_packs(lab: AgentLab) -> list[PackRef]:
    return [pack for _, pack in packs_of(lab)]


def test_eight_ranks_get_every_version_and_each_piece_is_decoded_once(
    lab: AgentLab, agent: HostAgent
) -> None:
    together = threading.Barrier(RANK_COUNT)

    def rank(_: int) -> None:
        receiver, arrays = lab.host_receiver(with_agent(agent.place), at=1)
        for version in (2, 4):
            together.wait(WAIT_S)
            report = receiver.refit(version)
            assert (report.way.value, report.reason) == ("change", "")
            assert report.size_bytes.wire == 0
            assert report.size_bytes.decoded > 0
            assert lab.is_at(arrays, version)

    with ThreadPoolExecutor(RANK_COUNT) as pool:
        list(pool.map(rank, range(RANK_COUNT)))
    packs, found = delta_packs(lab), agent.stats()
    piece_count = sum(pack.piece_count for pack in packs)
    assert (found.decoded_pack_count, found.decoded_piece_count) == (len(packs), piece_count)
    assert found.wire_bytes == sum(pack.size_bytes for pack in packs)
    assert found.served_pack_count == RANK_COUNT * len(packs)
    assert found.served_piece_count == RANK_COUNT * piece_count
    assert found.busy_count == found.failed_count == 0


def test_a_step_that_changes_everything_passes_through_little_memory(
    lab: AgentLab, tmp_path: Path
) -> None:
    weights = {name: ~units for name, units in lab.weights[4].items()}
    lab.put(weights)
    packs = [pack for manifest, pack in packs_of(lab) if manifest.version == 5]
    decoded_bytes = 2 * lab.schema.unit_count
    # Less than the delta has, more than any one pack of it.
    bounds = HostAgentSettings(memory_bytes=decoded_bytes)
    with lab.agent(tmp_path / "small", bounds) as agent:
        most_bytes = 0
        for _ in range(2):
            receiver, arrays = lab.host_receiver(with_agent(agent.place, pool_size_bytes=0), at=4)
            report = receiver.refit(5)
            assert report.way.value == "streamed"
            assert lab.is_at(arrays, 5)
            most_bytes = max(most_bytes, agent.stats().memory_bytes)
        found = agent.stats()
    assert 0 < most_bytes <= bounds.memory_bytes
    # Each refit reads it twice, and most of it does not fit beside the rest.
    assert found.served_pack_count + found.busy_count == 4 * len(packs)
    assert found.served_pack_count > 0


def test_one_pack_asked_for_at_once_while_memory_is_short(lab: AgentLab, tmp_path: Path) -> None:
    bounds = HostAgentSettings(memory_bytes=60_000)
    with lab.agent(tmp_path / "small", bounds) as agent:

        def rank(_: int) -> str:
            receiver, arrays = lab.host_receiver(with_agent(agent.place), at=1)
            report = receiver.refit(4)
            assert lab.is_at(arrays, 4)
            return report.reason

        with ThreadPoolExecutor(4) as pool:
            reasons = set(pool.map(rank, range(4)))
        assert all(each == "" or "host agent" in each for each in reasons)
        found = agent.stats()
        assert found.memory_bytes <= bounds.memory_bytes
        # Some packs fit, and some do not.
        assert found.busy_count > 0
        assert found.served_pack_count > 0


def test_a_rank_that_goes_gives_everything_back(lab: AgentLab, agent: HostAgent) -> None:
    receiver, _ = lab.host_receiver(with_agent(agent.place), at=1)
    receiver.refit(3)
    # What a refit has held is given back by then; this is what one holds in the middle.
    client = lab.client(agent.place)
    for manifest, pack in packs_of(lab):
        os.close(client.ask(PackRequest.of(manifest, pack, 10_000)).file)
    assert user_counts(agent) == {1}
    assert agent.stats().connection_count > 1
    del receiver, client
    gc.collect()
    wait_until(lambda: agent.stats().connection_count == 0)
    assert user_counts(agent) == {0}


def test_a_finished_refit_holds_nothing(lab: AgentLab, agent: HostAgent) -> None:
    receiver, _ = lab.host_receiver(with_agent(agent.place), at=1)
    receiver.refit(3)
    assert user_counts(agent) == {0}
    assert receiver.version == 3


def test_a_version_that_is_put_later_is_served_too(lab: AgentLab, agent: HostAgent) -> None:
    receiver, arrays = lab.host_receiver(with_agent(agent.place), at=4)
    for seed in range(5, 8):
        version = lab.put(next_weights(lab.weights[seed - 1], seed))
        assert receiver.refit().reason == ""
        assert lab.is_at(arrays, version)


def bare(place: Path) -> Channel:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(place))
    return Channel(connected, clock=SystemClock(), size_bytes_max=1 << 16)


STORE = StoreId("0" * 32)
NONSENSE = {
    "nothing": b"",
    "half a frame": struct.pack(">I", 100) + b"abc",
    "a frame of 4 GiB": struct.pack(">I", 0xFFFFFFFF),
    "no JSON": struct.pack(">I", 2) + b"\xff\xfe",
    "stats before hello": struct.pack(">I", 16) + b'{"kind":"stats"}',
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_ends_its_own_connection_alone(lab: AgentLab, agent: HostAgent, name: str) -> None:
    client = lab.client(agent.place)
    client.stats()
    with socket.socket(socket.AF_UNIX) as strange:
        strange.connect(str(agent.place))
        strange.sendall(NONSENSE[name])
        strange.shutdown(socket.SHUT_WR)
        strange.settimeout(WAIT_S)
        said = bytearray()
        while part := strange.recv(100):
            said += part
        assert not said or b"refused" in said
    wait_until(lambda: client.stats().connection_count == 1)
    client.close()


def test_a_second_hello_ends_the_connection(lab: AgentLab, agent: HostAgent) -> None:
    hello = encode_message(Hello(protocol=1, store_id=lab.store_id, process=1))
    with bare(agent.place) as channel:
        channel.send(hello, timeout_s=WAIT_S)
        assert isinstance(decode_reply(channel.receive(timeout_s=WAIT_S)[0]), Welcome)
        channel.send(encode_message(StatsRequest()), timeout_s=WAIT_S)
        channel.receive(timeout_s=WAIT_S)
        channel.send(hello, timeout_s=WAIT_S)
        with pytest.raises(ChannelError):
            channel.receive(timeout_s=WAIT_S)


def test_ranks_of_another_store_are_turned_away(agent: HostAgent) -> None:
    with bare(agent.place) as channel:
        channel.send(
            encode_message(Hello(protocol=1, store_id=StoreId("e" * 32), process=1)),
            timeout_s=WAIT_S,
        )
        reply = decode_reply(channel.receive(timeout_s=WAIT_S)[0])
    assert isinstance(reply, Refused)
    assert reply.reason == "foreign"


def test_connections_are_counted(lab: AgentLab, tmp_path: Path) -> None:
    with lab.agent(tmp_path / "small", HostAgentSettings(connection_count=2)) as agent:
        clients = [lab.client(agent.place) for _ in range(3)]
        for client in clients[:2]:
            client.stats()
        with pytest.raises(NoAgentError):
            clients[2].stats()
        for client in clients:
            client.close()


def test_a_connection_holds_so_many_grants_and_no_more(
    lab: AgentLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRANT_COUNT_MAX", 3)
    manifest, pack = next(packs_of(lab))
    request = AgentFeed(lab.blobs, Limits(), lab.client(tmp_path / "nobody"))._request(
        manifest, pack
    )
    with lab.agent(tmp_path / "agent", HostAgentSettings(segment_count=8)) as agent:
        client = lab.client(agent.place)
        grants = [client.ask(request) for _ in range(3)]
        with pytest.raises(NoAgentError, match="3 grants") as refused:
            client.ask(request)
        assert refused.value.is_busy
        grants[0].release()
        grants.append(client.ask(request))
        for grant in grants:
            os.close(grant.file)
        client.close()


def test_an_agent_without_threads_turns_a_rank_away_and_takes_the_next(
    lab: AgentLab, agent: HostAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def no_more(thread: threading.Thread) -> None:
        if thread.name == "weightstore-rank":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_more)
        with bare(agent.place) as channel, pytest.raises(ChannelError, match="hung up"):
            channel.receive(timeout_s=WAIT_S, first_timeout_s=WAIT_S)
    client = lab.client(agent.place)
    assert client.stats().connection_count == 1
    client.close()


def test_where_no_memory_can_be_sealed_no_agent_starts(
    lab: AgentLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with (
        pytest.raises(StorageFailedError, match="memfd_create"),
        lab.agent(tmp_path / "agent"),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_another_user_is_hung_up_on(
    lab: AgentLab, agent: HostAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = lab.client(agent.place)
    monkeypatch.setattr(Channel, "peer_user", lambda _: os.getuid() + 1)
    with pytest.raises(NoAgentError, match="another user"):
        client.stats()
    with bare(agent.place) as channel, pytest.raises(ChannelError, match="hung up"):
        channel.receive(timeout_s=WAIT_S, first_timeout_s=WAIT_S)


def test_a_rank_mid_wait_is_let_go_when_the_agent_ends(lab: AgentLab, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    get = lab.blobs.get

    def slow(key: str, *, max_size_bytes: int) -> bytes:
        if key.startswith("packs/") and threading.current_thread().name.startswith("weightstore-h"):
            begun.set()
            go_on.wait(WAIT_S)
        return get(key, max_size_bytes=max_size_bytes)

    lab.blobs.get = slow  # type: ignore[method-assign]
    agent = lab.agent(tmp_path / "agent")
    with agent, ThreadPoolExecutor(2) as pool:
        receiver, arrays = lab.host_receiver(with_agent(agent.place), at=1)
        refit = pool.submit(receiver.refit, 4)
        assert begun.wait(WAIT_S)

        def goes_on_once_it_closes() -> None:
            wait_until(lambda: agent._cache._is_closed)
            go_on.set()

        helper = pool.submit(goes_on_once_it_closes)
        agent.close()
        helper.result(WAIT_S)
        assert "host agent" in refit.result(WAIT_S).reason
        assert lab.is_at(arrays, 4)


def test_an_agent_whose_storage_hangs_ends_all_the_same(
    lab: AgentLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it waits for has one deadline, however much of it hangs."""
    monkeypatch.setattr(server, "_CLOSE_WAIT_S", 0.2)
    begun, go_on = threading.Event(), threading.Event()
    get, clock = lab.blobs.get, SystemClock()

    def hanging(key: str, *, max_size_bytes: int) -> bytes:
        if threading.current_thread().name == "weightstore-host-build":
            begun.set()
            go_on.wait(6 * WAIT_S)
        return get(key, max_size_bytes=max_size_bytes)

    monkeypatch.setattr(lab.blobs, "get", hanging)
    try:
        with (
            lab.agent(tmp_path / "agent") as agent,
            ThreadPoolExecutor(1) as pool,
        ):
            receiver, arrays = lab.host_receiver(with_agent(agent.place), at=1)
            refit = pool.submit(receiver.refit, 4)
            assert begun.wait(WAIT_S)
            start_s = clock.monotonic_s()
            agent.close()
            assert clock.monotonic_s() - start_s < WAIT_S
            assert not go_on.is_set()
            assert "host agent" in refit.result(3 * WAIT_S).reason
            assert lab.is_at(arrays, 4)
    finally:
        go_on.set()


def test_a_second_agent_is_refused(lab: AgentLab, agent: HostAgent) -> None:
    with pytest.raises(StoreBusyError), lab.agent(agent.place):
        pass
    client: AgentClient = lab.client(agent.place)
    assert client.stats().connection_count == 1
    client.close()


class Flaky:
    """A listening socket whose process has no descriptor left, twice; then it is shut."""

    def __init__(self) -> None:
        self.errors = [errno.EMFILE, errno.ENFILE, errno.EINVAL]

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(self.errors.pop(0), "no more")


def test_an_agent_without_descriptors_waits_for_some(lab: AgentLab, tmp_path: Path) -> None:
    clock = VirtualClock()
    agent = HostAgent(
        lab.blobs,
        lab.store_id,
        tmp_path / "agent",
        settings=lab.source.settings,
        clock=clock,
        entropy=SeededEntropy(),
    )
    flaky = Flaky()
    agent._listen(flaky)  # type: ignore[arg-type]
    assert flaky.errors == []
    assert clock.slept_s > 0
