"""`Receiver`: from version to version in place, by the shortest way."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.codec.piece import ValueCoding
from weightstore.errors import (
    InputRefusedError,
    NotReadyError,
    ObjectMissingError,
)
from weightstore.receiver.live_state import (
    Empty,
    NothingStaged,
    VersionRef,
    Way,
    Whole,
)
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.reports import Phase
from weightstore.testing.real_versions import mixed_schema, next_weights, random_weights
from weightstore.testing.receiver_lab import SMALL_LAUNCHES, ReceiverLab

SMALL_POOL = ReceiverSettings(pool_size_bytes=64, block_timeout_s=1.0)


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 4)


def changed_places(lab: ReceiverLab, name: str, old: int, new: int) -> list[int]:
    return [int(at) for at in np.flatnonzero(lab.expected(old, name) != lab.expected(new, name))]


def delete(lab: ReceiverLab, prefix: str, part: str) -> None:
    """Lose the objects under a prefix whose keys hold a text."""
    keys = [blob.key for blob in lab.blobs.list(prefix) if part in blob.key]
    assert keys
    for key in keys:
        lab.blobs.delete(key)


def test_a_fresh_receiver_has_no_version(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver()
    assert receiver.version is None
    assert receiver.live == Empty()
    assert receiver.staged == NothingStaged()
    assert not any(units.any() for units in arrays.values())
    with pytest.raises(NotReadyError, match="empty"), receiver.serving():
        raise AssertionError


def test_an_empty_receiver_joins_late_by_the_whole_version(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver()
    report = receiver.refit()
    assert (report.base, report.target, report.way) == (None, 4, Way.FULL)
    assert lab.is_at(arrays, 4)
    assert receiver.live == Whole(VersionRef.of(lab.versions.records[3]))


def test_the_next_version_is_a_staged_change(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    report = receiver.refit(2)
    assert (report.base, report.target, report.way, report.reason) == (1, 2, Way.CHANGE, "")
    assert lab.is_at(arrays, 2)
    assert receiver.verify().version == 2


def test_catching_up_over_versions_is_one_change(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    report = receiver.refit(4)
    different = sum(
        np.count_nonzero(lab.expected(1, name) != lab.expected(4, name)) for name in arrays
    )
    assert (report.base, report.way) == (1, Way.CHANGE)
    # A unit that several versions change is written once, unless it comes back to itself.
    assert different <= report.applied_count < different * 1.05
    assert lab.is_at(arrays, 4)
    assert receiver.verify().version == 4


def test_going_back_takes_the_whole_version(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=3)
    report = receiver.refit(2)
    assert report.way is Way.FULL
    assert "not later" in report.reason
    assert lab.is_at(arrays, 2)


def test_the_version_that_is_there_is_left_alone(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=2)
    lab.fuse.set(0)
    report = receiver.refit(2)
    assert (report.way, report.applied_count, report.seconds.get(Phase.PAUSE)) == (
        Way.NOTHING,
        0,
        None,
    )
    assert lab.is_at(arrays, 2)


def test_versions_without_a_change_write_nothing(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=4)
    for _ in range(20):
        version = lab.put(lab.weights[4])
        report = receiver.refit()
        assert (report.target, report.way, report.applied_count) == (version, Way.CHANGE, 0)
        assert report.launch_count == 0
    assert lab.is_at(arrays, 24)


def test_a_version_without_a_delta_is_taken_whole(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    for version in (2, 3):
        delete(lab, "manifests/", f"/{version}-")
    lab.put(next_weights(lab.weights[4], 9), full=True)
    report = receiver.refit(5)
    assert report.way is Way.FULL
    assert "retired, or is damaged" in report.reason
    assert lab.is_at(arrays, 5)


def test_a_lost_pack_on_the_way_is_no_trouble_if_a_full_form_is_later(lab: ReceiverLab) -> None:
    lab.put(next_weights(lab.weights[4], 9), full=True)
    receiver, arrays = lab.host_receiver(at=1)
    delete(lab, "packs/", "/2-")
    report = receiver.refit(5)
    assert report.way is Way.FULL
    assert "cannot be used" in report.reason
    assert lab.is_at(arrays, 5)


def test_a_damaged_version_leaves_what_is_served(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=3)
    delete(lab, "anchors/", ".safetensors")
    with pytest.raises(ObjectMissingError):
        receiver.refit(1)
    assert receiver.version == 3
    assert lab.is_at(arrays, 3)
    with receiver.serving(exact=3):
        pass


@pytest.mark.parametrize("coding", list(ValueCoding))
@pytest.mark.parametrize("settings", [SMALL_LAUNCHES, SMALL_POOL], ids=["staged", "streamed"])
def test_every_coding_arrives_by_every_way(coding: ValueCoding, settings: ReceiverSettings) -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 4, share=0.4, coding=coding)
    receiver, arrays = lab.host_receiver(settings, at=1)
    for version in (2, 4):
        receiver.refit(version)
        assert lab.is_at(arrays, version)
        assert receiver.verify().version == version


def test_a_step_that_changes_everything_goes_through_a_small_pool() -> None:
    lab = ReceiverLab(mixed_schema())
    lab.put(random_weights(lab.schema, 0))
    lab.put({name: units + units.dtype.type(1) for name, units in lab.weights[1].items()})
    receiver, arrays = lab.host_receiver(SMALL_POOL, at=1)
    report = receiver.refit(2)
    assert report.way is Way.STREAMED
    assert "does not fit" in report.reason
    assert lab.is_at(arrays, 2)
    assert receiver.verify().version == 2


def test_staging_goes_on_while_it_serves(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    with receiver.serving(exact=1):
        ready = receiver.stage(3)
        assert lab.is_at(arrays, 1)
    assert (ready.base, ready.target) == (VersionRef.of(lab.versions.records[0]), ready.target)
    assert receiver.version == 1
    assert receiver.apply().target == 3
    assert lab.is_at(arrays, 3)
    with pytest.raises(InputRefusedError, match="nothing is staged"):
        receiver.apply()


def test_what_is_staged_is_not_staged_again(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=1)
    ready = receiver.stage(2)
    assert receiver.stage(2) is ready
    delete(lab, "packs/", "")
    report = receiver.refit(2)
    assert (report.target, report.way) == (2, Way.CHANGE)
    # What staging has read and counted is in the report of the refit that it was for.
    assert report.size_bytes.wire > 0
    assert Phase.FETCH in report.seconds


def test_tied_names_with_memory_of_their_own_both_change(lab: ReceiverLab) -> None:
    for settings in (SMALL_LAUNCHES, SMALL_POOL):
        receiver, arrays = lab.host_receiver(settings, at=1)
        receiver.refit(2)
        assert np.array_equal(arrays["tied"], lab.weights[2]["block.large"])
        assert np.array_equal(arrays["block.large"], lab.weights[2]["block.large"])
        receiver.rollback() if settings is SMALL_LAUNCHES else receiver.refit(1)
        assert np.array_equal(arrays["tied"], lab.weights[1]["block.large"])


def test_a_report_counts_what_was_moved(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    report = receiver.refit(2)
    delta = lab.versions.plan(lab.versions.records[1]).deltas[0].delta
    assert delta is not None
    copies = len(changed_places(lab, "tied", 1, 2))
    assert report.size_bytes.wire == delta.size_bytes
    assert report.applied_count == delta.changed_count + copies
    assert report.size_bytes.full == sum(units.nbytes for units in arrays.values())
    assert report.size_bytes.skipped == 0
    assert report.launch_count <= len(receiver.placement.storages)
    assert report.size_bytes.decoded > 0


def test_rolling_back_and_forth(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.refit(3)
    for version in (1, 3, 1):
        assert receiver.rollback().target == version
        assert lab.is_at(arrays, version)
        assert receiver.verify().version == version
    receiver.refit(2)
    assert lab.is_at(arrays, 2)


def test_no_bits_are_kept_beyond_the_next_stage(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=1)
    with pytest.raises(InputRefusedError):
        receiver.rollback()
    receiver.refit(2)
    receiver.stage(3)
    with pytest.raises(InputRefusedError):
        receiver.rollback()
