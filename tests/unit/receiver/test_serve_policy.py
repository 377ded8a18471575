"""What may be served: each mode, to the edge of its bounds."""

from __future__ import annotations

import itertools

import pytest

from weightstore.history.delta_path import VersionRef
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.receiver.serve_policy import CONTROLLER, Mode, ServePolicy, TailView

ACTIVE = ServePolicy(Mode.ACTIVE, max_staleness_s=2.0)


def view(
    newest: int | None = 9, active: int | None = 5, slot: int | None = 30, read_at_s: float = 10.0
) -> TailView:
    return TailView(
        None if newest is None else VersionId(newest),
        None if active is None else VersionId(active),
        None if slot is None else Slot(slot),
        read_at_s,
    )


def refusal(
    policy: ServePolicy,
    version: int,
    *,
    seen: TailView | None = None,
    now_s: float = 10.0,
) -> str:
    return policy.refusal(VersionId(version), view=seen, now_s=now_s)


def test_a_controller_serves_whatever_is_there() -> None:
    for version, seen in itertools.product([1, 5, 9], [None, view()]):
        assert refusal(CONTROLLER, version, seen=seen, now_s=1e9) == ""


@pytest.mark.parametrize(
    ("version", "max_lag", "is_served"),
    [(9, 0, True), (8, 0, False), (8, 1, True), (7, 1, False), (10, 0, True), (1, 8, True)],
)
def test_the_latest_is_served_within_its_lag_however_old_the_look_is(
    version: int,
    max_lag: int,
    is_served: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    policy = ServePolicy(Mode.LATEST, max_lag=max_lag)
    found = refusal(policy, version, seen=view(read_at_s=0.0), now_s=1e9)
    assert (found == "") is is_served
    if found:
        assert f"{9 - version} behind version 9" in found


def test_who_has_heard_of_no_version_serves_what_it_has() -> None:
    for seen in (None, view(newest=None)):
        assert refusal(ServePolicy(Mode.LATEST), 3, seen=seen) == ""


@pytest.mark.parametrize(
    ("version", "seen", "why"),
    [
        (5, view(), ""),
        (4, view(), "version 4 is live, the active version is 5"),
        (9, view(), "version 9 is live, the active version is 5"),
        (5, None, "not read yet"),
        (5, view(active=None, slot=None), "no version is active"),
    ],
)
def test_the_active_version_alone_is_served(version: int, seen: TailView | None, why: str) -> None:
    found = refusal(ACTIVE, version, seen=seen)
    assert why in found
    assert bool(found) is bool(why)


def test_a_look_is_relied_on_to_the_edge_of_its_time_and_no_further() -> None:
    assert refusal(ACTIVE, 5, seen=view(read_at_s=10.0), now_s=12.0) == ""
    assert "12.1 s" not in refusal(ACTIVE, 5, seen=view(read_at_s=10.0), now_s=12.0)
    late = refusal(ACTIVE, 5, seen=view(read_at_s=10.0), now_s=12.000001)
    assert "relied on for 2 s" in late


@pytest.mark.parametrize(
    ("seen", "now_s", "words"),
    [
        (None, 0.0, "`follow` the store"),
        (view(read_at_s=0.0), 99.0, "`follow` the store"),
        (view(active=None, slot=None), 0.0, "activate one"),
    ],
)
def test_a_refusal_of_the_mode_active_says_what_is_missing(
    seen: TailView | None, now_s: float, words: str
) -> None:
    assert words in refusal(ACTIVE, 5, seen=seen, now_s=now_s)


def test_looks_come_back_in_any_order_and_add_up_to_the_same() -> None:
    looks = [
        view(newest=None, active=None, slot=None, read_at_s=1.0),
        view(newest=4, active=3, slot=20, read_at_s=2.0),
        view(newest=6, active=2, slot=25, read_at_s=3.0),
        view(newest=5, active=2, slot=25, read_at_s=2.5),
    ]
    for order in itertools.permutations(looks):
        joined = order[0]
        for look in order[1:]:
            joined = joined.joined(look)
        assert joined == view(newest=6, active=2, slot=25, read_at_s=3.0)


def test_a_version_is_served_by_an_activation_only_in_its_mode_and_while_it_is_active() -> None:
    served = VersionRef(VersionId(5), Sha256("0" * 64))
    assert ACTIVE.applied_slot(served, view()) == 30
    for policy, what, seen in (
        (ACTIVE, None, view()),
        (ACTIVE, served, None),
        (ACTIVE, served, view(active=4)),
        (ACTIVE, served, view(active=None, slot=None)),
        (CONTROLLER, served, view()),
        (ServePolicy(Mode.LATEST), served, view()),
    ):
        assert policy.applied_slot(what, seen) is None
