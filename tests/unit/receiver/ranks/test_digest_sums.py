"""Partial digests of ranks add up to those of the version, or no rank serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from weightstore.errors import RanksDisagreeError
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.ranks.channel import MemoryChannel
from weightstore.receiver.ranks.digest_sums import DigestSums
from weightstore.receiver.ranks.messages import Answer, Part, Tables, decode_answer, encode
from weightstore.receiver.ranks.shares import Lanes, encode_boxes
from weightstore.testing.rank_lab import ranks_of
from weightstore.testing.rank_messages import rank_answer
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab


class TamperedChannel(MemoryChannel):
    """Answers of some ranks are replaced on their way; each is well-formed."""

    edit: Callable[[Answer, Tables], Tables] | None = None

    def put(self, key: str, data: bytes, /) -> None:
        if self.edit is not None and "-order" not in key and key.startswith("rounds/"):
            answer, tables = decode_answer(data, what=key)
            data = encode(answer, self.edit(answer, tables))
        super().put(key, data)


def off_by_one(rank: int, part: Part, name: str) -> Callable[[Answer, Tables], Tables]:
    def edit(answer: Answer, tables: Tables) -> Tables:
        lanes = getattr(tables, name)
        if (answer.rank, answer.part) != (rank, part) or lanes is None:
            return tables
        changed = lanes.copy()
        changed[0, 0] ^= np.uint64(1)
        return replace(tables, **{name: changed})

    return edit


@pytest.mark.parametrize("how", ["rows", "columns", "copies"])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", ["before", "after"])
def test_partial_digests_that_do_not_add_up_are_refused_before_a_gate_is_closed(
    how: str, rank: int, name: str
) -> None:
    channel = TamperedChannel()
    engine = ranks_of(2, how, at=None, channel=channel)
    engine.refit(1)
    channel.edit = off_by_one(rank, Part.STAGE, name)
    with pytest.raises(RanksDisagreeError):
        engine.refit(2)
    channel.edit = None
    # Nobody knows which rank is wrong, so that none serves, and all take the whole version.
    assert not engine.served()
    assert all(engine.holds(each, 1) for each in engine.ranks.values())
    report = engine.drive(engine.leader.refitting(2))
    assert {each.way for each in report.ranks} == {"full"}
    assert engine.all_hold(2)


@pytest.mark.parametrize("rank", [0, 1])
def test_digests_of_whole_versions_are_added_up_before_a_gate_is_opened(rank: int) -> None:
    channel = TamperedChannel()
    engine = ranks_of(at=None, channel=channel)
    channel.edit = off_by_one(rank, Part.APPLY, "after")
    with pytest.raises(RanksDisagreeError, match="as applied"):
        engine.refit(1)
    assert not engine.served()
    channel.edit = None
    engine.refit(1)
    assert engine.all_hold(1)


def test_a_rank_that_says_nothing_of_what_it_holds_is_refused() -> None:
    channel = TamperedChannel()
    engine = ranks_of(at=None, channel=channel)
    put = MemoryChannel.put

    def silent(key: str, data: bytes) -> None:
        if key.endswith("-1") and "order" not in key:
            answer, tables = decode_answer(data, what=key)
            if answer.part is Part.APPLY:
                answer = answer.model_copy(update={"after_count": None})
                data = encode(answer, replace(tables, after=None))
        put(channel, key, data)

    channel.put = silent  # type: ignore[method-assign]
    with pytest.raises(RanksDisagreeError, match="have not said what they hold"):
        engine.refit(1)
    assert not engine.served()


def copy_of_all(rank: int, schema: Schema, after: Lanes | None) -> tuple[Answer, Tables]:
    """The answer of a rank that has every tensor whole."""
    answer = rank_answer(rank).model_copy(update={"schema_id": schema.id})
    shapes = [spec.unit_shape for spec in schema.tensors]
    words = encode_boxes([(index, Box.whole(shape)) for index, shape in enumerate(shapes)])
    return answer, Tables(box_words=words, after=after)


def test_copies_count_once_and_a_copy_that_differs_is_named_with_its_ranks() -> None:
    lab = ReceiverLab.with_versions(mixed_schema(), 1)
    record = lab.versions.records[0]
    table = lab.source.plan(record).last_table
    sums = DigestSums(lab.source)
    first, unsaid = copy_of_all(0, lab.schema, table), copy_of_all(1, lab.schema, None)
    sums.attach((first, unsaid))
    sums.check_staged((first, copy_of_all(1, lab.schema, table.copy())), record, None)
    sums.check_applied((first, unsaid), VersionRef.of(record))
    wrong = table.copy()
    wrong[2, 1] ^= np.uint64(1)
    both = (first, copy_of_all(1, lab.schema, wrong))
    checks: tuple[Callable[[], None], ...] = (
        lambda: sums.check_staged(both, record, None),
        lambda: sums.check_applied(both, VersionRef.of(record)),
    )
    for check in checks:
        with pytest.raises(RanksDisagreeError, match="with other bits") as caught:
            check()
        assert caught.value.facts["ranks"] == (0, 1)
        assert caught.value.facts["tensor"] == lab.schema.tensors[2].name
