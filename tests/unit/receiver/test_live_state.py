"""What live weights may become from what they are."""

from __future__ import annotations

import pytest

from weightstore.ids import Sha256, VersionId
from weightstore.receiver.live_state import (
    Applying,
    Dirty,
    Empty,
    Live,
    Ready,
    VersionRef,
    Way,
    Whole,
    begin,
    finish,
    held_version,
    soil,
)

OLD = VersionRef(VersionId(1), Sha256("1" * 64))
NEW = VersionRef(VersionId(2), Sha256("2" * 64))
OTHER = VersionRef(VersionId(1), Sha256("3" * 64))
CHANGE = Ready(OLD, NEW, Way.CHANGE)
FULL = Ready(None, NEW, Way.FULL)


@pytest.mark.parametrize(
    ("live", "ready"),
    [
        (Whole(OLD), CHANGE),
        (Dirty("cut"), CHANGE),
        (Empty(), FULL),
        (Dirty("cut"), FULL),
        (Whole(OTHER), FULL),
    ],
)
def test_what_may_begin(live: Live, ready: Ready) -> None:
    assert begin(live, ready) == Applying(ready.base, NEW)
    assert finish(begin(live, ready)) == Whole(NEW)


@pytest.mark.parametrize("live", [Empty(), Whole(NEW), Whole(OTHER), Applying(OLD, NEW)])
def test_a_change_never_begins_on_anything_but_its_base(live: Live) -> None:
    with pytest.raises(AssertionError):
        begin(live, CHANGE)


@pytest.mark.parametrize("live", [Empty(), Whole(NEW), Dirty("cut")])
def test_only_what_has_begun_ends(live: Live) -> None:
    with pytest.raises(AssertionError):
        finish(live)


def test_an_empty_memory_does_not_become_dirty() -> None:
    assert soil(Empty(), "why") == Empty()
    for live in (Whole(OLD), Applying(OLD, NEW), Dirty("before")):
        assert soil(live, "why") == Dirty("why")


def test_only_a_whole_version_is_held() -> None:
    assert held_version(Whole(OLD)) == OLD
    for live in (Empty(), Applying(OLD, NEW), Dirty("cut")):
        assert held_version(live) is None
