"""Bounds of an agent are numbers from 1, and times that can be waited."""

from __future__ import annotations

from typing import Any

import pytest

from weightstore.errors import InputRefusedError
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings


@pytest.mark.parametrize(
    "given",
    [
        {"memory_bytes": 0},
        {"memory_bytes": True},
        {"segment_count": 1.5},
        {"queue_count": -1},
        {"frame_timeout_s": 0},
        {"wait_s_max": float("inf")},
        {"memory_wait_s": 1e300},
        {"wait_s_max": "1"},
    ],
)
def test_other_values_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputRefusedError) as caught:
        HostAgentSettings(**given)
    assert caught.value.facts == {"setting": next(iter(given))}


def test_counts_and_times_are_taken() -> None:
    found = HostAgentSettings(memory_bytes=1, frame_timeout_s=0.5, wait_s_max=3)
    assert (found.memory_bytes, found.frame_timeout_s, found.wait_s_max) == (1, 0.5, 3)
