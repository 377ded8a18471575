"""FORMAT: a store is told from anything else, and a newer one from ours."""

from __future__ import annotations

import pytest

from weightstore.errors import NotAStoreError, UpgradeRequiredError
from weightstore.format.format_file import FormatFile, decode_format_file, encode_format_file
from weightstore.ids import StoreId

FILE = FormatFile(store_id=StoreId("0f" * 16))


def test_the_bytes() -> None:
    data = encode_format_file(FILE)
    assert data == (
        b'{"format":1,"magic":"weightstore","store_id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"}'
    )
    assert decode_format_file(data, location="here") == FILE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\xff",
        b"{}",
        b"[1]",
        b'{"magic":"other"}',
        b'{"store_id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"}',
        b'{"magic":"weightstore","store_id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f"}',
        encode_format_file(FILE)[:-1],
        encode_format_file(FILE) + b"\n",
        encode_format_file(FILE).replace(b'"format":1', b'"format":0'),
        encode_format_file(FILE).replace(b'"format":1', b'"format":true'),
        encode_format_file(FILE).replace(b"0f0f", b"0F0F"),
    ],
)
def test_anything_else_is_no_store_and_the_error_names_the_place(data: bytes) -> None:
    with pytest.raises(NotAStoreError, match="/data/policy"):
        decode_format_file(data, location="/data/policy")


def test_a_newer_format_asks_for_an_upgrade_whatever_else_it_holds() -> None:
    data = b'{"format":2,"magic":"weightstore","new":{"a":[1]}}'
    with pytest.raises(UpgradeRequiredError, match="format 2"):
        decode_format_file(data, location="here")
