"""Every kind of stored JSON has one form: leaving out, `true` for 1 and `1.0` are damage (P10)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from weightstore.errors import WeightStoreError
from weightstore.format.canonical import decode_json, encode_json, encode_model
from weightstore.format.format_file import decode_format_file
from weightstore.format.manifest import decode_manifest
from weightstore.format.receipts import (
    decode_open_receipt,
    decode_rank_receipt,
    encode_receipt,
)
from weightstore.format.records import (
    IntentRecord,
    RecordBase,
    VersionRecord,
    VoidIntent,
    VoidRecord,
    decode_record,
    encode_record,
)
from weightstore.ids import Sha256, VersionId
from weightstore.layout.schema import Schema
from weightstore.testing.real_versions import ThreeVersions, three_versions
from weightstore.testing.receipts import OPEN_RECEIPT, RANK_RECEIPT

Decode = Callable[[bytes], object]
THREE: ThreeVersions = three_versions()


def stored_records() -> Iterator[RecordBase]:
    """Records of a real log, and of two kinds that it does not hold."""
    log = THREE.versions.store.log
    tail = log.tail()
    yield from (stored.record for stored in log.iterate(0, tail.next_slot - 1))  # type: ignore[arg-type]
    last = THREE.versions.records[-1]
    common = {name: getattr(last, name) for name in RecordBase.model_fields}
    yield IntentRecord(**common, version=VersionId(1), anchor_id="c-" + "0" * 32)
    yield VoidRecord(**common, what=VoidIntent(anchor_id="c-" + "0" * 32))


def record_decoder(record: RecordBase) -> Decode:
    return lambda data: decode_record(data, slot=record.slot)


def manifest_decoder(record: VersionRecord) -> Decode:
    def decode(data: bytes) -> object:
        digest = Sha256(hashlib.sha256(data).hexdigest())
        vouching = record.model_copy(
            update={"manifest_size_bytes": len(data), "manifest_sha256": digest}
        )
        return decode_manifest(data, vouching)

    return decode


def documents() -> Iterator[tuple[str, bytes, Decode]]:
    """Every kind of stored JSON: a name, good bytes, and what reads them."""
    for record in stored_records():
        decode = record_decoder(record)
        yield f"record {type(record).__name__} {record.slot}", encode_record(record), decode
    for version in THREE.versions.records:
        manifest = THREE.versions.plan(version).manifest
        yield f"manifest {version.version}", encode_model(manifest), manifest_decoder(version)
    yield "schema", THREE.versions.schema.to_bytes(), Schema.from_bytes
    yield (
        "open receipt",
        encode_receipt(OPEN_RECEIPT),
        lambda data: decode_open_receipt(data, what="it"),
    )
    yield (
        "rank receipt",
        encode_receipt(RANK_RECEIPT),
        lambda data: decode_rank_receipt(data, what="it"),
    )
    stored = THREE.blobs.get("FORMAT", max_size_bytes=1000)
    yield "FORMAT", stored, lambda data: decode_format_file(data, location="here")


DOCUMENTS = {name: (data, decode) for name, data, decode in documents()}


def places(value: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 -- any JSON
    """Every place in a JSON value, as its container and key."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in list(items):
        yield value, key
        if isinstance(part, dict | list):
            yield from places(part)


def forgeries(value: Any) -> Iterator[tuple[str, bytes]]:  # noqa: ANN401 -- any JSON
    """The document with one field left out, or one number in another form."""
    for container, key in places(value):
        kept = container[key]
        if isinstance(container, dict):
            del container[key]
            yield f"without {key}", encode_json(value)
            container[key] = kept
        if isinstance(kept, bool):
            container[key] = int(kept)
            yield f"{key} as a number", encode_json(value)
        elif isinstance(kept, int):
            if kept in {0, 1}:
                container[key] = bool(kept)
                yield f"{key} as {container[key]}", encode_json(value)
            container[key] = 0.5
            yield f"{key} as a float", encode_json(value).replace(b"0.5", b"%d.0" % kept)
            container[key] = str(kept)
            yield f"{key} as text", encode_json(value)
        container[key] = kept


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_in_any_other_form_is_damage(name: str) -> None:
    data, decode = DOCUMENTS[name]
    decode(data)
    value = decode_json(data, what=name)
    accepted = []
    count = 0
    for how, forged in forgeries(value):
        count += 1
        try:
            decode(forged)
        except WeightStoreError:
            continue
        accepted.append(how)
    assert count >= 6
    # `last_slots` of a state is a table by kind: another table is another state, which the
    # rules compare with the log.
    free = {f"without {kind}" for kind in ("init", "claim", "version")}
    assert not set(accepted) - free, accepted


def test_every_kind_of_document_is_there() -> None:
    kinds = {name.partition(" ")[0] for name in DOCUMENTS}
    assert kinds == {"record", "manifest", "schema", "open", "rank", "FORMAT"}
