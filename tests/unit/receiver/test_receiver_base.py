"""`Receiver`: never from what is not known to be there, and never over what is not. (P8)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weightstore.errors import (
    InputRefusedError,
    LiveWeightsError,
    NotReadyError,
    SelectorError,
    WrongBaseError,
)
from weightstore.receiver.live_state import (
    Dirty,
    Empty,
    NothingStaged,
    Way,
)
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.testing.real_versions import mixed_schema, random_weights
from weightstore.testing.receiver_lab import Bits, ReceiverLab

SMALL_POOL = ReceiverSettings(pool_size_bytes=64, block_timeout_s=1.0)


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 4)


def flip(arrays: Bits, name: str, place: int) -> None:
    """Change one bit behind the receiver's back."""
    arrays[name][place] ^= 1


def changed_places(lab: ReceiverLab, name: str, old: int, new: int) -> list[int]:
    return [int(at) for at in np.flatnonzero(lab.expected(old, name) != lab.expected(new, name))]


def unchanged_place(lab: ReceiverLab, name: str, old: int, new: int) -> int:
    return int(np.flatnonzero(lab.expected(old, name) == lab.expected(new, name))[0])


def test_p8_a_weights_that_nobody_vouches_for_are_no_base(lab: ReceiverLab) -> None:
    """They are exactly version 1; without a scan the whole of version 2 is written anyway."""
    receiver, arrays = lab.host_receiver()
    for name, units in arrays.items():
        units[:] = lab.expected(1, name)
    assert receiver.refit(2).way is Way.FULL
    assert lab.is_at(arrays, 2)


def test_p8_a_a_scan_vouches_for_weights(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver()
    for name, units in arrays.items():
        units[:] = lab.expected(1, name)
    assert receiver.adopt(1).version == 1
    assert receiver.refit(2).way is Way.CHANGE
    assert lab.is_at(arrays, 2)


def test_p8_a_unrelated_weights_are_not_adopted(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver()
    for name, units in random_weights(lab.schema, 77).items():
        arrays[name][:] = units
    before = {name: units.copy() for name, units in arrays.items()}
    with pytest.raises(WrongBaseError, match="have other digests") as caught:
        receiver.adopt(1)
    assert "block.large" in caught.value.facts["tensors"]  # type: ignore[operator]
    assert receiver.live == Empty()
    assert all(np.array_equal(before[name], units) for name, units in arrays.items())


def test_p8_a_invalidated_weights_are_no_base(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.stage(2)
    receiver.invalidate("sleep moved the weights")
    assert receiver.live == Dirty("sleep moved the weights")
    assert receiver.staged == NothingStaged()
    with pytest.raises(NotReadyError, match="sleep moved"), receiver.serving():
        raise AssertionError
    report = receiver.refit(2)
    assert (report.way, report.reason) == (Way.FULL, "dirty: sleep moved the weights")
    assert lab.is_at(arrays, 2)


def test_p8_b_a_base_with_another_digest_is_refused(lab: ReceiverLab) -> None:
    """A receiver that was at version 1 of another history is shown this one's version 2."""
    other = ReceiverLab(lab.schema)
    other.put(random_weights(lab.schema, 50))
    receiver, arrays = other.host_receiver(at=1)
    receiver._source.__dict__.update(lab.source.__dict__)
    lab.fuse.set(0)
    with pytest.raises(WrongBaseError) as caught:
        receiver.refit(2)
    facts = caught.value.facts
    assert facts["expected"] == lab.versions.records[0].digest
    assert facts["found"] == other.versions.records[0].digest
    assert "nothing was written" in caught.value.message
    assert other.is_at(arrays, 1)


def test_p8_c_a_piece_that_does_not_fit_is_refused_before_any_write(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    # Not among what the rolling scan looks at first.
    flip(arrays, "head", changed_places(lab, "head", 1, 2)[3])
    before = {name: units.copy() for name, units in arrays.items()}
    with pytest.raises(WrongBaseError) as caught:
        receiver.stage(2)
    facts = caught.value.facts
    assert "head" in str(facts["tensor"])
    assert {"base", "base_digest", "expected", "found"} <= facts.keys()
    assert caught.value.do
    assert all(np.array_equal(before[name], units) for name, units in arrays.items())
    assert isinstance(receiver.live, Dirty)
    assert receiver.refit(2).way is Way.FULL
    assert lab.is_at(arrays, 2)


def test_p8_c_holds_for_streams_too(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(SMALL_POOL, at=1)
    place = changed_places(lab, "head", 1, 2)[0]
    flip(arrays, "head", place)
    before = {name: units.copy() for name, units in arrays.items()}
    with pytest.raises(WrongBaseError):
        receiver.refit(2)
    assert all(np.array_equal(before[name], units) for name, units in arrays.items())


def test_copies_that_differ_are_no_base(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    flip(arrays, "tied", changed_places(lab, "tied", 1, 2)[0])
    with pytest.raises(LiveWeightsError, match="two places"):
        receiver.stage(2)
    assert isinstance(receiver.live, Dirty)


def test_weights_zeroed_between_stage_and_apply_make_dirty(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.stage(2)
    arrays["block.large"][:] = 0
    with pytest.raises(LiveWeightsError, match="somebody else wrote"):
        receiver.apply()
    assert isinstance(receiver.live, Dirty)
    assert receiver.staged == NothingStaged()
    assert receiver.version is None
    assert receiver.recover().way is Way.FULL
    assert lab.is_at(arrays, 2)


def test_one_unit_changed_between_stage_and_apply_makes_dirty(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.stage(2)
    flip(arrays, "head", changed_places(lab, "head", 1, 2)[-1])
    with pytest.raises(LiveWeightsError) as caught:
        receiver.apply()
    assert caught.value.facts["strange_count"] == 1


def test_the_new_bits_already_there_are_strange_too_the_first_time(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.stage(2)
    place = changed_places(lab, "head", 1, 2)[0]
    arrays["head"][place] = lab.expected(2, "head")[place]
    with pytest.raises(LiveWeightsError):
        receiver.apply()


def test_a_bit_outside_the_change_is_found_by_the_rolling_scan(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    flip(arrays, "head", unchanged_place(lab, "head", 1, 2))

    def scans() -> None:
        for _ in range(receiver.settings.scan_refit_count):
            receiver.scan()

    with pytest.raises(LiveWeightsError) as caught:
        scans()
    assert caught.value.facts["tensors"] == ("head",)
    assert isinstance(receiver.live, Dirty)


def test_refits_look_at_everything_in_turn(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=4)
    flip(arrays, "head", 5)
    for _ in range(receiver.settings.scan_refit_count + 1):
        lab.put(lab.weights[max(lab.weights)])
        report = receiver.refit()
        if report.way is Way.FULL:
            break
    assert "head" in report.reason
    assert lab.is_at(arrays, report.target)


def test_staging_looks_at_everything_in_turn(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=4)
    flip(arrays, "head", 5)

    def stages() -> None:
        for _ in range(receiver.settings.scan_refit_count + 1):
            lab.put(lab.weights[max(lab.weights)])
            receiver.stage()
            receiver.apply()

    with pytest.raises(LiveWeightsError, match="head"):
        stages()
    assert isinstance(receiver.live, Dirty)


def test_a_full_scan_names_each_tensor_that_differs(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    for name in ("head.bias", "tied"):
        flip(arrays, name, 0)
    with pytest.raises(LiveWeightsError) as caught:
        receiver.verify()
    # `tied` is memory of its own, of the tensor `block.large`.
    assert caught.value.facts["tensors"] == ("block.large", "head.bias")
    with pytest.raises(NotReadyError):
        receiver.verify()
    receiver.recover()
    assert lab.is_at(arrays, 1)


@pytest.mark.parametrize("value", [-1, 2.5, "3", True])
@pytest.mark.parametrize("name", ["exact", "min", "max_lag"])
def test_wrong_wishes_of_a_block_are_refused(lab: ReceiverLab, name: str, value: object) -> None:
    receiver, _ = lab.host_receiver(at=1)
    wish: dict[str, Any] = {name: value}
    with pytest.raises(InputRefusedError, match=name), receiver.serving(**wish):
        raise AssertionError


def test_wrong_arguments_change_nothing(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=1)
    wrong: Any = 2.5
    for method in (receiver.refit, receiver.stage, receiver.adopt):
        with pytest.raises(SelectorError):
            method(wrong)
    for other in (receiver.on_applied, receiver.invalidate):
        with pytest.raises(InputRefusedError):
            other(wrong)
    assert receiver.version == 1
