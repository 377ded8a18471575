"""Steps of a machine that lose power, requests or answers, and then are done again.

Each of them does one operation on a handle that fails, looks at the store as a reader does,
does the operation again on a handle that works, and then the store must hold exactly what one
undisturbed operation makes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from weightstore.errors import WeightStoreError
from weightstore.store import WeightStore
from weightstore.testing.faults import (
    CutBlobs,
    Fault,
    LossyBlobs,
    PowerCut,
    RecordingBlobs,
    When,
    every,
)
from weightstore.testing.machine.keep_rules import KeepRules
from weightstore.testing.machine.put_rules import IMPORT_RUN, PutRules
from weightstore.testing.machine.store_model import (
    RUN,
    SEEDS,
    Weights,
    bits,
    copied,
    fresh,
    put_quietly,
    stepped,
    taken_bits,
)

KINDS = ("put", "anchor", "schema", "import", "tag", "untag", "retire")
CALL_COUNT_MAX = 50
"""About as many storage calls as most operations make."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that can be done again until it is done.

    Attributes:
        run: Does it; says which version it made.
        makes: The version that it makes and its weights, run and step; None for others.
        settle: Takes over what it changes besides versions.
    """

    run: Callable[[WeightStore], int | None]
    makes: tuple[int, Weights, str, int] | None
    settle: Callable[[], None]


class FaultRules(PutRules, KeepRules):
    """Operations that are cut or lose their answers."""

    @precondition(lambda self: self.versions)
    @rule(
        kind=st.sampled_from(KINDS),
        seed=SEEDS,
        cut_at=st.integers(0, CALL_COUNT_MAX),
        when=st.sampled_from(When),
    )
    def lose_power(self, kind: str, seed: int, cut_at: int, when: When) -> None:
        """An operation dies at some storage call; it is done again by a new process.

        After a crash: as the operation.
        """
        self.stop()
        operation = self.operation(kind, seed)
        relay = RecordingBlobs(self.place.open())
        store = self.handle(relay)
        relay.inner = CutBlobs(self.place.open(), cut_at, when)
        with suppress(PowerCut):
            operation.run(store)
        self.is_orphaned = True
        self.look_and_repeat(operation)

    @precondition(lambda self: self.versions)
    @rule(
        kind=st.sampled_from(KINDS),
        seed=SEEDS,
        first=st.integers(0, CALL_COUNT_MAX),
        nth=st.sampled_from([1, 2, 7, 10_000]),
        fault=st.sampled_from(Fault),
        is_late=st.booleans(),
    )
    def lose_requests(
        self,
        kind: str,
        seed: int,
        first: int,
        nth: int,
        fault: Fault,
        is_late: bool,  # noqa: FBT001 -- hypothesis gives it
    ) -> None:
        """Requests or answers are lost; what is late arrives before or after the repeat.

        After a crash: as the operation.
        """
        self.stop()
        operation = self.operation(kind, seed)
        lossy = LossyBlobs(self.place.open(), every(fault, nth, first=first), delay_count=9)
        relay = RecordingBlobs(self.place.open())
        store = self.handle(relay)
        relay.inner = lossy  # from here on; opening the store is another test's
        # Nothing but a typed error may come of it; which one depends on what was lost.
        with suppress(WeightStoreError):
            operation.run(store)
        if not is_late:
            lossy.deliver_all()
        self.is_orphaned = True
        self.look_and_repeat(operation)
        lossy.deliver_all()
        self.look(operation)

    def look_and_repeat(self, operation: Operation) -> None:
        """Readers see the state before or after the operation; done again, it is done.

        After a crash: as the operation.
        """
        self.store.close()
        self.store = self.handle()
        self.look(operation)
        version = operation.run(self.store)
        self.is_orphaned = False
        if operation.makes is not None:
            assert version == operation.makes[0]
            self.note(*operation.makes)
        operation.settle()
        self.forget_rewind()
        self.check_state(self.store)
        self.check_newest(self.store, f"after fault {self._opened_count}")

    def look(self, operation: Operation) -> None:
        """Nothing is there but what should be, and perhaps what the operation makes."""
        reader = self.handle()
        listed = {info.version: info for info in reader.versions()}
        more = set(listed) - set(self.versions)
        assert set(self.versions) <= set(listed)
        if more:
            assert operation.makes is not None
            version, weights, run, step = operation.makes
            assert more == {version}
            assert (listed[version].run, listed[version].step) == (run, step)
            assert taken_bits(reader, version) == bits(weights)
        reader.close()

    def operation(self, kind: str, seed: int) -> Operation:
        """An operation of a kind, for the state as it is."""
        if kind in {"put", "anchor", "schema"}:
            return self._put(kind, seed)
        if kind == "import":
            return self._import(seed)
        if kind == "retire":
            return self._retire(seed)
        return self._tag(kind, seed)

    def _put(self, kind: str, seed: int) -> Operation:
        newest = self.versions[self.newest]
        weights = self.other_schema(seed) if kind == "schema" else stepped(newest, seed)
        step = self.last_step + 1

        def run(store: WeightStore) -> int:
            session = store.trainer(RUN, take_over=True)
            try:
                return put_quietly(
                    session,
                    step,
                    copied(weights),
                    anchor=kind == "anchor",
                    new_schema=kind == "schema",
                )
            finally:
                # Its threads end; the claim is closed if the store still answers.
                with suppress(PowerCut, WeightStoreError):
                    session.close()

        return Operation(run, (len(self.versions) + 1, weights, RUN, step), _nothing)

    def _import(self, seed: int) -> Operation:
        weights = fresh(seed % 2, seed)
        step = self.next_import_step()
        path = self.place.folder / f"import-{step}.safetensors"
        safetensors.numpy.save_file(weights, path)

        def run(store: WeightStore) -> int:
            return store.import_checkpoint(
                path, run=IMPORT_RUN, step=step, take_over=True, new_schema=True
            ).version

        return Operation(run, (len(self.versions) + 1, weights, IMPORT_RUN, step), _nothing)

    def _tag(self, kind: str, seed: int) -> Operation:
        name = "best" if seed % 2 else "eval"
        version = self.kept[seed % len(self.kept)]

        def run(store: WeightStore) -> None:
            is_set = any(tag.name == name for tag in store.tags())
            if kind == "tag":
                store.tag(name, version)
            elif is_set:
                store.untag(name)

        def settle() -> None:
            if kind == "tag":
                self.tags[name] = version
            else:
                self.tags.pop(name, None)

        return Operation(run, None, settle)

    def _retire(self, seed: int) -> Operation:
        newest_count = 1 + seed % 3
        wanted = self.wanted([seed])
        must = self.must_stay(newest_count, wanted)

        def run(store: WeightStore) -> None:
            store.retire(keep_newest=newest_count, keep_versions=sorted(wanted))

        def settle() -> None:
            found = {info.version for info in self.store.versions() if not info.kept}
            assert found >= self.gone
            self.take_gone(sorted(found - self.gone), must)

        return Operation(run, None, settle)


def _nothing() -> None:
    return None
