"""Why versions stay: each one that is kept has a reason, and the nearest one is told."""

from __future__ import annotations

import pytest

from weightstore.format import kept as kept_sets
from weightstore.history.retire import Keep, plan_retire
from weightstore.history.retire_reasons import ASKED, FILLED, kept_reasons
from weightstore.history.tags import put_tag
from weightstore.ids import TagName, VersionId
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore


@pytest.fixture
def store() -> ToyStore:
    """Versions 1 to 10; 1, 5 and 8 are full."""
    toy = ToyStore(MemoryBlobStore())
    toy.create()
    trainer = toy.trainer()
    for step in range(1, 11):
        trainer.put(step, b"%d" % step, full=step in {1, 5, 8})
    return toy


def reasons(store: ToyStore, keep: Keep) -> dict[int, tuple[str, ...]]:
    prefix = store.log.tail()
    plan = plan_retire(store.log, prefix, keep, chain_of=store.chain_of)
    found = kept_reasons(store.log, prefix, keep, plan.kept, chain_of=store.chain_of)
    assert list(found) == list(kept_sets.iterate(plan.kept))
    return {int(version): why for version, why in found.items()}


def test_the_newest_stays_and_its_chain_with_it(store: ToyStore) -> None:
    assert reasons(store, Keep()) == {
        8: ("chain of 10",),
        9: ("chain of 10",),
        10: ("newest",),
    }


def test_every_own_reason_is_told_and_of_chains_the_nearest(store: ToyStore) -> None:
    for name, version in (("best", 7), ("eval", 7), ("old", 3)):
        put_tag(store.writer(), TagName(name), version, owner="")
    keep = Keep(newest_count=2, versions=kept_sets.of_versions([6]))
    assert reasons(store, keep) == {
        1: ("chain of 3",),
        2: ("chain of 3",),
        3: ("tag old",),
        5: ("chain of 6",),
        6: (ASKED,),
        7: ("tag best", "tag eval"),
        8: ("chain of 9",),
        9: (ASKED,),
        10: ("newest", ASKED),
    }


def test_what_only_fills_a_gap_says_so() -> None:
    limits = Limits(kept_range_count=2)
    store = ToyStore(MemoryBlobStore(), settings=Settings(limits=limits))
    store.create()
    trainer = store.trainer()
    for step in range(1, 8):
        trainer.put(step, b"%d" % step, full=True)
    found = reasons(store, Keep(versions=kept_sets.of_versions([1, 3, 5])))
    assert [why for why in found.values() if why == (FILLED,)]
    assert found[7] == ("newest",)


def test_a_version_that_came_after_the_plan_is_no_part_of_it(store: ToyStore) -> None:
    prefix = store.log.tail()
    plan = plan_retire(store.log, prefix, Keep(), chain_of=store.chain_of)
    store.trainer(take_over=True).put(11, b"11")
    found = kept_reasons(store.log, store.log.tail(), Keep(), plan.kept, chain_of=store.chain_of)
    assert VersionId(11) not in found
    assert set(found) == {8, 9, 10}
