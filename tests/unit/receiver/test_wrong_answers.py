"""Whatever somebody else decoded wrongly never reaches live weights; the rank goes on alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.codec import PieceCodec
from weightstore.codec.sparse import SparseChange
from weightstore.errors import CorruptObjectError, WrongBaseError
from weightstore.format.manifest import Manifest, PackRef
from weightstore.history.delta_path import DeltaPath, VersionRef
from weightstore.history.pack_jobs import DecodedPieces, PackJob
from weightstore.layout.schema import Schema
from weightstore.receiver.delta_work import DeltaWork, LiveTables
from weightstore.receiver.host_agent import segments
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.live_state import Dirty, Whole
from weightstore.receiver.piece_feed import OwnFeed
from weightstore.receiver.pool import Pool
from weightstore.receiver.reports import Tally
from weightstore.receiver.rolling_scan import scan
from weightstore.settings import Limits
from weightstore.testing.agent_lab import AgentLab, with_agent
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.virtual_time import VirtualClock


@pytest.fixture
def lab() -> AgentLab:
    return AgentLab.with_versions(mixed_schema(), 3, share=0.02)


@pytest.fixture
def twisted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Agents of this process get a bit wrong in one of so many arrays; counts them."""
    count = [0, 5]
    put = segments._put

    def wrong(buffer: NDArray[np.uint8], start: int, array: NDArray[np.generic]) -> None:
        count[0] += 1
        put(buffer, start, array)
        if count[0] % count[1] == 0:
            buffer[start] ^= 1

    monkeypatch.setattr(segments, "_put", wrong)
    yield count
    assert count[0], "no agent decoded anything"


@pytest.mark.parametrize("one_of", [1, 2, 5, 7])
@pytest.mark.parametrize("pool_size_bytes", [None, 0])
def test_wrong_pieces_of_an_agent_are_refused_and_decoded_here(
    lab: AgentLab,
    tmp_path: Path,
    twisted: list[int],
    one_of: int,
    pool_size_bytes: int | None,
) -> None:
    twisted[1] = one_of
    with lab.agent(tmp_path / "agent") as agent:
        settings = with_agent(agent.place, pool_size_bytes=pool_size_bytes)
        receiver, arrays = lab.host_receiver(settings, at=1)
        report = receiver.refit(3)
        assert lab.is_at(arrays, 3)
        assert report.way.value == ("change" if pool_size_bytes is None else "streamed")
        assert "the host agent gave wrong pieces" in report.reason
        assert report.size_bytes.wire > 0
        assert isinstance(receiver.live, Whole)
        # The same agent is not asked again, however right it may be now.
        asked_count = agent.stats().served_pack_count
        lab.put(lab.weights[1])
        assert receiver.refit().target == 4
        assert lab.is_at(arrays, 4)
        assert agent.stats().served_pack_count == asked_count


def test_wrong_live_weights_are_not_the_fault_of_the_agent(lab: AgentLab, tmp_path: Path) -> None:
    with lab.agent(tmp_path / "agent") as agent:
        settings = with_agent(agent.place, scan_refit_count=1000)
        receiver, arrays = lab.host_receiver(settings, at=1, tied=False)
        changed = np.flatnonzero(lab.weights[1]["head"] != lab.weights[2]["head"])
        arrays["head"][changed[0]] ^= 1
        with pytest.raises(WrongBaseError):
            receiver.stage(2)
        assert isinstance(receiver.live, Dirty)
        report = receiver.refit(2)
        assert report.way.value == "full"
        assert receiver.refit(3).reason == ""
        assert lab.is_at(arrays, 3)


@dataclass
class Twisted:
    """Pieces that others decoded, with one of them wrong."""

    job: PackJob
    is_wrong: bool

    def sparse(self, number: int, /) -> SparseChange:
        found = PieceCodec().worker().sparse(self.job.reader.piece(number))
        return replace(found, words=found.words ^ found.words.dtype.type(self.is_wrong))


class TwistedFeed(OwnFeed):
    """Gives right pieces so many times, and then wrong ones until it is distrusted."""

    def __init__(self, lab: AgentLab, right_count: int) -> None:
        super().__init__(lab.blobs, Limits())
        self.right_count = right_count
        self.is_trusted = True

    def load(self, schema: Schema, manifest: Manifest, pack: PackRef, /) -> PackJob:
        job = super().load(schema, manifest, pack)
        if not self.is_trusted:
            return job
        self.right_count -= 1
        decoded: DecodedPieces = Twisted(job, self.right_count < 0)
        return replace(job, decoded=decoded)

    def distrust(self) -> None:
        self.is_trusted = False


def test_a_stream_whose_pieces_turn_wrong_after_their_check_ends_in_an_error(
    lab: AgentLab,
) -> None:
    arrays = {name: lab.expected(1, name).copy() for name in lab.arrays(tied=True)}
    placement = place_arrays(lab.schema, arrays, {})
    records = lab.versions.records
    live = LiveTables(
        lab.versions.plan(records[0]).last_table,
        scan(placement, range(len(placement.destinations)), 1),
    )
    path = lab.source.path(records[2], VersionRef.of(records[0]))
    assert isinstance(path, DeltaPath)
    tally = Tally(VirtualClock())
    first = path.deltas[0].delta
    assert first is not None
    for right_count in range(2 * len(first.packs)):
        feed = TwistedFeed(lab, right_count)
        work = DeltaWork(lab.source, placement, PieceCodec(), feed)
        work.check_first(path, live, tally)
        assert lab.is_at(arrays, 1)
        if right_count < len(first.packs):
            assert not feed.is_trusted
            continue
        with pytest.raises(CorruptObjectError, match="before the first write"):
            work.stream(path, live, tally)
        for name, units in arrays.items():
            units[:] = lab.expected(1, name)


class RestartedFeed(TwistedFeed):
    """Whoever is distrusted is replaced at once by one that is as wrong."""

    def distrust(self) -> None:
        self.right_count = 0


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_second_wrong_agent_is_not_asked_in_the_same_refit(
    lab: AgentLab, *, is_streamed: bool
) -> None:
    arrays = {name: lab.expected(1, name).copy() for name in lab.arrays(tied=True)}
    placement = place_arrays(lab.schema, arrays, {})
    records = lab.versions.records
    lanes = scan(placement, range(len(placement.destinations)), 1)
    live = LiveTables(lab.versions.plan(records[0]).last_table, lanes)
    path = lab.source.path(records[2], VersionRef.of(records[0]))
    assert isinstance(path, DeltaPath)
    tally = Tally(VirtualClock())
    work = DeltaWork(lab.source, placement, PieceCodec(), RestartedFeed(lab, 0))
    if is_streamed:
        work.check_first(path, live, tally)
    else:
        work.stage(path, live, Pool.of_size(1 << 20), tally)
    assert tally.wire_bytes > 0


def test_one_wrong_piece_makes_all_of_its_maker_be_given_up(lab: AgentLab) -> None:
    arrays = {name: lab.expected(1, name).copy() for name in lab.arrays(tied=True)}
    placement = place_arrays(lab.schema, arrays, {})
    records = lab.versions.records
    lanes = scan(placement, range(len(placement.destinations)), 1)
    live = LiveTables(lab.versions.plan(records[0]).last_table, lanes)
    path = lab.source.path(records[2], VersionRef.of(records[0]))
    assert isinstance(path, DeltaPath)
    tally = Tally(VirtualClock())
    expected = DeltaWork(lab.source, placement, PieceCodec()).stage(
        path, live, Pool.of_size(1 << 20), Tally(VirtualClock())
    )
    feed = TwistedFeed(lab, 1)
    found = DeltaWork(lab.source, placement, PieceCodec(), feed).stage(
        path, live, Pool.of_size(1 << 20), tally
    )
    assert not feed.is_trusted
    assert tally.wire_bytes == path.size_bytes
    assert np.array_equal(found.lanes, expected.lanes)
    for one, other in zip(found.parts, expected.parts, strict=True):
        assert np.array_equal(one.change.new_bits, other.change.new_bits)
