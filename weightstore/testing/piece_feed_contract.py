"""What every `PieceFeed` must do, whoever decodes the pieces."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.codec.piece import ValueCoding
from weightstore.errors import CorruptObjectError, ObjectMissingError
from weightstore.format.manifest import Manifest, PackRef
from weightstore.history.pack_jobs import PackJob
from weightstore.receiver.piece_feed import PieceFeed
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.real_versions import mixed_schema

CODINGS = (None, *ValueCoding)


def packs_of(lab: AgentLab) -> Iterator[tuple[Manifest, PackRef]]:
    """Every pack of every delta of a lab."""
    for manifest in lab.versions.plan().deltas:
        assert manifest.delta is not None
        for pack in manifest.delta.packs:
            yield manifest, pack


def check_pieces(job: PackJob) -> int:
    """Compare what others have decoded with the codec; how many pieces there are."""
    worker = PieceCodec().worker()
    for number in range(job.reader.piece_count):
        expected = worker.sparse(job.reader.piece(number))
        found = expected if job.decoded is None else job.decoded.sparse(number)
        assert found.combine is expected.combine
        assert found.positions.dtype == expected.positions.dtype
        assert found.words.dtype == expected.words.dtype
        assert np.array_equal(found.positions, expected.positions)
        assert np.array_equal(found.words, expected.words)
    return job.reader.piece_count


class PieceFeedContract:
    """Subclass, and give a fixture `feed` over the fixture `lab`."""

    @pytest.fixture(params=CODINGS, ids=lambda coding: "chosen" if coding is None else coding.name)
    def lab(self, request: pytest.FixtureRequest) -> AgentLab:
        """A store with three versions, their pieces in one coding."""
        return AgentLab.with_versions(mixed_schema(), 3, share=0.05, coding=request.param)

    @pytest.fixture
    def feed(self, lab: AgentLab) -> Iterator[PieceFeed]:
        """A feed of the lab's store."""
        raise NotImplementedError

    def test_each_pack_comes_with_all_its_pieces(self, lab: AgentLab, feed: PieceFeed) -> None:
        """Bytes, positions and words are what the codec makes of the stored pack."""
        for manifest, pack in packs_of(lab):
            job = feed.load(lab.schema, manifest, pack)
            assert (job.manifest, job.pack, job.schema) == (manifest, pack, lab.schema)
            assert check_pieces(job) == pack.piece_count
            feed.release(job)
        feed.release_all()
        assert feed.take_note() == ""

    def test_many_threads_get_the_same(self, lab: AgentLab, feed: PieceFeed) -> None:
        """Also when they all ask for one pack at once."""
        wanted = list(packs_of(lab)) * 4
        with ThreadPoolExecutor(8) as pool:
            jobs = list(pool.map(lambda each: feed.load(lab.schema, *each), wanted))
        for job in jobs:
            check_pieces(job)
        feed.release_all()

    def test_what_was_given_back_can_still_be_read(self, lab: AgentLab, feed: PieceFeed) -> None:
        """Whoever holds a pack holds its memory."""
        jobs = [feed.load(lab.schema, *each) for each in packs_of(lab)]
        feed.release_all()
        feed.release(jobs[0])
        for job in jobs:
            check_pieces(job)

    def test_a_pack_that_is_gone_is_named(self, lab: AgentLab, feed: PieceFeed) -> None:
        """As by any reader of the store."""
        manifest, pack = next(packs_of(lab))
        lab.blobs.delete(pack.key)
        with pytest.raises(ObjectMissingError, match=pack.key):
            feed.load(lab.schema, manifest, pack)

    def test_a_damaged_pack_is_refused(self, lab: AgentLab, feed: PieceFeed) -> None:
        """Whatever is damaged in it."""
        manifest, pack = next(packs_of(lab))
        data = bytearray(lab.blobs.get(pack.key, max_size_bytes=pack.size_bytes))
        data[-1] ^= 1
        lab.blobs.delete(pack.key)
        lab.blobs.put_if_absent(pack.key, bytes(data))
        with pytest.raises(CorruptObjectError, match=pack.key):
            feed.load(lab.schema, manifest, pack)

    def test_a_pack_of_another_size_is_refused(self, lab: AgentLab, feed: PieceFeed) -> None:
        """The manifest says how many pieces there are."""
        manifest, pack = next(packs_of(lab))
        other = pack.model_copy(update={"piece_count": pack.piece_count + 1})
        with pytest.raises(CorruptObjectError):
            feed.load(lab.schema, manifest, other)
