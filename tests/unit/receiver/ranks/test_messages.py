"""Messages between ranks come back as they were, and nothing else is taken for one."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from weightstore.errors import CorruptObjectError
from weightstore.receiver.ranks.messages import (
    MAGIC,
    TEXT_LENGTH_MAX,
    Answer,
    Engine,
    Failure,
    Order,
    Part,
    Tables,
    VersionText,
    decode,
    decode_answer,
    encode,
    text_of,
)
from weightstore.testing.rank_messages import HEX, WORK, rank_answer

VERSION = VersionText(version=3, digest="a" * 64)
ENGINE = Engine(engine_id=HEX, generation=4, rank_count=2)
ORDER = Order(
    engine_id=HEX,
    turn=1,
    round=1,
    part=Part.STAGE,
    target=VERSION,
    base=None,
    reason="é",
)


def answer(tables: Tables) -> Answer:
    failure = Failure(code="WS-1", message="m", do="d")
    given = rank_answer(1, turn=2, part=Part.APPLY, work=WORK, tables=tables)
    return given.model_copy(update={"failure": failure, "held": VERSION})


LANES = np.array([[1, 2**64 - 1], [3, 4]], np.uint64)
ALL_TABLES = [
    Tables(),
    Tables(after=LANES),
    Tables(np.array([0, 1, -5, 7], np.int64), LANES, LANES + np.uint64(1)),
    Tables(np.empty(0, np.int64), np.empty((0, 2), np.uint64), None),
]


def test_a_message_comes_back() -> None:
    assert decode(Engine, encode(ENGINE), what="it") == ENGINE
    assert decode(Order, encode(ORDER), what="it") == ORDER
    with pytest.raises(CorruptObjectError):
        decode(Order, encode(ENGINE), what="it")


@pytest.mark.parametrize("tables", ALL_TABLES)
def test_an_answer_comes_back_with_its_tables(tables: Tables) -> None:
    given = answer(tables)
    found, others = decode_answer(encode(given, tables), what="it")
    assert found == given
    for name in ("box_words", "before", "after"):
        first, second = getattr(tables, name), getattr(others, name)
        assert (first is None) == (second is None)
        assert first is None or np.array_equal(first, second)
        assert second is None or second.dtype == first.dtype


def test_any_changed_byte_is_noticed() -> None:
    data = encode(answer(ALL_TABLES[2]), ALL_TABLES[2])
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(CorruptObjectError):
            decode_answer(bytes(changed), what="it")
    for end in range(len(data)):
        with pytest.raises(CorruptObjectError):
            decode_answer(data[:end], what="it")


def sealed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        MAGIC,
        MAGIC + (1 << 63).to_bytes(8, "little"),
        MAGIC + (2).to_bytes(8, "little") + b"{}",
        MAGIC + (4).to_bytes(8, "little") + b"null",
        encode(ENGINE)[:-32],
    ],
)
def test_what_is_sealed_and_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        decode_answer(sealed(body), what="it")


def test_tables_of_other_sizes_than_said_are_refused() -> None:
    given = answer(Tables(after=LANES))
    for tables in (Tables(), Tables(after=LANES[:1]), Tables(before=LANES, after=LANES)):
        with pytest.raises(CorruptObjectError, match="tables of"):
            decode_answer(encode(given, tables), what="it")
    with pytest.raises(CorruptObjectError, match="goes on"):
        decode(Engine, encode(ENGINE, Tables(after=LANES)), what="it")


def test_any_text_fits() -> None:
    assert text_of("\ud800" + "x" * 5000).startswith("?x")
    assert len(text_of("x" * 5000)) == TEXT_LENGTH_MAX
