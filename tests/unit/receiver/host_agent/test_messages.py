"""Every message has one form, and nothing else is one."""

from __future__ import annotations

import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.objects import ObjectRef
from weightstore.ids import Sha256, StoreId
from weightstore.receiver.host_agent.messages import (
    AgentStats,
    Done,
    Granted,
    Hello,
    PackRequest,
    Refused,
    Release,
    Reply,
    Request,
    StatsRequest,
    Welcome,
    decode_reply,
    decode_request,
    encode_message,
)
from weightstore.testing.agent_lab import AgentLab
from weightstore.testing.piece_feed_contract import packs_of
from weightstore.testing.real_versions import mixed_schema

SHA = Sha256("a" * 64)
REQUESTS: tuple[Request, ...] = (
    Hello(protocol=1, store_id=StoreId("0" * 32), process=7),
    PackRequest(
        version=2,
        pack=ObjectRef(key="packs/a", size_bytes=10, sha256=SHA),
        piece_count=3,
        schema_id=SHA,
        schema_ref=ObjectRef(key="manifests/a", size_bytes=10, sha256=SHA),
        wait_ms=1000,
    ),
    Release(grants=[1, 2]),
    StatsRequest(),
)
REPLIES: tuple[Reply, ...] = (
    Welcome(protocol=1, agent_id="1" * 32),
    Granted(grant=1, size_bytes=100),
    Refused(reason="busy", message="no memory"),
    Done(),
    AgentStats(decoded_piece_count=3),
)


@pytest.mark.parametrize("message", REQUESTS, ids=lambda one: one.kind)
def test_requests_survive(message: Request) -> None:
    assert decode_request(encode_message(message)) == message
    with pytest.raises(CorruptObjectError):
        decode_reply(encode_message(message))


def test_a_request_says_of_a_pack_what_the_manifest_says() -> None:
    for manifest, pack in packs_of(AgentLab.with_versions(mixed_schema(), 2)):
        request = PackRequest.of(manifest, pack, 7)
        assert (request.version, request.wait_ms) == (manifest.version, 7)
        assert (request.schema_id, request.schema_ref) == (manifest.schema_id, manifest.schema_ref)
        claimed = {**request.pack.model_dump(), "piece_count": request.piece_count}
        assert claimed == pack.model_dump(include=set(claimed))


@pytest.mark.parametrize("message", REPLIES, ids=lambda one: one.kind)
def test_replies_survive(message: Reply) -> None:
    assert decode_reply(encode_message(message)) == message
    with pytest.raises(CorruptObjectError):
        decode_request(encode_message(message))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"kind":"stats"} ',
        b'{"kind":"hello"}',
        b'{"kind":"other"}',
        b'{"grants":[-1],"kind":"release"}',
        b'{"grants":[' + b",".join([b"1"] * 1025) + b'],"kind":"release"}',
        b'{"kind":"hello","process":1,"protocol":1,"store_id":"../../etc"}',
        b"\xff\xfe",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        decode_request(data)
