"""Manifests: bound to their record, and every key in them to its one place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from weightstore.errors import CorruptObjectError
from weightstore.format.canonical import decode_json, encode_json, encode_model
from weightstore.format.keys import (
    anchor_key,
    digest_table_key,
    pack_key,
    schema_key,
    trainer_anchor_id,
)
from weightstore.format.manifest import (
    BLOCKS_NAME,
    AnchorFile,
    DeltaForm,
    FullForm,
    IndexRange,
    Manifest,
    PackRef,
    decode_manifest,
    is_plain_file_name,
)
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

RUN, EPOCH, VERSION, ATTEMPT = RunId("grpo"), Epoch(3), VersionId(7), Attempt(2)
COMMIT, SESSION = CommitId("c" * 32), SessionId("5" * 32)
SHA, DIGEST, SCHEMA_ID = Sha256("ab" * 32), Sha256("d1" * 32), Sha256("5c" * 32)
ANCHOR_ID = trainer_anchor_id(RUN, EPOCH, VERSION, ATTEMPT)


def reference(key: str) -> ObjectRef:
    return ObjectRef(key=key, size_bytes=100, sha256=SHA)


def pack(rank: int) -> PackRef:
    key = pack_key(RUN, EPOCH, VERSION, ATTEMPT, rank, f"{rank:032x}")
    return PackRef(key=key, size_bytes=1000, sha256=SHA, rank=rank, piece_count=10)


MANIFEST = Manifest(
    version=VERSION,
    run=RUN,
    epoch=EPOCH,
    session=SESSION,
    commit_id=COMMIT,
    attempt=ATTEMPT,
    step=Step(412),
    base=Base(version=VersionId(6), digest=SHA),
    schema_ref=reference(schema_key(RunId("base"), Epoch(1), VersionId(1), CommitId("0" * 32))),
    schema_id=SCHEMA_ID,
    digests=reference(digest_table_key(RUN, EPOCH, VERSION, COMMIT)),
    digest=DIGEST,
    delta=DeltaForm(packs=(pack(0), pack(1)), changed_count=50, piece_count=20, size_bytes=2000),
    full=FullForm(
        anchor_id=ANCHOR_ID,
        files=(
            AnchorFile(name="config.json", size_bytes=10, role="asset"),
            AnchorFile(name="model.safetensors", size_bytes=90, role="weights"),
        ),
        blocks=reference(anchor_key(ANCHOR_ID, BLOCKS_NAME)),
        size_bytes=100,
    ),
    chain_count=0,
    chain_size_bytes=0,
    unmentioned=(
        IndexRange(first=0, last=3),
        IndexRange(first=5, last=5),
    ),
)


def record_of(data: bytes, **changes: object) -> VersionRecord:
    fields: dict[str, Any] = {
        "slot": Slot(9),
        "parent_sha256": ZERO_SHA256,
        "epoch": EPOCH,
        "run": RUN,
        "session": SESSION,
        "commit_id": COMMIT,
        "written_unix_ms": 0,
        "now": EMPTY_NOW,
        "version": VERSION,
        "attempt": ATTEMPT,
        "step": Step(412),
        "base": MANIFEST.base,
        "schema_id": SCHEMA_ID,
        "digest": DIGEST,
        "manifest_size_bytes": len(data),
        "manifest_sha256": Sha256(hashlib.sha256(data).hexdigest()),
        "world_size": 1,
    }
    return VersionRecord(**(fields | changes))


def decode_changed(change: Callable[[dict[str, Any]], object]) -> Manifest:
    """Decode the manifest after a change of its JSON, with a record that has its hash."""
    value: Any = decode_json(encode_model(MANIFEST), what="the manifest")
    change(value)
    data = encode_json(value)
    return decode_manifest(data, record_of(data))


def test_a_manifest_survives_its_bytes() -> None:
    data = encode_model(MANIFEST)
    assert decode_manifest(data, record_of(data)) == MANIFEST


def test_unknown_fields_are_kept() -> None:
    found = decode_changed(lambda value: value.update(later=[1, "x"]))
    assert b'"later":[1,"x"]' in encode_model(found)


def test_other_bytes_than_the_record_names_are_refused() -> None:
    data = encode_model(MANIFEST)
    with pytest.raises(CorruptObjectError, match="bytes"):
        decode_manifest(data[:-1], record_of(data))
    other = data.replace(b'"step":412', b'"step":413')
    with pytest.raises(CorruptObjectError, match="SHA-256"):
        decode_manifest(other, record_of(data))
    spaced = data.replace(b'"step":412', b'"step": 412')
    with pytest.raises(CorruptObjectError, match="canonical"):
        decode_manifest(spaced, record_of(spaced))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", VersionId(8)),
        ("run", RunId("other")),
        ("epoch", Epoch(4)),
        ("session", SessionId("6" * 32)),
        ("commit_id", CommitId("d" * 32)),
        ("attempt", Attempt(3)),
        ("step", Step(413)),
        ("base", None),
        ("base", Base(version=VersionId(6), digest=DIGEST)),
        ("schema_id", SHA),
        ("digest", SHA),
    ],
)
def test_every_field_shared_with_the_record_must_agree(field: str, value: object) -> None:
    data = encode_model(MANIFEST)
    with pytest.raises(CorruptObjectError, match=field) as refused:
        decode_manifest(data, record_of(data, **{field: value}))
    assert refused.value.facts["field"] == field


def test_one_form_is_enough() -> None:
    def only_delta(value: dict[str, Any]) -> None:
        value.update(full=None, chain_count=3, chain_size_bytes=2000)

    found = decode_changed(only_delta)
    assert (found.full, found.chain_count) == (None, 3)
    first = MANIFEST.model_dump()
    first.update(delta=None, base=None, unmentioned=())
    assert Manifest.model_validate(first).delta is None


def test_an_empty_delta_has_no_packs() -> None:
    form = DeltaForm(packs=(), changed_count=0, piece_count=0, size_bytes=0)
    data = encode_model(MANIFEST.model_copy(update={"delta": form}))
    assert decode_manifest(data, record_of(data)).delta == form


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no form": lambda m: m.update(full=None, delta=None),
    "the delta has no base": lambda m: m.update(base=None),
    "tensors have no base": lambda m: m.update(base=None, delta=None),
    "no older version": lambda m: m["base"].update(version=7),
    "chain": lambda m: m.update(chain_count=1),
    "chain is impossible": lambda m: m.update(full=None),
    "of the chain": lambda m: m.update(full=None, chain_count=1, chain_size_bytes=1999),
    "the chain is": lambda m: m.update(full=None, chain_count=4097, chain_size_bytes=2000),
    "sums over the packs": lambda m: m["delta"].update(size_bytes=2001),
    "sums over": lambda m: m["delta"].update(piece_count=21),
    "changed count": lambda m: m["delta"].update(changed_count=19),
    "named twice": lambda m: m["delta"]["packs"].__setitem__(1, m["delta"]["packs"][0]),
    "not sorted by name": lambda m: m["full"]["files"].reverse(),
    "no file has weights": lambda m: m["full"]["files"][1].update(role="asset"),
    "sum over the files": lambda m: m["full"].update(size_bytes=1),
    "unmentioned": lambda m: m["unmentioned"].reverse(),
    "tensors are not sorted": lambda m: m["unmentioned"][0].update(first=4),
    "unmentioned tensors are": lambda m: m["unmentioned"][1].update(first=3),
    "role": lambda m: m["full"]["files"][0].update(role="pickle"),
    "format": lambda m: m.update(format=2),
}


@pytest.mark.parametrize("why", WRONG)
def test_contradictions_are_refused(why: str) -> None:
    with pytest.raises(CorruptObjectError, match=why):
        decode_changed(WRONG[why])


OTHER_KEYS: list[tuple[tuple[str | int, ...], str]] = [
    (("digests", "key"), digest_table_key(RUN, EPOCH, VERSION, CommitId("e" * 32))),
    (("digests", "key"), f"manifests/{RUN}-{EPOCH}/../{VERSION}-{COMMIT}.digests"),
    (("schema_ref", "key"), schema_key(RUN, EPOCH, VersionId(8), COMMIT)),
    (("schema_ref", "key"), digest_table_key(RUN, EPOCH, VERSION, COMMIT)),
    (("schema_ref", "key"), "FORMAT"),
    (("schema_ref", "key"), "/etc/passwd"),
    (("schema_ref", "key"), "../../x.schema"),
    (("schema_ref", "key"), "manifests/../1-" + "0" * 32 + ".schema"),
    (("schema_ref", "key"), "anchors/grpo-1-1-1/x.schema"),
    (("schema_ref", "key"), schema_key(RUN, EPOCH, VERSION, COMMIT) + "\n"),
    (("delta", "packs", 0, "key"), pack_key(RUN, EPOCH, VERSION, Attempt(1), 0, "0" * 32)),
    (("delta", "packs", 0, "key"), pack_key(RUN, EPOCH, VERSION, ATTEMPT, 1, "0" * 32)),
    (("delta", "packs", 0, "key"), pack_key(RUN, Epoch(2), VERSION, ATTEMPT, 0, "0" * 32)),
    (("delta", "packs", 0, "key"), pack_key(RUN, EPOCH, VersionId(6), ATTEMPT, 0, "0" * 32)),
    (("delta", "packs", 0, "key"), pack_key(RUN, EPOCH, VERSION, ATTEMPT, 0, "../x")),
    (("delta", "packs", 0, "key"), "s3://other/pack.safetensors"),
    (("full", "anchor_id"), trainer_anchor_id(RUN, EPOCH, VERSION, Attempt(1))),
    (("full", "anchor_id"), ".."),
    (("full", "blocks", "key"), anchor_key(ANCHOR_ID, "other")),
    (("full", "blocks", "key"), anchor_key("other-1-1-1", BLOCKS_NAME)),
]


@pytest.mark.parametrize(("path", "key"), OTHER_KEYS)
def test_a_key_that_leads_anywhere_else_is_refused(path: tuple[str | int, ...], key: str) -> None:
    def change(value: dict[str, Any]) -> None:
        parent: Any = value
        for part in path[:-1]:
            parent = parent[part]
        assert path[-1] in parent
        parent[path[-1]] = key

    with pytest.raises(CorruptObjectError):
        decode_changed(change)


def test_a_full_form_of_another_attempt_is_refused_with_its_own_blocks() -> None:
    def change(value: dict[str, Any]) -> None:
        other = trainer_anchor_id(RUN, EPOCH, VERSION, Attempt(1))
        value["full"]["anchor_id"] = other
        value["full"]["blocks"]["key"] = anchor_key(other, BLOCKS_NAME)

    with pytest.raises(CorruptObjectError, match="attempt's own"):
        decode_changed(change)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "../a",
        "a\\b",
        "a\0",
        "a\n",
        "a b",
        "é",
        "x" * 256,
        "\x7f",
        BLOCKS_NAME,
    ],
)
def test_file_names_that_lead_elsewhere_are_refused(name: str) -> None:
    assert not is_plain_file_name(name)
    with pytest.raises(CorruptObjectError):
        decode_changed(lambda value: value["full"]["files"][0].update(name=name))


@pytest.mark.parametrize(
    "name", ["config.json", ".gitattributes", "...", "a-b_c+d=e@f,(1).txt", "CON", "x" * 255]
)
def test_ordinary_file_names_are_allowed(name: str) -> None:
    assert is_plain_file_name(name)
    assert AnchorFile(name=name, size_bytes=0, role="asset").name == name
