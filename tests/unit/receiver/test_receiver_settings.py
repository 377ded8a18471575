"""Settings of a receiver are checked once."""

from __future__ import annotations

from typing import Any

import pytest

from weightstore.errors import InputRefusedError
from weightstore.receiver.receiver_settings import ReceiverSettings


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
        {"block_timeout_s": "5"},
    ],
)
def test_what_is_out_of_bounds_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(InputRefusedError) as caught:
        ReceiverSettings(**change)
    assert caught.value.facts["setting"] == next(iter(change))
