"""Activations, the receivers' list and `put_step(wait="active")`, as the facade has them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from weightstore.errors import (
    InputRefusedError,
    NotStagedError,
    ReceiverNotFoundError,
    StoreClosedError,
    VersionNotFoundError,
)
from weightstore.format.records import VersionRecord
from weightstore.history.versions import record_of_version
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store.marking import StoreMarker
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method
from weightstore.testing.members import MemberActor, member_id
from weightstore.testing.store_lab import LAB_SETTINGS, store_on
from weightstore.testing.virtual_time import VirtualClock

SETTINGS = replace(LAB_SETTINGS, activate_timeout_s=8.0, activate_max_staleness_s=4.0)


def weights(step: int) -> dict[str, np.ndarray]:
    return {"w": np.full(8, step, np.float32)}


class Lab:
    """A store of two versions in memory, and receivers that say what they are told to."""

    def __init__(self) -> None:
        self.blobs = MemoryBlobStore()
        self.store = store_on(self.blobs, settings=SETTINGS)
        for step in (1, 2):
            self.store.put_step(step, weights(step), anchor=True)
        self.first, self.second = MemberActor(self.blobs, 1), MemberActor(self.blobs, 2)

    @property
    def clock(self) -> VirtualClock:
        clock = self.store._components.clock
        assert isinstance(clock, VirtualClock)
        return clock

    def record(self, version: int) -> VersionRecord:
        log = self.store._log
        return record_of_version(log, log.tail(), version)

    def kinds(self) -> list[str]:
        return [row.kind for row in self.store.log()]


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    with lab.store:
        yield lab


def test_a_store_is_a_marker_too(lab: Lab) -> None:
    assert isinstance(lab.store, StoreMarker)
    lab.store.tag("best", 1)
    assert [tag.name for tag in lab.store.tags()] == ["best"]
    lab.store.untag("best")
    assert lab.store.tags() == ()


def test_active_is_a_selector_once_something_is(lab: Lab) -> None:
    with pytest.raises(VersionNotFoundError, match="no version is active"):
        lab.store.version("active")
    done = lab.store.activate(1)
    assert (done.version, done.listed_count, done.repeated) == (1, 0, False)
    assert lab.store.version("active").version == 1
    assert lab.store.state().active == 1
    taken = lab.store.checkout("active")
    assert np.array_equal(taken.host["w"].units, weights(1)["w"].view(np.uint32))
    assert lab.store.diff("active", "latest").changed_count == 8
    assert lab.store.activate("latest").version == 2
    assert lab.store.activate("active").repeated
    assert lab.store.version("active").version == 2


def test_the_active_version_outlives_a_retirement(lab: Lab) -> None:
    lab.store.activate(1)
    report = lab.store.retire(keep_newest=1)
    assert report.gone == ()
    assert lab.store.version("active").version == 1


def test_receivers_are_listed_by_name_with_their_lag(lab: Lab) -> None:
    assert lab.store.receivers() == ()
    lab.second.say(name="a", phase="fetch", wire_bytes=7)
    lab.first.apply(lab.record(1), 9)
    lab.blobs.overwrite("receivers/garbage", b"x")
    second, first = lab.store.receivers()
    assert (second.name, second.live, second.lag, second.phase) == ("a", None, None, "fetch")
    assert (first.name, first.live, first.staged, first.lag) == ("rollout-1", 1, None, 1)
    assert (first.applied_slot, first.member_id) == (9, member_id(1))
    written_ms = lab.first.member.written_unix_ms
    assert first.age_s == (lab.clock.unix_ms() - written_ms) / 1000


def test_a_receiver_that_is_gone_is_forgotten(lab: Lab) -> None:
    lab.first.say()
    lab.second.say()
    lab.blobs.overwrite("receivers/garbage", b"x")
    lab.store.forget_receiver(member_id(1))
    lab.store.forget_receiver("garbage")
    assert [each.member_id for each in lab.store.receivers()] == [member_id(2)]
    with pytest.raises(ReceiverNotFoundError):
        lab.store.forget_receiver(member_id(1))
    lab.first.say()  # it was not gone
    assert len(lab.store.receivers()) == 2


@pytest.mark.parametrize("name", ["..", "../log/00000000000000000000", "", "a/../../FORMAT"])
def test_nothing_but_a_receiver_can_be_forgotten(lab: Lab, name: str) -> None:
    before = sorted(info.key for info in lab.blobs.list(""))
    with pytest.raises(InputRefusedError):
        lab.store.forget_receiver(name)
    assert sorted(info.key for info in lab.blobs.list("")) == before


def test_an_activation_waits_and_names_who_is_missing(lab: Lab) -> None:
    lab.first.stage(lab.record(2))
    lab.second.say()
    done = lab.store.activate()
    assert (done.listed_count, done.staged_count) == (2, 1)
    assert done.waited_s == pytest.approx(SETTINGS.member_silent_s, abs=SETTINGS.activate_poll_s)
    assert [(each.name, each.lag) for each in done.missing] == [("rollout-2", None)]
    # The handle remembers who is silent.
    assert lab.store.activate(1).waited_s == 0


def test_an_activation_may_require_everybody(lab: Lab) -> None:
    lab.first.stage(lab.record(2))
    lab.second.say()
    with pytest.raises(NotStagedError, match="rollout-2"):
        lab.store.activate(timeout_s=1, require_all=True)
    assert lab.store.state().active is None
    lab.store.forget_receiver(member_id(2))
    assert lab.store.activate(timeout_s=0, require_all=True).staged_count == 1


@pytest.mark.parametrize("timeout_s", [None, -1, float("nan"), float("inf"), "x", True])
def test_an_activation_waits_for_a_time_that_ends(lab: Lab, timeout_s: float) -> None:
    with pytest.raises(InputRefusedError, match=r"time|timeout_s"):
        lab.store.activate(timeout_s=timeout_s)
    assert lab.store.state().active is None


def test_a_closed_handle_activates_and_lists_nothing(lab: Lab) -> None:
    lab.store.close()
    for call in (lab.store.activate, lab.store.receivers, lambda: lab.store.forget_receiver("x")):
        with pytest.raises(StoreClosedError):
            call()


def test_a_put_that_waits_activates_its_version(lab: Lab) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lab.store.put_step(3, weights(3), wait="active") == 3
    assert lab.store.version("active").version == 3
    assert lab.clock.slept_s == 0
    assert lab.kinds()[0] == "activate"


def test_a_put_that_waits_ends_when_all_serve_its_version(lab: Lab) -> None:
    class Follows(VirtualClock):
        def sleep(self, duration_s: float, /) -> None:
            super().sleep(duration_s)
            newest = lab.store.state()
            if newest.active is None:
                lab.first.stage(lab.record(3))
            else:
                log = lab.store._log
                active = log.tail().now.active
                assert active is not None
                lab.first.apply(lab.record(3), active.slot)

    follows = Follows()
    lab.store._components = replace(lab.store._components, clock=follows)
    lab.first.say()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lab.store.put_step(3, weights(3), wait="active") == 3
    assert follows.slept_s == 2 * SETTINGS.activate_poll_s


def test_what_a_put_did_not_reach_is_a_warning(lab: Lab) -> None:
    lab.first.say()
    with pytest.warns(
        UserWarning, match=r"0 of 1 receivers serve it after 4\.0 s.*rollout-1.*--forget"
    ) as told:
        version = lab.store.put_step(3, weights(3), wait="active")
    assert version == 3
    assert lab.store.version("active").version == 3
    assert told[0].filename == __file__


def test_an_activation_that_fails_loses_no_commit(lab: Lab) -> None:
    failing = LossyBlobs(lab.blobs, activation_fails())
    with store_on(failing, settings=SETTINGS, seed=1) as store:
        store.trainer("main", take_over=True).close()
        with pytest.warns(UserWarning, match=r"version 3 is committed.*store\.activate\(3\)"):
            assert store.put_step(3, weights(3), wait="active") == 3
        assert store.state().active is None
        # Repeating the put activates what it had committed.
        assert store.put_step(3, weights(3), wait="active") == 3
        assert store.state().active == 3


def test_a_handle_that_is_closed_meanwhile_loses_no_commit(lab: Lab) -> None:
    lab.store.close()
    with pytest.warns(UserWarning, match="version 2 is committed"):
        lab.store._activate_committed(lab.record(2).version)


def test_a_repeated_put_does_not_lead_the_fleet_back(lab: Lab) -> None:
    lab.store.put_step(3, weights(3), wait="active")
    with pytest.warns(UserWarning, match="version 2 is not activated: version 3 is active"):
        assert lab.store.put_step(2, weights(2), wait="active") == 2
    assert lab.store.version("active").version == 3


@pytest.mark.parametrize("wait", ["applied", True, 3, "", ["active"]])
def test_another_wait_is_refused_before_anything_is_put(lab: Lab, wait: object) -> None:
    with pytest.raises(InputRefusedError, match="wait"):
        lab.store.put_step(3, weights(3), wait=wait)  # type: ignore[arg-type]
    assert lab.store.state().newest == 2


def activation_fails() -> Callable[[Call], Fault | None]:
    """Every listing of receivers fails until the deadline of one activation."""
    left = [int(SETTINGS.activate_timeout_s / SETTINGS.activate_poll_s) + 1]

    def schedule(call: Call) -> Fault | None:
        if call.method is not Method.LIST or call.key != "receivers/" or not left[0]:
            return None
        left[0] -= 1
        return Fault.UNAVAILABLE

    return schedule
