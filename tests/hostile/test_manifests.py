"""Manifests from hostile bytes whose hash the record has: typed errors alone (P10)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import decode_json, encode_json, encode_model
from weightstore.format.keys import digest_table_key, pack_key, schema_key
from weightstore.format.manifest import DeltaForm, Manifest, PackRef, decode_manifest
from weightstore.format.objects import ObjectRef
from weightstore.format.records import EMPTY_NOW, ZERO_SHA256, Base, VersionRecord
from weightstore.ids import (
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Slot,
    Step,
    VersionId,
)

RUN, EPOCH, VERSION, ATTEMPT = RunId("r"), Epoch(1), VersionId(2), Attempt(1)
COMMIT, SHA = CommitId("c" * 32), Sha256("ab" * 32)
PACK_KEY = pack_key(RUN, EPOCH, VERSION, ATTEMPT, 0, "0" * 32)


def reference(key: str) -> ObjectRef:
    return ObjectRef(key=key, size_bytes=1, sha256=SHA)


MANIFEST = Manifest(
    version=VERSION,
    run=RUN,
    epoch=EPOCH,
    session=SessionId("5" * 32),
    commit_id=COMMIT,
    attempt=ATTEMPT,
    step=Step(1),
    base=Base(version=VersionId(1), digest=SHA),
    schema_ref=reference(schema_key(RUN, EPOCH, VersionId(1), COMMIT)),
    schema_id=SHA,
    digests=reference(digest_table_key(RUN, EPOCH, VERSION, COMMIT)),
    digest=SHA,
    delta=DeltaForm(
        packs=(PackRef(key=PACK_KEY, size_bytes=9, sha256=SHA, rank=0, piece_count=1),),
        changed_count=1,
        piece_count=1,
        size_bytes=9,
    ),
    full=None,
    chain_count=1,
    chain_size_bytes=9,
)
DATA = encode_model(MANIFEST)


def decode(data: bytes) -> Manifest:
    record = VersionRecord(
        slot=Slot(1),
        parent_sha256=ZERO_SHA256,
        epoch=EPOCH,
        run=RUN,
        session=MANIFEST.session,
        commit_id=COMMIT,
        written_unix_ms=0,
        now=EMPTY_NOW,
        version=VERSION,
        attempt=ATTEMPT,
        step=MANIFEST.step,
        base=MANIFEST.base,
        schema_id=SHA,
        digest=SHA,
        manifest_size_bytes=len(data),
        manifest_sha256=Sha256(hashlib.sha256(data).hexdigest()),
        world_size=1,
    )
    return decode_manifest(data, record)


def paths(value: object, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a JSON value."""
    items: Iterable[tuple[Any, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [prefix, *(path for key, part in items for path in paths(part, (*prefix, key)))]


VALUE: Any = decode_json(DATA, what="the manifest")
PATHS = paths(VALUE)[1:]
JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    2**53,
    2**64,
    "",
    "..",
    "/etc/passwd",
    [],
    {},
    [[]],
    "x" * 2000,
]


def test_the_manifest_itself_is_good() -> None:
    assert decode(DATA) == MANIFEST


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_junk_in_any_place_is_an_error_or_a_manifest_of_those_bytes(
    path: tuple[str | int, ...],
) -> None:
    for junk in JUNK:
        value: Any = decode_json(DATA, what="the manifest")
        part = value
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = junk
        data = encode_json(value)
        try:
            found = decode(data)
        except CorruptObjectError:
            continue
        assert encode_model(found) == data
        keys = [pack.key for pack in found.delta.packs] if found.delta else []
        assert set(keys) <= {PACK_KEY}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: ".".join(map(str, path)))
def test_nothing_may_be_left_out(path: tuple[str | int, ...]) -> None:
    value: Any = decode_json(DATA, what="the manifest")
    part = value
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    with pytest.raises(CorruptObjectError):
        decode(encode_json(value))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"format":' + b"9" * 10_000 + b"}",
        DATA + b" ",
        DATA.replace(b'"step":1', b'"step":1.0'),
        DATA.replace(b'"step":1', b'"step":1,"step":1'),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        decode(data)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_an_error_or_a_manifest_of_those_bytes(place: int, flip: int) -> None:
    data = bytearray(DATA)
    data[place] ^= flip
    try:
        found = decode(bytes(data))
    except CorruptObjectError:
        return
    assert encode_model(found) == bytes(data)
