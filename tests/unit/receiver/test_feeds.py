"""Which feed a receiver has is said by its settings."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from weightstore.clock import SystemClock
from weightstore.errors import InputRefusedError
from weightstore.receiver.feeds import feed_of
from weightstore.receiver.host_agent.agent_feed import AgentFeed
from weightstore.receiver.piece_feed import OwnFeed
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.testing.agent_lab import AgentLab, with_agent
from weightstore.testing.piece_feed_contract import packs_of
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.virtual_time import VirtualClock
from weightstore.testing.waiting import WAIT_S


def test_without_a_socket_everything_is_done_here() -> None:
    lab = AgentLab.with_versions(mixed_schema(), 2)
    assert isinstance(feed_of(lab.source, ReceiverSettings(), VirtualClock()), OwnFeed)


def test_with_a_socket_the_agent_there_is_asked(tmp_path: Path) -> None:
    lab = AgentLab.with_versions(mixed_schema(), 2)
    feed = feed_of(lab.source, with_agent(tmp_path / "agent"), VirtualClock())
    assert isinstance(feed, AgentFeed)
    with lab.agent(tmp_path / "agent"):
        assert feed.load(lab.schema, *next(packs_of(lab))).decoded is not None
        feed.distrust()


def test_a_store_that_cannot_be_recognised_has_no_agent(tmp_path: Path) -> None:
    lab = AgentLab.with_versions(mixed_schema(), 2)
    with lab.agent(tmp_path / "agent"):
        lab.blobs.delete("FORMAT")
        feed = feed_of(lab.source, with_agent(tmp_path / "agent"), VirtualClock())
        assert feed.load(lab.schema, *next(packs_of(lab))).decoded is None
        assert "FORMAT" in feed.take_note()


def test_an_agent_that_says_nothing_costs_one_short_wait(tmp_path: Path) -> None:
    lab = AgentLab.with_versions(mixed_schema(), 3)
    place, clock = tmp_path / "agent", SystemClock()
    settings = ReceiverSettings(agent_socket=place, agent_wait_s=WAIT_S, agent_answer_s=0.05)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place))
        silent.listen()
        feed = feed_of(lab.source, settings, VirtualClock())
        start_s = clock.monotonic_s()
        for each in packs_of(lab):
            assert feed.load(lab.schema, *each).decoded is None
        assert clock.monotonic_s() - start_s < WAIT_S / 2
    assert "does not serve this rank" in feed.take_note()


@pytest.mark.parametrize("given", ["", 7, b"path"])
def test_what_is_no_path_is_refused(given: object) -> None:
    with pytest.raises(InputRefusedError):
        ReceiverSettings(agent_socket=given)  # type: ignore[arg-type]
