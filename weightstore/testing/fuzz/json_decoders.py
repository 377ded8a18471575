"""Decoders of what is stored as JSON, and of names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pydantic import ValidationError

from weightstore.errors import WeightStoreError
from weightstore.format.canonical import decode_json, decode_model, encode_json, encode_model
from weightstore.format.format_file import FormatFile, decode_format_file, encode_format_file
from weightstore.format.keys import (
    layout_key,
    log_key,
    member_key,
    parse_member_key,
    parse_trainer_key,
    receipt_key,
)
from weightstore.format.manifest import Manifest, decode_manifest
from weightstore.format.member import MemberVersion, decode_member, encode_member, members_sha256
from weightstore.format.objects import ObjectRef
from weightstore.format.receipts import (
    OpenReceipt,
    RankReceipt,
    decode_open_receipt,
    decode_rank_receipt,
    encode_receipt,
)
from weightstore.format.records import (
    ZERO_SHA256,
    Base,
    Record,
    VersionRecord,
    decode_record,
    encode_record,
)
from weightstore.format.rules import EMPTY_PREFIX, Invalid, Prefix, advance, validate
from weightstore.history.activation import has_applied, has_staged
from weightstore.history.manifests import load_manifest
from weightstore.history.members import list_members
from weightstore.ids import (
    Attempt,
    Epoch,
    RunId,
    SessionId,
    Slot,
    StoreId,
    VersionId,
    parse_engine_name,
    parse_number,
    parse_run_id,
    parse_tag_name,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits
from weightstore.storage.blob_keys import check_key
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Form
from weightstore.testing.hard_keys import STRANGE_KEYS
from weightstore.testing.log_story import LogStory
from weightstore.testing.members import empty_member
from weightstore.testing.real_versions import ThreeVersions, mixed_schema

_STORE_ID = StoreId("0" * 32)
_SHARED = (
    *("version", "run", "epoch", "session", "commit_id", "attempt"),
    *("step", "schema_id", "digest"),
)
"""What a manifest repeats of its record; and `base`."""


def json_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    """The decoders of this file.

    Args:
        store: Whose objects are good inputs.
    """
    yield from _record_decoders()
    yield from _object_decoders(store)
    yield from _name_decoders(store)


def _record_decoders() -> Iterator[Decoder]:
    story = LogStory().begin().claimed().published(3)
    story.put(story.intent())
    builders: tuple[Callable[[], Record], ...] = (
        *(story.opening, story.closing, story.version, story.alt, story.void_attempt),
        *(story.void_intent, story.tag, story.activate, story.retire, story.format),
    )
    seeds = (encode_record(LogStory().init()), *(encode_record(build()) for build in builders))
    yield Decoder(
        "records",
        seeds,
        partial(_decode_record, story.prefix),
        Form.JSON,
        (
            "format.records:decode_record",
            "format.canonical:decode_validated",
            "format.rules:validate",
        ),
    )


def _decode_record(prefix: Prefix, data: bytes) -> None:
    record = decode_record(data, slot=Slot(said_slot(data)))
    assert encode_record(record) == data
    # What parses must be judged, whatever it says: the rules see it next.
    for before in (EMPTY_PREFIX, prefix):
        verdict = validate(before, record)
        after = advance(before, record, ZERO_SHA256)
        assert after.next_slot == before.next_slot + 1
        if isinstance(verdict, Invalid):
            assert after.now == before.now


def said_slot(data: bytes) -> int:
    """The slot that a record says it is at, so that this alone refuses none."""
    try:
        slot = json.loads(data)["slot"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return 0
    return slot if type(slot) is int else 0


def _object_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    manifests = _manifests(store)
    yield Decoder(
        "manifests",
        tuple(encode_model(manifest) for manifest in manifests),
        partial(_decode_manifest, store.versions.records[-1]),
        Form.JSON,
        ("format.manifest:decode_manifest", "format.canonical:decode_model"),
    )
    schemas = (
        mixed_schema(),
        Schema.build(
            [TensorSpec(name, DType.F8_E4M3, (2, 3)) for name in ("a", "a.scale", "\u00e9")],
            aliases=[Alias("b", "a"), Alias("c", "a")],
            atomic_groups=[("a", "a.scale")],
        ),
        Schema.build([]),
    )
    yield Decoder(
        "schemas",
        tuple(schema.to_bytes() for schema in schemas),
        _decode_schema,
        Form.JSON,
        ("layout.schema:Schema.from_bytes", "layout.dtypes:DType.parse"),
    )
    yield Decoder(
        "FORMAT",
        (encode_format_file(FormatFile(store_id=_STORE_ID)),),
        _decode_format_file,
        Form.JSON,
        ("format.format_file:decode_format_file",),
    )
    yield from _receipt_decoders(manifests[-1])
    yield from _member_decoders(manifests[-1])
    yield from _plain_decoders(manifests[-1].schema_ref)


def _receipt_decoders(manifest: Manifest) -> Iterator[Decoder]:
    receipts = _receipts(manifest)
    yield Decoder(
        "open receipts",
        (encode_receipt(receipts[0]),),
        _decode_open_receipt,
        Form.JSON,
        ("format.receipts:decode_open_receipt", "format.canonical:decode_model"),
    )
    yield Decoder(
        "rank receipts",
        (encode_receipt(receipts[1]),),
        _decode_rank_receipt,
        Form.JSON,
        ("format.receipts:decode_rank_receipt",),
    )


def _member_decoders(manifest: Manifest) -> Iterator[Decoder]:
    version = MemberVersion(version=manifest.version, digest=manifest.digest)
    empty = empty_member()
    busy = empty.model_copy(
        update={"state": "whole", "live": version, "staged": version, "activate_slot": 1}
    )
    yield Decoder(
        "members",
        (encode_member(empty), encode_member(busy)),
        partial(_decode_member, version),
        Form.JSON,
        ("format.member:decode_member", "format.canonical:decode_model"),
    )


def _plain_decoders(reference: ObjectRef) -> Iterator[Decoder]:
    yield Decoder(
        "canonical JSON",
        (
            encode_json({"b": [1, None, True, "\u00e9\U0001f600"], "a": {}}),
            b'{"":{"":{"":[[[]]]}}}',
            b"9007199254740991",
        ),
        _decode_json,
        Form.JSON,
        ("format.canonical:decode_json",),
    )
    yield Decoder(
        "references",
        (encode_model(reference),),
        _decode_reference,
        Form.JSON,
        ("format.canonical:decode_model",),
    )


def _manifests(store: ThreeVersions) -> tuple[Manifest, ...]:
    return tuple(load_manifest(store.blobs, record, Limits()) for record in store.versions.records)


def _decode_manifest(model: VersionRecord, data: bytes) -> None:
    """As its record vouches for these bytes, and says of the version what they say."""
    said = _said(data)
    update = {name: said[name] for name in _SHARED if name in said}
    try:
        update["base"] = Base.model_validate(said["base"]) if said.get("base") else None
    except ValidationError:
        update["base"] = None
    record = model.model_copy(
        update={
            **update,
            "manifest_size_bytes": len(data),
            "manifest_sha256": hashlib.sha256(data).hexdigest(),
        }
    )
    manifest = decode_manifest(data, record)
    assert encode_model(manifest) == data
    keys = [manifest.digests.key, manifest.schema_ref.key]
    keys += [pack.key for pack in manifest.delta.packs] if manifest.delta else []
    for key in keys:
        assert parse_trainer_key(key) is not None
        check_key(key)


def _said(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _decode_schema(data: bytes) -> None:
    schema = Schema.from_bytes(data)
    assert schema.to_bytes() == data
    assert schema.unit_counts.sum() == schema.unit_count % 2**63
    for bundle in schema.bundles:
        assert int(bundle.starts[-1]) == sum(
            schema.tensors[index].unit_count for index in bundle.members
        )
    for alias in schema.aliases:
        assert schema.tensors[schema.index_of(alias.name)].name == alias.target


def _decode_format_file(data: bytes) -> None:
    assert encode_format_file(decode_format_file(data, location="here")) == data


def _receipts(manifest: Manifest) -> tuple[OpenReceipt, RankReceipt]:
    assert manifest.delta is not None
    common: dict[str, Any] = {
        "run": manifest.run,
        "epoch": manifest.epoch,
        "session": manifest.session,
        "version": manifest.version,
        "attempt": manifest.attempt,
        "commit_id": manifest.commit_id,
    }
    opened = OpenReceipt(**common, deadline_unix_ms=7, host="node-1", process=7)
    ranked = RankReceipt(
        **common,
        rank=0,
        step=manifest.step,
        schema_id=manifest.schema_id,
        packs=manifest.delta.packs,
        changed_count=manifest.delta.changed_count,
        before=manifest.digests,
        after=manifest.digests,
    )
    return opened, ranked


def _decode_open_receipt(data: bytes) -> None:
    assert encode_receipt(decode_open_receipt(data, what="a receipt")) == data


def _decode_rank_receipt(data: bytes) -> None:
    assert encode_receipt(decode_rank_receipt(data, what="a receipt")) == data


def _decode_member(wanted: MemberVersion, data: bytes) -> None:
    """Alone, and in a list, where one that is refused is passed over."""
    blobs = MemoryBlobStore()
    blobs.overwrite(member_key(empty_member().member_id), data)
    listed = list_members(blobs, Limits())
    assert len(listed.members) + len(listed.unreadable) == 1
    member = decode_member(data, what="a member")
    assert encode_member(member) == data
    has_staged(member, wanted)
    has_applied(member, wanted, Slot(1))
    members_sha256([member])


def _decode_json(data: bytes) -> None:
    assert encode_json(decode_json(data, what="a value")) == data


def _decode_reference(data: bytes) -> None:
    reference = decode_model(ObjectRef, data, what="a reference")
    assert encode_model(reference) == data


def _name_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    run, session = RunId("grpo.1"), SessionId("5" * 32)
    keys = [
        *(info.key for info in store.blobs.list("")),
        receipt_key(run, Epoch(3), session, VersionId(2), Attempt(1), None),
        receipt_key(run, Epoch(3), session, VersionId(2), Attempt(1), 7),
        layout_key(run, Epoch(3), session),
        member_key(empty_member().member_id),
        log_key(Slot(10**19)),
        *(key for key in STRANGE_KEYS if key.isascii()),
    ]
    yield Decoder(
        "keys",
        tuple(key.encode() for key in keys),
        _decode_key,
        Form.BYTES,
        (
            "format.keys:parse_trainer_key",
            "format.keys:parse_member_key",
            "storage.blob_keys:check_key",
        ),
    )
    yield Decoder(
        "names",
        (b"grpo", b"a.b_c", b"BF16", b"F8_E4M3", b"12", b"best-1"),
        _decode_name,
        Form.BYTES,
        (
            *("ids:parse_run_id", "ids:parse_engine_name", "ids:parse_tag_name"),
            *("ids:parse_number", "layout.dtypes:DType.parse"),
        ),
        share=0.5,
    )


def _decode_key(data: bytes) -> None:
    key = data.decode("utf-8", "surrogateescape")
    found = parse_trainer_key(key)
    if found is not None:
        folder, rest = key.split("/", 1)
        launch = f"{found.run}-{found.epoch}"
        assert rest.startswith(launch)
        assert folder in {"manifests", "packs", "anchors", "receipts", "layouts"}
        assert found.version is None or f"{found.version}" in rest[len(launch) :]
    member_id = parse_member_key(key)
    assert member_id is None or key == member_key(member_id)
    names = check_key(key)
    assert "/".join(names) == key
    assert not {"", ".", ".."} & set(names)


def _decode_name(data: bytes) -> None:
    """A text is refused only if every kind of name refuses it."""
    text = data.decode("utf-8", "surrogateescape")
    kinds: tuple[Callable[[str], object], ...] = (
        parse_run_id,
        parse_engine_name,
        parse_tag_name,
        lambda said: DType.parse(said).value,
        lambda said: str(parse_number(said, what="number")),
    )
    refused: list[WeightStoreError] = []
    for kind in kinds:
        try:
            assert kind(text) == text
        except WeightStoreError as error:
            refused.append(error)
    if len(refused) == len(kinds):
        raise refused[-1]
