"""Decoders of what ranks say to each other, and of what lies beside host files.

Messages and journals end with a hash of themselves: the inputs are what stands before it, and
get their hash when they are decoded, so that damage comes past it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from weightstore.codec.blocked import BlockedChange
from weightstore.history.delta_path import VersionRef
from weightstore.ids import Sha256, StoreId, VersionId
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.receiver.host_files.mark import FileMark, Mark, parse_mark
from weightstore.receiver.host_files.redo_journal import (
    FilePart,
    JournalHead,
    journal_chunks,
    read_journal,
)
from weightstore.receiver.ranks.messages import (
    SHA256_SIZE_BYTES,
    Answer,
    Engine,
    Failure,
    Order,
    Part,
    Tables,
    decode,
    decode_answer,
    encode,
    version_text,
)
from weightstore.receiver.ranks.shares import decode_boxes, encode_boxes
from weightstore.settings import Limits
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Form
from weightstore.testing.rank_messages import rank_answer
from weightstore.testing.real_versions import ThreeVersions

_REF = VersionRef(VersionId(3), Sha256("a" * 64))
_BASE = VersionRef(VersionId(2), Sha256("b" * 64))
_HEX = "c" * 32


def live_decoders(store: ThreeVersions, folder: Path) -> Iterator[Decoder]:
    """The decoders of this file.

    Args:
        store: Whose schema the boxes are of.
        folder: An empty one, for journals.
    """
    schema = store.versions.schema
    module = "receiver.ranks.messages"
    yield Decoder(
        "rank orders", (_bare(_order()),), _decode_order, Form.BYTES, (f"{module}:decode",)
    )
    yield Decoder("engines", (_bare(_engine()),), _decode_engine, Form.BYTES, (f"{module}:decode",))
    answers = tuple(_bare(_answer(tables), tables) for tables in _tables(schema))
    yield Decoder("rank answers", answers, _decode_answer, Form.BYTES, (f"{module}:decode_answer",))
    words = _boxes(schema).astype("<i8").tobytes()
    yield Decoder(
        "rank boxes",
        (words,),
        partial(_decode_boxes, schema),
        Form.BYTES,
        ("receiver.ranks.shares:decode_boxes",),
    )
    host_files = "receiver.host_files"
    yield Decoder(
        "marks",
        (_mark().to_bytes(),),
        _decode_mark,
        Form.JSON,
        (f"{host_files}.mark:parse_mark",),
    )
    yield Decoder(
        "redo journals",
        (b"".join(bytes(chunk) for chunk in _journal())[:-SHA256_SIZE_BYTES],),
        partial(_decode_journal, folder / "journal"),
        Form.BYTES,
        (f"{host_files}.redo_journal:read_journal",),
        share=0.5,
    )


def _bare(message: Engine | Order | Answer, tables: Tables | None = None) -> bytes:
    """A message without its hash."""
    data = encode(message) if tables is None else encode(message, tables)
    return data[:-SHA256_SIZE_BYTES]


def _hashed(data: bytes) -> bytes:
    return data + hashlib.sha256(data).digest()


def _engine() -> Engine:
    return Engine(engine_id=_HEX, generation=2, rank_count=2)


def _order() -> Order:
    return Order(
        engine_id=_HEX,
        turn=5,
        round=2,
        part=Part.APPLY,
        target=version_text(_REF),
        base=version_text(_BASE),
        reason="a test",
    )


def _answer(tables: Tables) -> Answer:
    given = rank_answer(1, turn=5, tables=tables)
    failure = Failure(code="WS-0000", message="none", do="nothing")
    return given.model_copy(update={"failure": failure, "held": version_text(_BASE)})


def _tables(schema: Schema) -> tuple[Tables, Tables]:
    lanes = np.arange(6, dtype=np.uint64).reshape(-1, 2)
    return Tables(), Tables(_boxes(schema), lanes, lanes + 1)


def _boxes(schema: Schema) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return encode_boxes(
        [(index, Box.whole(spec.unit_shape)) for index, spec in enumerate(schema.tensors)]
    )


def _mark() -> Mark:
    files = (
        FileMark(
            name="model.safetensors",
            size_bytes=100,
            fixed_size_bytes=20,
            fixed_sha256=Sha256("f" * 64),
            has_weights=True,
        ),
        FileMark(
            name="config.json",
            size_bytes=9,
            fixed_size_bytes=9,
            fixed_sha256=Sha256("0" * 64),
            has_weights=False,
        ),
    )
    return Mark(
        change_id=_HEX,
        store_id=StoreId(_HEX),
        version=_REF.version,
        digest=_REF.digest,
        schema_id=Sha256("e" * 64),
        folder="data-0",
        files=files,
    )


def _journal() -> Iterator[bytes]:
    places = np.array([1, 5, 70_000], np.int64)
    bits = np.array([7, 8, 9], np.uint16)
    part = FilePart("model.safetensors", 64, BlockedChange.of(places, bits, bits))
    head = JournalHead(
        base=_BASE.version,
        base_digest=_BASE.digest,
        target=_REF.version,
        target_digest=_REF.digest,
        folder="data-0",
        parts=(part.head,),
    )
    return (bytes(chunk) for chunk in journal_chunks(head, [part]))


def _decode_order(data: bytes) -> None:
    assert encode(decode(Order, _hashed(data), what="an order")) == _hashed(data)


def _decode_engine(data: bytes) -> None:
    assert encode(decode(Engine, _hashed(data), what="an engine")) == _hashed(data)


def _decode_answer(data: bytes) -> None:
    answer, tables = decode_answer(_hashed(data), what="an answer")
    assert encode(answer, tables) == _hashed(data)


def _decode_boxes(schema: Schema, data: bytes) -> None:
    words = np.frombuffer(data[: len(data) // 8 * 8], "<i8").astype(np.int64)
    places = decode_boxes(words, schema, what="a rank")
    assert np.array_equal(encode_boxes(places), words)


def _decode_mark(data: bytes) -> None:
    assert parse_mark(data).to_bytes() == data


def _decode_journal(path: Path, data: bytes) -> None:
    path.write_bytes(_hashed(data))
    with path.open("rb") as stream:
        found = read_journal(stream, Limits())
    for part, head in zip(found.parts, found.head.parts, strict=True):
        assert part.head == head
        places = part.change.places()
        assert not places.size or int(places.min()) >= 0
