"""Steps of a machine that put versions."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from weightstore.errors import SchemaMismatchError, StepConflictError, WeightStoreError
from weightstore.testing.machine.store_model import (
    PICKS,
    RUN,
    SEEDS,
    StoreModel,
    Weights,
    copied,
    fresh,
    stepped,
)

IMPORT_RUN = "base"


class PutRules(StoreModel):
    """Puts of every kind, repeats, and imports."""

    @rule(seed=SEEDS, gap=st.integers(1, 3), anchor=st.booleans())
    def put_step(self, seed: int, gap: int, anchor: bool) -> None:  # noqa: FBT001 -- hypothesis gives it
        """A delta, or the first version; with its full form or without.

        After a crash: as `TrainerSession.put_step`.
        """
        weights = stepped(self.versions[self.newest], seed) if self.versions else fresh(0, seed)
        self.put(weights, copied(weights), self.last_step + gap, anchor=anchor)

    @precondition(lambda self: self.versions)
    @rule()
    def put_without_a_change(self) -> None:
        """An empty delta.

        After a crash: as `TrainerSession.put_step`.
        """
        weights = self.versions[self.newest]
        self.put(weights, copied(weights), self.last_step + 1)
        assert self.store.version().digest == self.store.version(self.newest).digest

    @precondition(lambda self: self.versions)
    @rule(seed=SEEDS, left_out=PICKS)
    def put_some_tensors(self, seed: int, left_out: int) -> None:
        """A tensor is missing: refused, unless it was said to be unchanged.

        After a crash: as `TrainerSession.put_step`.
        """
        before = self.versions[self.newest]
        missing = sorted(before)[left_out % len(before)]
        weights = stepped(before, seed) | {missing: before[missing]}
        given = {name: array.copy() for name, array in weights.items() if name != missing}
        with pytest.raises(SchemaMismatchError, match=missing):
            self.trainer().put_step(self.last_step + 1, given).result()
        self.put(weights, given, self.last_step + 1, missing="unchanged")

    @precondition(lambda self: self.versions)
    @rule(seed=SEEDS)
    def put_another_schema(self, seed: int) -> None:
        """Other tensors: refused, unless it was said.

        After a crash: as `TrainerSession.put_step`.
        """
        weights = self.other_schema(seed)
        given = copied(weights)
        with pytest.raises(SchemaMismatchError):
            self.trainer().put_step(self.last_step + 1, given).result()
        self.put(weights, given, self.last_step + 1, new_schema=True)

    def other_schema(self, seed: int) -> Weights:
        """Weights of the schema that the newest version does not have."""
        has_second = bool(self.versions) and "experts" in self.versions[self.newest]
        return fresh(0 if has_second else 1, seed)

    @precondition(lambda self: self.versions)
    @rule(pick=PICKS)
    def put_a_step_again(self, pick: int) -> None:
        """The same bytes are the same version; others are refused.

        After a crash: as `TrainerSession.put_step`.
        """
        steps = sorted(
            {step for run, step in self.places.values() if run == RUN and step <= self.last_step}
        )
        if not steps:
            return
        step = steps[pick % len(steps)]
        version = max(one for one, place in self.places.items() if place == (RUN, step))
        given = copied(self.versions[version])
        other = {name: np.asarray(array ^ np.uint16(1)) for name, array in given.items()}
        if version in self.gone:
            with pytest.raises(WeightStoreError):
                self.trainer().put_step(step, other).result()
            return
        assert self.trainer().put_step(step, given).result() == version
        with pytest.raises(StepConflictError):
            self.trainer().put_step(step, other).result()

    @rule(schema=st.integers(0, 1), seed=SEEDS)
    def import_a_checkpoint(self, schema: int, seed: int) -> None:
        """Twice, which is once.

        After a crash: as `WeightStore.import_checkpoint`.
        """
        self.stop()
        weights = fresh(schema, seed)
        step = self.next_import_step()
        path = self.place.folder / f"import-{step}.safetensors"
        safetensors.numpy.save_file(weights, path)
        for number in range(2):
            info = self.store.import_checkpoint(
                path,
                run=IMPORT_RUN,
                step=step,
                take_over=self.is_orphaned,
                new_schema=True,
            )
            self.is_orphaned = False
            if number == 0:
                assert info.version == len(self.versions) + 1
                self.note(info.version, weights, IMPORT_RUN, step)
            assert info.version == self.newest

    def next_import_step(self) -> int:
        """The step after the last imported one."""
        return 1 + max(
            (step for run, step in self.places.values() if run == IMPORT_RUN), default=-1
        )
