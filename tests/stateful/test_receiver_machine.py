"""A receiver against a dictionary, in any order of steps, cuts, rollbacks and damage."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from weightstore.testing.receiver_machine import ReceiverMachine

SHORT = settings(
    max_examples=20, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)
LONG = settings(
    max_examples=150, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


class LongReceiverMachine(ReceiverMachine):
    """More and longer stories."""


TestReceiver = ReceiverMachine.TestCase
TestReceiver.settings = SHORT
TestReceiverLong = pytest.mark.slow(LongReceiverMachine.TestCase)
TestReceiverLong.settings = LONG
