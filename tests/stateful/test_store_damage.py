"""Every object of a store, damaged in every way: typed errors and the very bits, never others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from weightstore.testing.machine.damage_rules import Blow, DamageRules
from weightstore.testing.machine.keep_rules import KeepRules
from weightstore.testing.machine.places import Damage, LocalPlace, MemoryPlace, Place
from weightstore.testing.machine.put_rules import PutRules

FLIP_COUNT = 2


class Machine(DamageRules, PutRules, KeepRules):
    """The machine, driven by hand."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def new_place(self) -> Place:
        return self._place


@pytest.fixture(params=[MemoryPlace, pytest.param(LocalPlace, marks=pytest.mark.slow)])
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """A store with an import, a chain of deltas, two schemas, a tag and a retirement."""
    machine = Machine(request.param())
    machine.begin(is_deep=True)
    machine.import_a_checkpoint(schema=0, seed=1)
    machine.put_step(seed=2, gap=1, anchor=False)
    machine.put_without_a_change()
    machine.tag(name="best", pick=2)
    machine.put_another_schema(seed=3)
    machine.put_step(seed=4, gap=2, anchor=True)
    machine.retire(newest_count=2, picks=[1])
    machine.put_some_tensors(seed=6, left_out=1)
    yield machine
    machine.teardown()


def test_each_object_damaged_in_each_way(machine: Machine) -> None:
    machine.stop()
    keys = [info.key for info in machine.place.open().list("")]
    folders = Counter(key.partition("/")[0] for key in keys)
    assert {"FORMAT", "anchors", "head", "log", "manifests", "packs", "receipts"} <= set(folders)
    for number, key in enumerate(keys):
        size_bytes = machine.place.open().size(key)
        names_bytes = key.startswith(("anchors/", "manifests/", "packs/"))
        for how in Damage if names_bytes else (Damage.FLIPPED, Damage.LOST):
            for flip in range(FLIP_COUNT if how is Damage.FLIPPED else 1):
                bit = 8 * (size_bytes * flip // FLIP_COUNT) + (number + flip) % 8
                machine.strike(Blow(key, 0, how, bit))
    machine.check_everything(scan=True)


@pytest.mark.parametrize("is_put", [False, True])
def test_a_store_goes_on_over_each_lost_object(machine: Machine, is_put: bool) -> None:  # noqa: FBT001 -- a parameter
    for info in list(machine.place.open().list("")):
        if info.key.startswith(("anchors/", "manifests/", "packs/")):
            machine.go_on_with_damage(Blow(info.key, 0, Damage.LOST, 0), 1, is_put)
    machine.check_everything(scan=True)
