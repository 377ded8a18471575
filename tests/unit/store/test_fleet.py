"""Members and activations as the facade hands them out."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, ReceiverNotFoundError
from weightstore.format.member import MemberVersion
from weightstore.history.activation import Activated
from weightstore.ids import Sha256, Slot, VersionId
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store.fleet import activation_view, forget_receiver, receiver_info
from weightstore.testing.members import MemberActor, empty_member, member_id

LIVE = MemberVersion(version=VersionId(7), digest=Sha256("0" * 64))


@pytest.mark.parametrize(
    ("newest", "lag"), [(None, None), (VersionId(9), 2), (VersionId(7), 0), (VersionId(6), 0)]
)
def test_a_lag_is_to_the_newest_version_that_is_known(
    newest: VersionId | None, lag: int | None
) -> None:
    member = empty_member().model_copy(update={"state": "whole", "live": LIVE})
    info = receiver_info(member, newest=newest, now_ms=member.written_unix_ms + 1500)
    assert (info.live, info.staged, info.lag, info.age_s) == (7, None, lag, 1.5)


def test_two_wall_clocks_may_disagree() -> None:
    member = empty_member()
    assert receiver_info(member, newest=None, now_ms=member.written_unix_ms - 500).age_s == -0.5


def test_an_activation_names_who_is_missing() -> None:
    activated = Activated(Slot(9), VersionId(7), 2, 1, 0.5, (empty_member(3),), repeated=False)
    view = activation_view(activated, newest=VersionId(7), now_ms=0)
    assert (view.slot, view.version, view.listed_count, view.staged_count) == (9, 7, 2, 1)
    assert [each.member_id for each in view.missing] == [member_id(3)]


def test_only_what_stands_under_receivers_is_forgotten() -> None:
    blobs = MemoryBlobStore()
    MemberActor(blobs).say()
    forget_receiver(blobs, member_id(1))
    assert list(blobs.list("")) == []
    with pytest.raises(ReceiverNotFoundError):
        forget_receiver(blobs, member_id(1))
    with pytest.raises(InputRefusedError):
        forget_receiver(blobs, "../FORMAT")
