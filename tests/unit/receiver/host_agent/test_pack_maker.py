"""From a request to a segment: everything that a rank says is checked against stored bytes."""

from __future__ import annotations

import os

import pytest

from weightstore.clock import SystemClock
from weightstore.errors import CorruptObjectError, ObjectMissingError
from weightstore.ids import Sha256
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.messages import PackRequest
from weightstore.receiver.host_agent.pack_maker import PackMaker
from weightstore.receiver.host_agent.segment_cache import Reservation, SegmentCache
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.piece_feed_contract import packs_of
from weightstore.testing.real_versions import mixed_schema


@pytest.fixture(scope="module")
def lab() -> AgentLab:
    return AgentLab.with_versions(mixed_schema(), 2)


@pytest.fixture
def request_(lab: AgentLab) -> PackRequest:
    manifest, pack = next(packs_of(lab))
    return PackRequest.of(manifest, pack, 1000)


@pytest.fixture
def reservation() -> Reservation:
    cache = SegmentCache(HostAgentSettings(), clock=SystemClock())
    cache.close(1.0)
    return Reservation(cache, 0.0)


def maker_of(lab: AgentLab) -> PackMaker:
    return PackMaker(lab.blobs, lab.source.settings, schema_count=1)


def test_it_says_what_it_made(
    lab: AgentLab, request_: PackRequest, reservation: Reservation
) -> None:
    made = maker_of(lab).make(request_, reservation)
    assert made.piece_count == request_.piece_count
    assert made.wire_bytes == request_.pack.size_bytes
    assert os.fstat(made.file).st_size == made.size_bytes
    assert reservation.size_bytes == made.size_bytes + request_.pack.size_bytes
    os.close(made.file)


def test_wrong_claims_are_refused(
    lab: AgentLab, request_: PackRequest, reservation: Reservation
) -> None:
    other = Sha256("b" * 64)
    wrong: list[tuple[dict[str, object], type[Exception]]] = [
        ({"piece_count": request_.piece_count + 1}, CorruptObjectError),
        ({"schema_id": other}, CorruptObjectError),
        ({"pack": request_.pack.model_copy(update={"sha256": other})}, CorruptObjectError),
        ({"pack": request_.pack.model_copy(update={"size_bytes": 5})}, CorruptObjectError),
        ({"pack": request_.pack.model_copy(update={"size_bytes": 2**53 - 1})}, CorruptObjectError),
        ({"pack": request_.pack.model_copy(update={"key": "packs/none"})}, ObjectMissingError),
        # A stored object that is no pack, however well it is named.
        ({"pack": request_.schema_ref}, CorruptObjectError),
        ({"schema_ref": request_.pack}, CorruptObjectError),
    ]
    for update, error in wrong:
        with pytest.raises(error):
            maker_of(lab).make(request_.model_copy(update=update), reservation)


def test_schemas_are_kept_up_to_a_count(lab: AgentLab, reservation: Reservation) -> None:
    maker = maker_of(lab)
    for manifest, pack in packs_of(lab):
        request = PackRequest.of(manifest, pack, 1000)
        if maker._schemas:
            gone = manifest.schema_ref.model_copy(update={"key": "gone"})
            request = request.model_copy(update={"schema_ref": gone})
        os.close(maker.make(request, reservation).file)
    assert len(maker._schemas) == 1
