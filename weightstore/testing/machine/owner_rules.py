"""Steps of a machine that change who owns the store, and that lose what may be lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from weightstore.errors import FencedError, StoreOwnedError, UnknownOutcomeError
from weightstore.format.keys import HEAD_KEY, LOG_PREFIX
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method
from weightstore.testing.machine.keep_rules import KeepRules
from weightstore.testing.machine.places import Damage
from weightstore.testing.machine.store_model import PICKS, RUN, SEEDS, copied, fresh, stepped

HINTS = st.sampled_from([None, b"", b"0", b"7", b"99999999999999999999", b"-1", b"\xff" * 20])


class OwnerRules(KeepRules):
    """Restarts, rewinds, take-overs with a zombie, and loss of hint and index."""

    @rule()
    def open_anew(self) -> None:
        """As after a restart.

        After a crash: as `WeightStore.open`.
        """
        self.reopen()

    @precondition(lambda self: self.last_step >= 0)
    @rule(back=st.integers(0, 4))
    def rewind(self, back: int) -> None:
        """A trainer that resumed from an older checkpoint.

        After a crash: as `WeightStore.trainer`.
        """
        self.reopen()
        self.last_step = max(self.last_step - back, 0)
        self.session = self.store.trainer(RUN, rewind_to=self.last_step, take_over=self.is_orphaned)
        self.is_orphaned = False

    @rule(seed=SEEDS)
    def take_over(self, seed: int) -> None:
        """A second trainer takes the store; the first one is a zombie, and puts nothing.

        After a crash: as `WeightStore.trainer`.
        """
        zombie = self.trainer()
        usurper = self.handle()
        with pytest.raises(StoreOwnedError):
            usurper.trainer(RUN)
        session = usurper.trainer(RUN, take_over=True)
        weights = stepped(self.versions[self.newest], seed) if self.versions else fresh(0, seed)
        with pytest.raises(FencedError):
            zombie.put_step(self.last_step + 1, copied(weights)).result()
        zombie.close()
        self.store.close()
        self.store, self.session = usurper, session
        self.forget_rewind()
        self.put(weights, copied(weights), self.last_step + 1)

    @rule(seed=SEEDS)
    def take_over_from_one_in_flight(self, seed: int) -> None:
        """The record of a zombie arrives after its successor's claim, and counts for nothing.

        After a crash: as `WeightStore.trainer`.
        """
        self.stop()
        weights = stepped(self.versions[self.newest], seed) if self.versions else fresh(0, seed)

        def late(call: Call) -> Fault | None:
            is_record = call.method is Method.PUT and call.key.startswith(LOG_PREFIX)
            return Fault.DELAYED if is_record and call.index >= first else None

        first = 1 << 30
        lossy = LossyBlobs(self.place.open(), late, delay_count=1 << 30)
        zombie = self.handle(lossy).trainer(RUN, take_over=self.is_orphaned)
        self.is_orphaned = False
        first = len(lossy.calls)
        with pytest.raises(UnknownOutcomeError):
            zombie.put_step(self.last_step + 1, copied(weights)).result()
        session = self.store.trainer(RUN, take_over=True)
        lossy.deliver_all()
        first = 1 << 30
        other = stepped(weights, seed + 1)
        with pytest.raises(FencedError):
            zombie.put_step(self.last_step + 1, copied(weights)).result()
        zombie.close()
        self.session = session
        self.put(other, copied(other), self.last_step + 1)

    @rule(data=HINTS)
    def spoil_the_hint(self, data: bytes | None) -> None:
        """`head` is a hint; whatever it holds, nothing changes.

        After a crash: the example is over.
        """
        self.place.exchange(HEAD_KEY, data)
        if self.versions:
            assert self.handle().version().version == self.newest

    @rule(how=st.sampled_from(Damage), place=PICKS)
    def spoil_the_index(self, how: Damage, place: int) -> None:
        """The index may be lost or hold anything.

        After a crash: the example is over.
        """
        self.stop()
        self.close_old_handles()
        self.store.close()
        self.place.spoil_index(how, place)
        self.store = self.handle()
        self.check_state(self.store)
