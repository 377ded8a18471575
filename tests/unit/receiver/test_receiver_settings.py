"""Settings of a receiver are checked once."""

from __future__ import annotations

from typing import Any

import pytest

from weightstore.errors import InputRefusedError
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.serve_policy import Mode, ServePolicy


def test_defaults_have_room_for_three_percent() -> None:
    assert ReceiverSettings().pool_ratio == 0.03
    assert ReceiverSettings().pool_size_bytes is None


@pytest.mark.parametrize(
    "change",
    [
        {"pool_ratio": -0.1},
        {"pool_ratio": float("nan")},
        {"pool_size_bytes": -1},
        {"launch_size_bytes": 0},
        {"block_timeout_s": float("inf")},
        {"scan_refit_count": 0},
        {"scan_refit_count": True},
        {"scan_refit_count": 1.5},
        {"pool_size_bytes": 2.5e6},
        {"pool_size_bytes": False},
        {"launch_size_bytes": 1e6},
        {"max_lag": 0.5},
        {"block_timeout_s": 10**400},
        {"block_timeout_s": 1e12},
        {"block_timeout_s": "5"},
        {"max_lag": -1},
        {"max_staleness_s": float("nan")},
        {"poll_s": 0},
        {"retry_max_s": 0.0001},
        {"heartbeat_s": -1},
        {"stage_hold_s": None},
        {"poll_s": 5.0, "mode": "active"},
        {"poll_s": 1, "max_staleness_s": 0.5, "mode": "active"},
    ],
)
def test_what_is_out_of_bounds_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(InputRefusedError) as caught:
        ReceiverSettings(**change)
    assert caught.value.facts["setting"] == next(iter(change))


@pytest.mark.parametrize("change", [{"mode": "newest"}, {"mode": None}, {"name": 3}])
def test_what_is_of_another_kind_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(InputRefusedError) as caught:
        ReceiverSettings(**change)
    assert caught.value.facts["argument"] == next(iter(change))


def test_the_policy_is_that_of_the_mode() -> None:
    assert ReceiverSettings().policy.mode is Mode.CONTROLLER
    found = ReceiverSettings(mode="active", max_staleness_s=3, max_lag=2).policy
    assert found == ServePolicy(Mode.ACTIVE, 2, 3)
    assert ReceiverSettings(mode="latest", poll_s=9.0).policy.mode is Mode.LATEST
