"""Settings of an engine's rank are checked once."""

from __future__ import annotations

from typing import Any

import pytest

from weightstore.errors import InputRefusedError
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.receiver_settings import ReceiverSettings


@pytest.mark.parametrize(
    "given",
    [
        {"stage_timeout_s": 0},
        {"answer_timeout_s": float("nan")},
        {"poll_s": -1},
        {"idle_poll_s": "1"},
        {"message_size_bytes": 0},
        {"message_size_bytes": 1e6},
        {"stage_timeout_s": 1e12},
        {"failure_count": 0},
        {"receiver": 3},
        {"answer_timeout_s": 30.0},
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputRefusedError):
        EngineSettings(**given)


def test_a_rank_may_wait_for_its_blocks_before_it_counts_as_gone() -> None:
    receiver = ReceiverSettings(block_timeout_s=1.0)
    assert EngineSettings(answer_timeout_s=2.0, receiver=receiver).receiver == receiver
