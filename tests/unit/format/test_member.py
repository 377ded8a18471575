"""What receivers say about themselves survives its bytes, and nothing else parses as it."""

from __future__ import annotations

import hashlib
import json

import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import encode_json
from weightstore.format.member import (
    MEMBER_TEXT_LENGTH_MAX,
    Member,
    MemberVersion,
    decode_member,
    encode_member,
    member_text,
    members_sha256,
)
from weightstore.ids import Sha256, VersionId
from weightstore.settings import Limits
from weightstore.testing.members import empty_member

VERSION = MemberVersion(version=VersionId(3), digest=Sha256("d" * 64))
EMPTY = empty_member()
BUSY = EMPTY.model_copy(
    update={"state": "whole", "live": VERSION, "staged": VERSION, "activate_slot": 7, "counter": 9}
)


@pytest.mark.parametrize("member", [EMPTY, BUSY])
def test_a_member_survives_its_bytes(member: Member) -> None:
    assert decode_member(encode_member(member), what="a member") == member


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"counter":9', b'"counter":-1'),
        (b'"format":1', b'"format":2'),
        (b'"mode":"active"', b'"mode":"other"'),
        (b'"state":"whole"', b'"state":"half"'),
        (b'"rank_count":1', b'"rank_count":0'),
        (b'"version":3', b'"version":0'),
        (b'"name":"rollout-1"', b'"name":"' + b"x" * 257 + b'"'),
        (b'"phase":""', b'"phase":null'),
        (b'"process":101', b'"process":true'),
        (b'"process":101,', b""),
    ],
)
def test_impossible_values_are_refused(old: bytes, new: bytes) -> None:
    data = encode_member(BUSY)
    assert old in data
    with pytest.raises(CorruptObjectError, match="receivers/x"):
        decode_member(data.replace(old, new), what="receivers/x")


def test_a_field_of_a_later_release_is_kept() -> None:
    said = json.loads(encode_member(EMPTY)) | {"zone": "a"}
    assert encode_member(decode_member(encode_json(said), what="a member")) == encode_json(said)


def test_the_longest_member_is_below_its_bound() -> None:
    longest = "\x01" * MEMBER_TEXT_LENGTH_MAX  # each takes six bytes of JSON
    texts = dict.fromkeys(("name", "host", "boot_id", "phase"), longest)
    member = Member.model_validate(BUSY.model_dump() | texts)
    assert len(encode_member(member)) < Limits().member_size_bytes


def test_the_hash_of_a_list_is_of_its_ids_and_counters_in_order() -> None:
    first, second = empty_member(1), BUSY.model_copy(update={"member_id": "f" * 32})
    listed = f'[["{first.member_id}",0],["{"f" * 32}",9]]'
    assert members_sha256([second, first]) == hashlib.sha256(listed.encode()).hexdigest()
    assert members_sha256([]) == hashlib.sha256(b"[]").hexdigest()
    assert members_sha256([first]) != members_sha256([first.model_copy(update={"counter": 1})])


def test_any_text_becomes_one_that_a_member_can_hold() -> None:
    assert member_text("rollout-3") == "rollout-3"
    for text in ("x" * 1000, "\ud800", "\U0001f600" * 300):
        said = member_text(text)
        member = Member.model_validate(EMPTY.model_dump() | {"name": said})
        assert decode_member(encode_member(member), what="a member").name == said
