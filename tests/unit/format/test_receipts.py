"""Receipts survive their bytes; each kind is told from the other."""

from __future__ import annotations

import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.receipts import (
    decode_open_receipt,
    decode_rank_receipt,
    encode_receipt,
)
from weightstore.testing.receipts import OPEN_RECEIPT, RANK_RECEIPT


def test_receipts_survive_their_bytes() -> None:
    assert decode_open_receipt(encode_receipt(OPEN_RECEIPT), what="open") == OPEN_RECEIPT
    assert decode_rank_receipt(encode_receipt(RANK_RECEIPT), what="receipt") == RANK_RECEIPT


def test_one_kind_is_not_the_other() -> None:
    with pytest.raises(CorruptObjectError, match="open"):
        decode_open_receipt(encode_receipt(RANK_RECEIPT), what="open")
    with pytest.raises(CorruptObjectError, match="receipt"):
        decode_rank_receipt(encode_receipt(OPEN_RECEIPT), what="receipt")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"attempt":1', b'"attempt":0'),
        (b'"epoch":1', b'"epoch":-1'),
        (b'"format":1', b'"format":2'),
        (b'"run":"grpo"', b'"run":"a-b"'),
        (b'"host":"node"', b'"host":"' + b"x" * 257 + b'"'),
    ],
)
def test_impossible_values_are_refused(old: bytes, new: bytes) -> None:
    data = encode_receipt(OPEN_RECEIPT)
    assert old in data
    with pytest.raises(CorruptObjectError):
        decode_open_receipt(data.replace(old, new), what="open")
