"""Only what no record, kept or future, can name may be collected (P9)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weightstore.format.kept import of_versions
from weightstore.format.keys import TrainerKey
from weightstore.format.records import (
    KeptRange,
)
from weightstore.format.rules import (
    AnchorFate,
    Valid,
    accept,
    may_collect,
    may_collect_anchor,
    validate,
)
from weightstore.ids import Attempt, Epoch, VersionId
from weightstore.testing.log_story import RUN, LogStory, sha_of

SHA = sha_of("any")


def _begun() -> LogStory:
    return LogStory().begin()


def _claimed() -> LogStory:
    return _begun().claimed()


def _published() -> LogStory:
    return _claimed().published(3)


def _kept(*versions: int) -> tuple[KeptRange, ...]:
    return of_versions(versions)


def _futures(story: LogStory, depth: int) -> Iterator[tuple[int, int]]:
    """(epoch, version) of every version record that can still become valid."""
    if depth == 0:
        return
    prefix = story.prefix
    for record in (story.opening(), story.closing(), story.version(), story.void_attempt()):
        if isinstance(validate(prefix, record), Valid):
            if record.kind == "version":
                yield record.epoch, record.version
            yield from _futures(LogStory(accept(prefix, record, SHA)), depth - 1)


@pytest.mark.parametrize("story", [_begun(), _claimed(), _published(), _published().claimed()])
def test_nothing_is_collected_that_a_future_record_can_name(story: LogStory) -> None:
    now = story.prefix.now
    reachable = set(_futures(story, 5))
    newest = now.newest.version if now.newest is not None else 0
    assert reachable
    for epoch in range(now.epoch + 3):
        for version in range(1, newest + 4):
            key = TrainerKey(RUN, Epoch(epoch), VersionId(version), Attempt(1))
            collected = may_collect(now, key, named_by_kept=False)
            assert not (collected and (epoch, version) in reachable)
            assert collected == (epoch < now.epoch or (epoch == now.epoch and version <= newest))
            assert not may_collect(now, key, named_by_kept=True)


def test_what_belongs_to_a_launch_goes_when_its_epoch_is_over() -> None:
    now = _published().claimed().prefix.now
    assert now.epoch == 2
    of_epochs = [TrainerKey(RUN, Epoch(epoch), None, None) for epoch in (1, 2, 3)]
    assert [may_collect(now, key, named_by_kept=False) for key in of_epochs] == [
        True,
        False,
        False,
    ]


def test_an_anchor_goes_when_its_intent_is_void_or_its_version_is_gone() -> None:
    story = _published()
    story.put(story.retire().model_copy(update={"kept": _kept(3)}))
    now = story.prefix.now
    verdicts = {
        (fate, version): may_collect_anchor(now, fate, version)
        for fate in AnchorFate
        for version in (None, 1, 3)
    }
    assert {case for case, verdict in verdicts.items() if verdict} == {
        (AnchorFate.VOIDED, None),
        (AnchorFate.VOIDED, 1),
        (AnchorFate.VOIDED, 3),
        (AnchorFate.USED, 1),
    }
