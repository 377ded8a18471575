"""Names of stored objects: what is built is understood again, and nothing else is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.keys import (
    TrainerKey,
    anchor_key,
    digest_table_key,
    layout_key,
    log_key,
    manifest_key,
    pack_key,
    parse_trainer_key,
    receipt_key,
    schema_key,
    trainer_anchor_id,
)
from weightstore.ids import (
    RUN_PATTERN,
    Attempt,
    CommitId,
    Epoch,
    RunId,
    SessionId,
    Slot,
    VersionId,
)

HEX = "0123456789abcdef0123456789abcdef"
COMMIT = CommitId(HEX)
SESSION = SessionId(HEX)
NUMBERS = st.integers(1, MAX_INTEGER)
RUNS = st.from_regex(RUN_PATTERN, fullmatch=True).filter(lambda run: len(run) <= 64)
NAMES = st.sampled_from(["model.safetensors", "config.json", ".gitattributes", "...", "a+[b]=c~"])

GOOD = pack_key(RunId("r"), Epoch(1), VersionId(2), Attempt(3), 0, HEX)


@given(st.integers(0, MAX_INTEGER))
def test_keys_of_records_have_twenty_digits_and_sort_as_slots_do(slot: int) -> None:
    key = log_key(Slot(slot))
    assert re.fullmatch("log/[0-9]{20}", key)
    assert int(key.removeprefix("log/")) == slot
    assert log_key(Slot(slot + 1)) > key


@given(RUNS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 9_999), NAMES)
def test_every_trainer_object_says_who_made_it_and_for_which_version(
    run: str, epoch: int, version: int, attempt: int, rank: int, name: str
) -> None:
    r, e, v, a = RunId(run), Epoch(epoch), VersionId(version), Attempt(attempt)
    of_version = TrainerKey(r, e, v, None)
    of_attempt = TrainerKey(r, e, v, a)
    expected = {
        manifest_key(r, e, v, COMMIT): of_version,
        digest_table_key(r, e, v, COMMIT): of_version,
        schema_key(r, e, v, COMMIT): of_version,
        pack_key(r, e, v, a, rank, HEX): of_attempt,
        anchor_key(trainer_anchor_id(r, e, v, a), name): of_attempt,
        receipt_key(r, e, SESSION, v, a, None): of_attempt,
        receipt_key(r, e, SESSION, v, a, rank): of_attempt,
        layout_key(r, e, SESSION): TrainerKey(r, e, None, None),
    }
    assert {key: parse_trainer_key(key) for key in expected} == expected


@pytest.mark.parametrize(
    "key",
    [
        "",
        "FORMAT",
        "head",
        log_key(Slot(0)),
        "anchors/c-" + HEX + "/model.safetensors",
        "receivers/" + HEX,
        GOOD + "\n",
        "/" + GOOD,
        "../" + GOOD,
        GOOD + "/..",
        GOOD.replace("packs/", "packs//"),
        GOOD.replace("packs/", "PACKS/"),
        GOOD.replace("r-1", "R-1"),
        GOOD.replace("r-1", "..-1"),
        GOOD.replace("r-1", "-1"),
        GOOD.replace("r-1", "r-01"),
        GOOD.replace("r-1", "r-x"),
        GOOD.replace("r-1", "r-" + "9" * 20),
        GOOD.replace("r-1", "r-٣"),
        GOOD.replace("r-1", "r" * 65 + "-1"),
        GOOD.replace("/2-3-0-", "/2-3-"),
        GOOD.replace("/2-3-0-", "/+2-3-0-"),
        GOOD.replace(HEX, HEX.upper()),
        GOOD.replace(HEX, HEX[1:]),
        "anchors/r-1-2-3/..",
        "anchors/r-1-2-3/.",
        "anchors/r-1-2-3/",
        "anchors/r-1-2-3/a/b",
        "anchors/r-1-2-3/a b",
        "anchors/r-1-2-3/a\\b",
        "anchors/r-1-2-3/a\x00b",
        "anchors/r-1-2-3/é",
        "anchors/r-1-2-3/" + "x" * 256,
        "anchors/..-1-2-3/x",
        "manifests/r-1/2-" + HEX + ".other",
        "manifests/r-1/../r-1/2-" + HEX,
        "receipts/r-1-" + HEX + "/2-3/closed",
        "layouts/r-1-" + HEX + "/x",
    ],
)
def test_a_name_that_is_not_understood_belongs_to_no_trainer(key: str) -> None:
    assert parse_trainer_key(key) is None


@given(st.text() | st.from_regex(r"(packs|anchors|manifests|receipts)/[a-z0-9_.\-/]*"))
def test_no_text_breaks_the_parser_or_leads_out(key: str) -> None:
    if parse_trainer_key(key) is not None:
        assert key.isascii()
        assert not {"", ".", ".."} & set(key.split("/"))
