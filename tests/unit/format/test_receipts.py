"""Receipts survive their bytes; each kind is told from the other."""

from __future__ import annotations

import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.manifest import PackRef
from weightstore.format.objects import ObjectRef
from weightstore.format.receipts import (
    OpenReceipt,
    RankReceipt,
    decode_open_receipt,
    decode_rank_receipt,
    encode_receipt,
)
from weightstore.ids import (
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Sha256,
    Step,
    VersionId,
)

SHA = Sha256("ab" * 32)
REF = ObjectRef(key="x", size_bytes=1, sha256=SHA)
OPEN = OpenReceipt(
    run=RunId("grpo"),
    epoch=Epoch(1),
    session=SessionId("a" * 32),
    version=VersionId(5),
    attempt=Attempt(2),
    commit_id=CommitId("b" * 32),
    deadline_unix_ms=1,
    host="node",
    process=7,
)
RANK = RankReceipt(
    run=OPEN.run,
    epoch=OPEN.epoch,
    session=OPEN.session,
    version=OPEN.version,
    attempt=OPEN.attempt,
    commit_id=OPEN.commit_id,
    rank=3,
    step=Step(412),
    schema_id=SHA,
    packs=(PackRef(key="p", size_bytes=9, sha256=SHA, rank=3, piece_count=1),),
    changed_count=4,
    before=REF,
    after=REF,
)


def test_receipts_survive_their_bytes() -> None:
    assert decode_open_receipt(encode_receipt(OPEN), what="open") == OPEN
    assert decode_rank_receipt(encode_receipt(RANK), what="receipt") == RANK


def test_one_kind_is_not_the_other() -> None:
    with pytest.raises(CorruptObjectError, match="open"):
        decode_open_receipt(encode_receipt(RANK), what="open")
    with pytest.raises(CorruptObjectError, match="receipt"):
        decode_rank_receipt(encode_receipt(OPEN), what="receipt")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"attempt":2', b'"attempt":0'),
        (b'"epoch":1', b'"epoch":-1'),
        (b'"format":1', b'"format":2'),
        (b'"run":"grpo"', b'"run":"a-b"'),
        (b'"host":"node"', b'"host":"' + b"x" * 257 + b'"'),
    ],
)
def test_impossible_values_are_refused(old: bytes, new: bytes) -> None:
    data = encode_receipt(OPEN)
    assert old in data
    with pytest.raises(CorruptObjectError):
        decode_open_receipt(data.replace(old, new), what="open")
