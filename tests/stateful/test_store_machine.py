"""The whole store against a dictionary: any order of steps, faults, damage and restarts.

One machine, on a store in memory and on one in a directory. A short run by default; `-m slow`
runs many more and longer examples.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings

from weightstore.testing.machine.damage_rules import DamageRules
from weightstore.testing.machine.fault_rules import FaultRules
from weightstore.testing.machine.owner_rules import OwnerRules
from weightstore.testing.machine.places import LocalPlace, MemoryPlace, Place

# A story that fails is shown as it was found: to make it shorter takes longer than a test may.
SHORT = settings(
    max_examples=25,
    stateful_step_count=25,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
LONG = settings(SHORT, max_examples=100, stateful_step_count=50)


class MemoryMachine(DamageRules, FaultRules, OwnerRules):
    """On a store in memory."""

    def new_place(self) -> Place:
        return MemoryPlace()


class LocalMachine(DamageRules, FaultRules, OwnerRules):
    """On a directory, with an index in LMDB files."""

    def new_place(self) -> Place:
        return LocalPlace()


# Each class has stories of its own, since those follow from its name.
class LongMemoryMachine(MemoryMachine):
    """Longer stories."""


class OtherLongMemoryMachine(MemoryMachine):
    """Other longer stories."""


class LongLocalMachine(LocalMachine):
    """Longer stories."""


class OtherLongLocalMachine(LocalMachine):
    """Other longer stories."""


TestMemoryStore = MemoryMachine.TestCase
TestMemoryStore.settings = SHORT
TestLocalStore = LocalMachine.TestCase
TestLocalStore.settings = SHORT
TestLongMemory = pytest.mark.slow(LongMemoryMachine.TestCase)
TestLongMemory.settings = LONG
TestOtherLongMemory = pytest.mark.slow(OtherLongMemoryMachine.TestCase)
TestOtherLongMemory.settings = LONG
TestLongLocal = pytest.mark.slow(LongLocalMachine.TestCase)
TestLongLocal.settings = LONG
TestOtherLongLocal = pytest.mark.slow(OtherLongLocalMachine.TestCase)
TestOtherLongLocal.settings = LONG
