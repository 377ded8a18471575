"""A look at live weights says for each tensor whether it is the version's."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, LiveWeightsError, NotReadyError
from weightstore.receiver.live_check import LiveCheck, TensorCheck, destinations_of, live_check
from weightstore.receiver.live_state import Dirty, VersionRef
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 2)


def test_every_tensor_is_listed_with_what_lives_here(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=2)
    found = receiver.verify()
    assert (found.version, found.digest) == (2, lab.versions.records[1].digest)
    assert [each.name for each in found.tensors] == [spec.name for spec in lab.schema.tensors]
    assert found.is_same
    large = next(each for each in found.tensors if each.name == "block.large")
    # It lives here twice, since the tied name has memory of its own.
    assert large == TensorCheck("block.large", 2, 2 * 70_000, is_same=True)


def test_a_tensor_that_differs_in_one_of_its_places_is_found(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=2)
    arrays["tied"][17] ^= 1
    assert receiver.check(tensors=["head", "flags"]).is_same
    found = receiver.check()
    assert found.differing == ("block.large",)
    assert isinstance(receiver.live, Dirty)
    with pytest.raises(NotReadyError):
        receiver.check()
    receiver.recover()
    assert receiver.check().is_same


def test_verify_raises_what_check_returns(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=2)
    arrays["head"][5] ^= 1
    assert [each.name for each in receiver.verify(tensors=["flags"]).tensors] == ["flags"]
    with pytest.raises(LiveWeightsError) as caught:
        receiver.verify(tensors=["flags", "head"])
    assert caught.value.facts == {"version": 2, "tensors": ("head",)}


def test_names_are_those_of_the_version(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=2)
    assert [each.name for each in receiver.check(tensors=["tied"]).tensors] == ["block.large"]
    assert receiver.check(tensors=[]).tensors == ()
    for name in ("nothing", ""):
        with pytest.raises(InputRefusedError, match="no live tensor"):
            receiver.check(tensors=[name])
    with pytest.raises(InputRefusedError):
        receiver.check(tensors="head")


def test_what_was_not_looked_at_is_not_listed(lab: ReceiverLab) -> None:
    placement = lab.host_receiver(at=2)[0].placement
    ref = VersionRef.of(lab.versions.records[1])
    numbers = destinations_of(placement, ["head"])
    assert live_check(placement, ref, numbers, {"head"}) == LiveCheck(
        ref.version, ref.digest, (TensorCheck("head", 1, 75_000, is_same=False),)
    )
    assert len(destinations_of(placement, None)) == len(placement.destinations)
