"""Decoders of what ranks and their host agent give each other."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from functools import partial

import numpy as np

from weightstore.clock import SystemClock
from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptObjectError
from weightstore.format.manifest import Manifest, PackRef
from weightstore.format.pack import PackReader
from weightstore.history.manifests import load_manifest
from weightstore.history.workers import Lender, Workers
from weightstore.ids import StoreId
from weightstore.layout.schema import Schema
from weightstore.receiver.host_agent.channel import Channel, ChannelError
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
from weightstore.receiver.host_agent.segments import SegmentLayout, make_segment, open_segment
from weightstore.settings import Limits
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Form
from weightstore.testing.real_versions import ThreeVersions

_LIMITS = Limits()
_MESSAGE_SIZE_BYTES_MAX = 4096
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_WAIT_S = 5.0


def agent_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    """The decoders of this file.

    Args:
        store: Whose packs are good inputs.
    """
    manifest = load_manifest(store.blobs, store.versions.records[-1], _LIMITS)
    assert manifest.delta is not None
    pack = max(manifest.delta.packs, key=lambda each: each.piece_count)
    requests, replies = _requests(manifest, pack), _replies()
    module = "receiver.host_agent"
    yield Decoder(
        "agent requests",
        tuple(encode_message(each) for each in requests),
        _decode_request,
        Form.JSON,
        (f"{module}.messages:decode_request",),
    )
    yield Decoder(
        "agent replies",
        tuple(encode_message(each) for each in replies),
        _decode_reply,
        Form.JSON,
        (f"{module}.messages:decode_reply",),
    )
    frames = (encode_message(each) for each in (*requests, *replies))
    yield Decoder(
        "agent frames",
        tuple(struct.pack(">I", len(data)) + data for data in frames),
        _decode_frame,
        Form.BYTES,
        (f"{module}.channel:Channel.receive",),
    )
    data = store.blobs.get(pack.key, max_size_bytes=pack.size_bytes)
    yield Decoder(
        "agent segments",
        (_arrays_of(data, store.versions.schema),),
        partial(_decode_arrays, store.versions.schema, pack, data),
        Form.BYTES,
        (f"{module}.segments:open_segment", f"{module}.segments:SharedPieces.sparse"),
        share=0.5,
    )


def _requests(manifest: Manifest, pack: PackRef) -> tuple[Request, ...]:
    return (
        Hello(protocol=1, store_id=StoreId("0" * 32), process=7),
        PackRequest.of(manifest, pack, 1000),
        Release(grants=[1, 2, 3]),
        StatsRequest(),
    )


def _replies() -> tuple[Reply, ...]:
    return (
        Welcome(protocol=1, agent_id="1" * 32),
        Granted(grant=1, size_bytes=100),
        Refused(reason="busy", message="no memory"),
        Done(),
        AgentStats(decoded_piece_count=3),
    )


def _decode_request(data: bytes) -> None:
    assert encode_message(decode_request(data)) == data


def _decode_reply(data: bytes) -> None:
    assert encode_message(decode_reply(data)) == data


def _decode_frame(data: bytes) -> None:
    """What a peer says before it hangs up."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    size_max = _MESSAGE_SIZE_BYTES_MAX
    with other, Channel(one, clock=SystemClock(), size_bytes_max=size_max) as channel:
        other.sendall(data[: 2 * size_max])
        other.shutdown(socket.SHUT_WR)
        try:
            found, file = channel.receive(timeout_s=_WAIT_S, first_timeout_s=_WAIT_S)
        except ChannelError as error:
            raise CorruptObjectError(str(error)) from error
    assert file is None
    assert struct.pack(">I", len(found)) + found == data[: 4 + len(found)]


def _arrays_of(data: bytes, schema: Schema) -> bytes:
    """What follows the pack in its segment."""
    reader = PackReader(data, schema, _LIMITS)
    layout = SegmentLayout.of(len(data), reader)
    with Workers(1) as workers:
        file = make_segment(data, reader, layout, Lender(PieceCodec().worker), workers)
    with os.fdopen(file, "rb") as made:
        return made.read()[len(data) :]


def _decode_arrays(schema: Schema, pack: PackRef, pack_data: bytes, data: bytes) -> None:
    """A segment of the right pack, and with whatever else behind it."""
    file = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(os.dup(file), "wb") as forged:
        forged.write(pack_data + data)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    reader, pieces = open_segment(file, schema, pack, _LIMITS)
    for number in range(reader.piece_count):
        piece = reader.piece(number)
        found = pieces.sparse(number)
        assert found.words.size == found.positions.size == piece.changed_count
        assert found.words.itemsize == piece.width_bytes
        assert bool(np.all(np.diff(found.positions.astype(np.int64)) > 0))
        assert int(found.positions[-1]) < piece.unit_count
