"""The rank's side: whatever an agent does, an answer or a reason, in bounded time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from weightstore.clock import SystemClock
from weightstore.ids import StoreId
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.channel import Channel, ChannelError
from weightstore.receiver.host_agent.client import (
    FIRST_BACKOFF_S,
    LONGEST_BACKOFF_S,
    NoAgentError,
)
from weightstore.receiver.host_agent.messages import (
    Done,
    Granted,
    Hello,
    PackRequest,
    Refused,
    Reply,
    Welcome,
    decode_request,
    encode_message,
)
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.piece_feed_contract import packs_of
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.waiting import WAIT_S, wait_until

Answer = Callable[[Channel], None]
SOON_S = 0.1


@pytest.fixture(scope="module")
def lab() -> AgentLab:
    return AgentLab.with_versions(mixed_schema(), 2)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "agent"


def request_of(lab: AgentLab, number: int = 0) -> PackRequest:
    manifest, pack = list(packs_of(lab))[number]
    return PackRequest.of(manifest, pack, 10_000)


class StrangeAgent:
    """Welcomes ranks and then does what a test wants; one connection after the other."""

    def __init__(self, place: Path, answer: Answer, *, welcome: Reply | None = None) -> None:
        self._answer = answer
        self._welcome = welcome or Welcome(protocol=1, agent_id="a" * 32)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(place))
        self._socket.listen()
        self.connection_count = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connected, _ = self._socket.accept()
            except OSError:
                return
            self.connection_count += 1
            with Channel(connected, clock=SystemClock(), size_bytes_max=1 << 16) as channel:
                try:
                    assert isinstance(decode_request(channel.receive(timeout_s=WAIT_S)[0]), Hello)
                    channel.send(encode_message(self._welcome), timeout_s=WAIT_S)
                    self._answer(channel)
                except ChannelError:
                    continue

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


def says(*replies: bytes | Reply, file: str | None = None) -> Answer:
    def answer(channel: Channel) -> None:
        channel.receive(timeout_s=WAIT_S)
        for reply in replies:
            data = reply if isinstance(reply, bytes) else encode_message(reply)
            if file is None:
                channel.send(data, timeout_s=WAIT_S)
            else:
                opened = os.open(file, os.O_RDONLY)
                channel.send(data, timeout_s=WAIT_S, file=opened)
                os.close(opened)
        channel.receive(timeout_s=WAIT_S)

    return answer


STRANGE: dict[str, Answer] = {
    "hangs up": lambda channel: channel.close(),
    "no JSON": says(b"\xff\xfe"),
    "a request": says(encode_message(Hello(protocol=1, store_id=StoreId("0" * 32), process=1))),
    "another answer": says(Done()),
    "no file": says(Granted(grant=1, size_bytes=10)),
    "a file too many": says(Done(), file="/dev/null"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_nonsense_is_a_reason_and_leaves_no_descriptor(
    lab: AgentLab, place: Path, name: str
) -> None:
    with StrangeAgent(place, STRANGE[name]):
        before = len(list(Path("/proc/self/fd").iterdir()))
        client = lab.client(place, wait_s=5)
        with pytest.raises(NoAgentError, match="does not serve this rank") as caught:
            client.ask(request_of(lab))
        assert not caught.value.is_late
        del caught
        client.close()
        lab.versions.store.clock.sleep(1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_busy_is_no_reason_to_stay_away(lab: AgentLab, place: Path) -> None:
    with StrangeAgent(place, says(Refused(reason="busy", message="no memory"))) as agent:
        client = lab.client(place)
        with pytest.raises(NoAgentError, match="no memory"):
            client.ask(request_of(lab))
        client.close()
        with pytest.raises(NoAgentError, match="no memory"):
            client.ask(request_of(lab))
        client.close()
        assert agent.connection_count == 2


def test_an_agent_of_another_store_or_protocol_is_none(lab: AgentLab, place: Path) -> None:
    with lab.agent(place, store_id=StoreId("f" * 32)):
        client = lab.client(place)
        with pytest.raises(NoAgentError, match=f"of store {'f' * 32}"):
            client.stats()
    with StrangeAgent(place, says(), welcome=Welcome(protocol=2, agent_id="a" * 32)):
        lab.versions.store.clock.sleep(LONGEST_BACKOFF_S)
        with pytest.raises(NoAgentError, match="speaks otherwise"):
            client.stats()


def test_a_slow_agent_costs_one_wait_and_is_then_left_alone(lab: AgentLab, place: Path) -> None:
    waits = threading.Event()

    def slow(channel: Channel) -> None:
        channel.receive(timeout_s=WAIT_S)
        waits.wait(WAIT_S)

    with StrangeAgent(place, slow) as agent:
        client = lab.client(place, wait_s=SOON_S)
        client.grace_s = SOON_S
        clock = SystemClock()
        # The virtual clock of the lab stands still, so that only the socket's own wait ends it.
        with pytest.raises(NoAgentError) as caught:
            client.ask(request_of(lab))
        assert caught.value.is_late
        start_s = clock.monotonic_s()
        for _ in range(100):
            with pytest.raises(NoAgentError):
                client.ask(request_of(lab))
        assert clock.monotonic_s() - start_s < 100 * SOON_S
        assert agent.connection_count == 1
        waits.set()


def test_it_comes_back_after_a_time_that_doubles_up_to_a_bound(lab: AgentLab, place: Path) -> None:
    client = lab.client(place)
    clock = lab.versions.store.clock
    wait_s = FIRST_BACKOFF_S
    for _ in range(10):
        with pytest.raises(NoAgentError):
            client.stats()
        with lab.agent(place):
            clock.sleep(wait_s * 0.99)
            with pytest.raises(NoAgentError):
                client.stats()
        clock.sleep(wait_s * 0.02)
        wait_s = min(2 * wait_s, LONGEST_BACKOFF_S)
    assert wait_s == LONGEST_BACKOFF_S
    with pytest.raises(NoAgentError):
        client.stats()
    with lab.agent(place):
        with pytest.raises(NoAgentError):
            client.stats()
        clock.sleep(wait_s * 1.01)
        assert client.stats().connection_count == 1
        client.close()


def test_an_agent_that_was_started_again_is_found_at_once(lab: AgentLab, place: Path) -> None:
    client = lab.client(place)
    for _ in range(3):
        with lab.agent(place):
            os.close(client.ask(request_of(lab)).file)
            assert client.stats().served_pack_count == 1
    client.close()


def test_grants_are_given_back(lab: AgentLab, place: Path) -> None:
    request = request_of(lab)
    with lab.agent(place, HostAgentSettings(segment_count=1)) as agent:
        client = lab.client(place)
        grants = [client.ask(request) for _ in range(3)]
        for grant in grants:
            os.close(grant.file)
            grant.release()
        client.flush()
        assert agent.stats().segment_count == 1
        other = request_of(lab, 1)
        # There is room for one: it is free only if all three uses have ended.
        os.close(client.ask(other).file)
        with pytest.raises(NoAgentError, match="in use"):
            client.ask(request)
        client.close()


def test_forgetting_a_client_hangs_up(lab: AgentLab, place: Path) -> None:
    def use() -> None:
        lab.client(place).stats()

    with lab.agent(place) as agent:
        use()
        wait_until(lambda: agent.stats().connection_count == 0)


@pytest.fixture(autouse=True)
def _time_passes(lab: AgentLab) -> Iterator[None]:
    yield
    lab.versions.store.clock.sleep(LONGEST_BACKOFF_S)
