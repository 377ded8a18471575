"""The feed of a receiver that does everything by itself."""

from __future__ import annotations

import pytest

from weightstore.receiver.piece_feed import OwnFeed, PieceFeed
from weightstore.settings import Limits
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.piece_feed_contract import PieceFeedContract, packs_of


class TestOwnFeed(PieceFeedContract):
    @pytest.fixture
    def feed(self, lab: AgentLab) -> PieceFeed:
        return OwnFeed(lab.blobs, Limits())

    def test_nothing_was_decoded_by_anybody_else(self, lab: AgentLab, feed: PieceFeed) -> None:
        feed.distrust()
        assert all(feed.load(lab.schema, *each).decoded is None for each in packs_of(lab))
