"""The feed that asks a host agent first, and does everything by itself where that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.receiver.host_agent.agent_feed import AgentFeed
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.client import FIRST_BACKOFF_S
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.receiver.piece_feed import PieceFeed, WrongAnswerError
from weightstore.settings import Limits
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.piece_feed_contract import PieceFeedContract, check_pieces, packs_of
from weightstore.testing.real_versions import mixed_schema


class TestAgentFeed(PieceFeedContract):
    @pytest.fixture
    def agent(self, lab: AgentLab, tmp_path: Path) -> Iterator[HostAgent]:
        with lab.agent(tmp_path / "agent") as running:
            yield running

    @pytest.fixture
    def feed(self, lab: AgentLab, agent: HostAgent) -> Iterator[PieceFeed]:
        client = lab.client(agent.place)
        yield AgentFeed(lab.blobs, Limits(), client)
        client.close()

    def test_the_agent_decodes_each_piece_once(
        self, lab: AgentLab, agent: HostAgent, feed: PieceFeed
    ) -> None:
        wanted = list(packs_of(lab))
        for each in wanted * 3:
            assert feed.load(lab.schema, *each).decoded is not None
        found = agent.stats()
        piece_count = sum(pack.piece_count for _, pack in wanted)
        assert (found.decoded_pack_count, found.decoded_piece_count) == (len(wanted), piece_count)
        assert (found.served_pack_count, found.served_piece_count) == (
            3 * len(wanted),
            3 * piece_count,
        )
        assert found.wire_bytes == sum(pack.size_bytes for _, pack in wanted)


@pytest.fixture
def lab() -> AgentLab:
    return AgentLab.with_versions(mixed_schema(), 3)


def test_without_an_agent_the_store_is_read_and_the_reason_noted(
    lab: AgentLab, tmp_path: Path
) -> None:
    feed = AgentFeed(lab.blobs, Limits(), lab.client(tmp_path / "nobody"))
    for each in packs_of(lab):
        job = feed.load(lab.schema, *each)
        assert job.decoded is None
        check_pieces(job)
    assert "does not serve this rank" in feed.take_note()
    assert feed.take_note() == ""


def test_without_memory_the_agent_says_so_and_the_rank_goes_on(
    lab: AgentLab, tmp_path: Path
) -> None:
    with lab.agent(tmp_path / "agent", HostAgentSettings(memory_bytes=1)) as agent:
        client = lab.client(agent.place)
        feed = AgentFeed(lab.blobs, Limits(), client)
        manifest, pack = next(packs_of(lab))
        assert feed.load(lab.schema, manifest, pack).decoded is None
        assert "1" in feed.take_note()
        assert agent.stats().busy_count == 1
        client.close()


def test_wrong_bytes_are_refused_and_their_agent_is_left_alone(
    lab: AgentLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weightstore.receiver.host_agent import segments  # noqa: PLC0415 -- broken here

    write = segments._write

    def wrong(file: int, data: memoryview, start: int) -> None:
        write(file, memoryview(bytes(data[:-1]) + bytes([data[-1] ^ 1])), start)

    monkeypatch.setattr(segments, "_write", wrong)
    manifest, pack = next(packs_of(lab))
    with lab.agent(tmp_path / "agent") as agent:
        client = lab.client(agent.place)
        feed = AgentFeed(lab.blobs, Limits(), client)
        with pytest.raises(WrongAnswerError, match="SHA-256"):
            feed.load(lab.schema, manifest, pack)
        feed.distrust()
        monkeypatch.undo()
        # The same agent, right by now: it is not believed any more.
        lab.versions.store.clock.sleep(FIRST_BACKOFF_S)
        assert feed.load(lab.schema, manifest, pack).decoded is None
        assert "wrong bytes" in feed.take_note()
    with lab.agent(tmp_path / "agent"):
        lab.versions.store.clock.sleep(2 * FIRST_BACKOFF_S)
        assert feed.load(lab.schema, manifest, pack).decoded is not None
        client.close()


def test_no_descriptor_and_no_memory_is_left_behind(lab: AgentLab, tmp_path: Path) -> None:
    with all_files_closed(), lab.agent(tmp_path / "agent") as agent:
        client = lab.client(agent.place)
        feed = AgentFeed(lab.blobs, Limits(), client)
        for _ in range(20):
            for each in packs_of(lab):
                check_pieces(feed.load(lab.schema, *each))
            feed.release_all()
        client.close()


def test_a_rank_that_holds_all_memory_asks_no_more_until_it_gives_back(
    lab: AgentLab, tmp_path: Path
) -> None:
    wanted = list(packs_of(lab))
    with lab.agent(tmp_path / "agent", HostAgentSettings(segment_count=2)) as agent:
        client = lab.client(agent.place)
        feed = AgentFeed(lab.blobs, Limits(), client)
        jobs = [feed.load(lab.schema, *each) for each in wanted]
        assert [each.decoded is not None for each in jobs] == [True] * 2 + [False] * (
            len(wanted) - 2
        )
        assert len(wanted) > 4
        assert agent.stats().busy_count == 1
        feed.release(jobs[0])
        assert feed.load(lab.schema, *wanted[-1]).decoded is not None
        feed.release_all()
        client.close()


@pytest.mark.parametrize("wait_s", [1e-9, 1e300])
def test_any_wait_is_said_in_the_bounds_of_a_message(
    lab: AgentLab, tmp_path: Path, wait_s: float
) -> None:
    with lab.agent(tmp_path / "agent") as agent:
        client = lab.client(agent.place, wait_s=wait_s)
        feed = AgentFeed(lab.blobs, Limits(), client)
        for each in packs_of(lab):
            check_pieces(feed.load(lab.schema, *each))
        client.close()
