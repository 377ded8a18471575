"""The grammar of keys, as properties over any text."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.errors import InputRefusedError
from weightstore.format import keys
from weightstore.ids import Attempt, CommitId, Epoch, RunId, SessionId, Slot, VersionId
from weightstore.storage.blob_keys import check_hint_key, check_key, check_prefix, is_key
from weightstore.testing.hard_keys import REFUSED_KEYS, STRANGE_KEYS

_TEXTS = st.text(max_size=40) | st.text("./a~-", max_size=12) | st.from_regex(r"anchors/a/.*\Z")


@given(_TEXTS)
def test_an_accepted_key_stays_below_its_root(key: str) -> None:
    if not is_key(key):
        return
    names = check_key(key)
    assert "/".join(names) == key
    path = os.path.normpath(os.path.join("/store", key))  # noqa: PTH118 -- as the system joins
    assert path == f"/store/{key}"
    assert "\0" not in key
    assert all(len(name.encode()) <= 255 for name in names)


@given(_TEXTS)
def test_every_start_of_a_key_is_a_prefix(key: str) -> None:
    if is_key(key) and not key.startswith("anchors/"):
        for size in range(len(key) + 1):
            folder, start = check_prefix(key[:size])
            assert "/".join((*folder, start)) == key[:size]


@pytest.mark.parametrize("key", REFUSED_KEYS, ids=ascii)
def test_refused_keys_are_told_in_printable_text(key: str) -> None:
    with pytest.raises(InputRefusedError) as caught:
        check_key(key)
    assert str(caught.value).isascii()
    assert str(caught.value).count("\n") == 1  # the one before the advice
    assert not is_key(key)


@pytest.mark.parametrize("key", STRANGE_KEYS, ids=ascii)
def test_strange_keys_are_taken(key: str) -> None:
    assert "/".join(check_key(key)) == key


def test_a_long_key_does_not_fill_the_message() -> None:
    with pytest.raises(InputRefusedError) as caught:
        check_key("x" * 1_000_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("run", ["a", "grpo", "..a", "_.", "z" * 64])
def test_every_key_of_the_format_is_a_key(run: str) -> None:
    launch = (RunId(run), Epoch(3))
    version, attempt = VersionId(9_999_999), Attempt(12)
    commit, session = CommitId("c" * 32), SessionId("5" * 32)
    for key in (
        keys.FORMAT_KEY,
        keys.HEAD_KEY,
        keys.log_key(Slot(5)),
        keys.manifest_key(*launch, version, commit),
        keys.digest_table_key(*launch, version, commit),
        keys.schema_key(*launch, version, commit),
        keys.pack_key(*launch, version, attempt, 4095, "0" * 32),
        keys.anchor_key(keys.trainer_anchor_id(*launch, version, attempt), "model.safetensors"),
        keys.receipt_key(*launch, session, version, attempt, None),
        keys.receipt_key(*launch, session, version, attempt, 7),
        keys.layout_key(*launch, session),
    ):
        assert is_key(key), key


def test_hints_are_two_kinds_of_keys() -> None:
    assert check_hint_key("head") == ("head",)
    assert check_hint_key("receivers/a-1") == ("receivers", "a-1")
    for key in ("FORMAT", "log/1", "receivers", "receivers/a/b", "head/x", "anchors/a/head"):
        with pytest.raises(InputRefusedError, match="immutable"):
            check_hint_key(key)
