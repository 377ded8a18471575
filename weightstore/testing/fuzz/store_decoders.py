"""Decoders that need a store around them: log, hint, what hashes vouch for, and imports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from weightstore.format.anchor_plan import INDEX_FILE_NAME, hf_index_json, plan_anchor_files
from weightstore.format.blocks import FileBlocks, encode_blocks
from weightstore.format.keys import HEAD_KEY, anchor_key, log_key
from weightstore.format.manifest import AnchorFile, Manifest
from weightstore.format.records import encode_record
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.chain import CheckoutPlan, delta_form, full_form
from weightstore.history.checkout import checkout, verify_plan
from weightstore.history.import_checkpoint import run_import
from weightstore.history.import_plan import plan_import
from weightstore.history.log import Log
from weightstore.history.log_index import LogIndex
from weightstore.history.store_format import open_store
from weightstore.history.tags import list_tags
from weightstore.history.versions import list_versions, record_of_version
from weightstore.ids import Slot
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.memory_index import MemoryIndexFile
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Form
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    next_weights,
    random_weights,
)
from weightstore.testing.safetensors_files import read_with_library

_LIMITS = Limits()
_SETTINGS = Settings(thread_count=1)


class PatchedBlobs(MemoryBlobStore):
    """A store in memory whose objects can be exchanged.

    Args:
        blobs: Whose objects it begins with.
    """

    def __init__(self, blobs: MemoryBlobStore) -> None:
        super().__init__()
        for info in blobs.list(""):
            self.exchange(info.key, blobs.get(info.key, max_size_bytes=info.size_bytes))

    def exchange(self, key: str, data: bytes) -> None:
        """Let an object hold other bytes.

        After a crash: nothing of this store is left.
        """
        self._blobs[key] = data


class PatchedIndexFile(MemoryIndexFile):
    """An index whose values can be exchanged, and that outlives its handles."""

    def close(self) -> None:
        """Nothing: the next handle goes on with it."""

    def entries(self) -> dict[bytes, bytes]:
        """All that it holds."""
        return dict(self._entries)

    def exchange(self, entries: Mapping[bytes, bytes]) -> None:
        """Let it hold these and no others.

        After a crash: nothing of this index is left.
        """
        self._entries = dict(entries)


def store_decoders(store: ThreeVersions, folder: Path) -> Iterator[Decoder]:
    """The decoders of this file.

    Args:
        store: Whose log is damaged.
        folder: An empty one, for files to import.
    """
    yield from _log_decoders(store)
    yield from _index_decoders(store)
    yield from _vouched_decoders()
    yield from _import_decoders(folder)


def _log_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    count = store.versions.store.log.tail().next_slot
    keys = [log_key(Slot(slot)) for slot in range(count)]
    records = tuple(store.blobs.get(key, max_size_bytes=1 << 20) for key in keys)
    yield Decoder(
        "the last record of a log",
        records[-1:],
        partial(_read_log, PatchedBlobs(store.blobs), keys[-1]),
        Form.JSON,
        ("history.log:Log.read", "format.records:decode_record"),
        share=0.3,
    )
    yield Decoder(
        "a record inside a log",
        records[-2:-1],
        partial(_read_log, PatchedBlobs(store.blobs), keys[-2]),
        Form.JSON,
        ("history.log:Log.follow",),
        share=0.3,
    )
    yield Decoder(
        "head",
        (b"0", str(count - 1).encode(), b"99999999999999999999"),
        partial(_read_tail, PatchedBlobs(store.blobs), count),
        Form.BYTES,
        ("history.log:Log.tail",),
        share=0.3,
        is_hint=True,
    )


def _read_log(blobs: PatchedBlobs, key: str, data: bytes) -> None:
    blobs.exchange(key, data)
    log = Log(blobs, _LIMITS)
    tail = log.tail()
    for listed in list_versions(log, tail):
        assert listed.record.version >= 1
    list_tags(log, tail)
    assert Log(blobs, _LIMITS).follow(EMPTY_PREFIX).next_slot == tail.next_slot


def _read_tail(blobs: PatchedBlobs, count: int, data: bytes) -> None:
    """The hint may be anything: it changes nothing."""
    blobs.exchange(HEAD_KEY, data)
    assert Log(blobs, _LIMITS).tail().next_slot == count


def _index_decoders(store: ThreeVersions) -> Iterator[Decoder]:
    blobs = PatchedBlobs(store.blobs)
    file = PatchedIndexFile()
    expected = _listed(blobs, None)
    assert _listed(blobs, file) == expected
    entries = file.entries()
    for kind, name in ((b"s", "state"), (b"r", "record"), (b"v", "version")):
        key = max(key for key in entries if key.startswith(kind))
        yield Decoder(
            f"a {name} in the index",
            (entries[key],),
            partial(_read_index, blobs, file, entries, key, expected),
            Form.BYTES if kind == b"v" else Form.JSON,
            ("history.log_index:LogIndex.top", "history.log_index:LogIndex.body"),
            share=0.2,
            is_hint=True,
        )


def _listed(blobs: PatchedBlobs, file: PatchedIndexFile | None) -> list[bytes]:
    """The records of the versions, as a handle with an index or without finds them."""
    limits = Limits(index_miss_count=1, cached_record_count=1)
    store_id = open_store(blobs, Log(blobs, limits))
    log = Log(blobs, limits, LogIndex(lambda: file, store_id, limits) if file else None)
    tail = log.tail()
    listed = list(list_versions(log, tail))
    found = [record_of_version(log, tail, one.record.version) for one in listed]
    assert found == [one.record for one in listed]
    return [encode_record(record) for record in found]


def _read_index(
    blobs: PatchedBlobs,
    file: PatchedIndexFile,
    entries: Mapping[bytes, bytes],
    key: bytes,
    expected: Sequence[bytes],
    data: bytes,
) -> None:
    """The index may hold anything: the log answers as it does without one."""
    file.exchange({**entries, key: data})
    assert _listed(blobs, file) == expected


def _vouched_decoders() -> Iterator[Decoder]:
    schema = Schema.build([TensorSpec("a", DType.BF16, (66_000,)), TensorSpec("b", DType.U8, (5,))])
    weights = random_weights(schema, 0)
    after = next_weights(weights, 1, share=0.001)
    blobs = MemoryBlobStore()
    versions = RealVersions(blobs, schema)
    versions.put(weights)
    versions.put(after)
    plan = versions.plan()
    patched = PatchedBlobs(blobs)
    pack = delta_form(plan.manifest).packs[0]
    yield Decoder(
        "a pack that its manifest vouches for",
        (blobs.get(pack.key, max_size_bytes=pack.size_bytes),),
        lambda data: _check_out(patched, _with_pack(patched, plan, data), after),
        Form.SAFETENSORS,
        ("format.pack:PackReader.__init__", "history.checkout:verify_plan"),
        share=0.05,
    )
    file = full_form(plan.full).files[0]
    key = anchor_key(full_form(plan.full).anchor_id, file.name)
    other = PatchedBlobs(blobs)
    first = replace(plan, deltas=(), last_table=plan.first_table, record=versions.records[0])
    yield Decoder(
        "a weight file that its hashes vouch for",
        (blobs.get(key, max_size_bytes=file.size_bytes),),
        lambda data: _check_out(other, _with_file(other, first, data), None),
        Form.SAFETENSORS,
        ("format.safetensors_header:parse_safetensors_header", "format.blocks:decode_blocks"),
        share=0.05,
    )


def _check_out(blobs: PatchedBlobs, plan: CheckoutPlan, expected: Mapping[str, Any] | None) -> None:
    """What is given out has the version's digest; bytes that a hash vouches for may lie."""
    verify_plan(blobs, plan, _SETTINGS)
    found = checkout(blobs, plan, _SETTINGS)
    assert set(found) == {spec.name for spec in plan.schema.tensors}
    for name, host in found.items():
        assert host.units.size == host.spec.unit_count
        if expected is not None:
            assert host.units.tobytes() == expected[name].tobytes()


def _with_pack(blobs: PatchedBlobs, plan: CheckoutPlan, data: bytes) -> CheckoutPlan:
    manifest = plan.manifest
    delta = delta_form(manifest)
    sha256 = hashlib.sha256(data).hexdigest()
    pack = delta.packs[0].model_copy(update={"size_bytes": len(data), "sha256": sha256})
    blobs.exchange(pack.key, data)
    forged = delta.model_copy(update={"packs": (pack,), "size_bytes": len(data)})
    return replace(plan, deltas=(manifest.model_copy(update={"delta": forged}),))


def _with_file(blobs: PatchedBlobs, plan: CheckoutPlan, data: bytes) -> CheckoutPlan:
    full = full_form(plan.full)
    name = full.files[0].name
    blobs.exchange(anchor_key(full.anchor_id, name), data)
    hashes = (hashlib.sha256(data).digest(),) if data else ()
    sidecar = encode_blocks([FileBlocks(name, len(data), hashes)])
    blobs.exchange(full.blocks.key, sidecar)
    blocks = full.blocks.model_copy(
        update={"size_bytes": len(sidecar), "sha256": hashlib.sha256(sidecar).hexdigest()}
    )
    forged = full.model_copy(
        update={
            "files": (AnchorFile(name=name, size_bytes=len(data), role="weights"),),
            "size_bytes": len(data),
            "blocks": blocks,
        }
    )
    manifest: Manifest = plan.full.model_copy(update={"full": forged})
    return replace(plan, full=manifest, full_size_bytes=len(data))


def _import_decoders(folder: Path) -> Iterator[Decoder]:
    tensors: dict[str, NDArray[Any]] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros(3, np.uint8),
    }
    yield Decoder(
        "an imported file",
        (
            safetensors.numpy.save(tensors, {"format": "pt"}),
            safetensors.numpy.save({"é": tensors["a"]}),
        ),
        partial(_import_file, folder / "one"),
        Form.SAFETENSORS,
        ("format.safetensors_header:parse_safetensors_header",),
        share=0.1,
    )
    schema = Schema.build([TensorSpec(name, DType.U8, (4,)) for name in "abc"])
    plans = plan_anchor_files(schema, 8)
    directory = folder / "several"
    directory.mkdir()
    for plan in plans:
        (directory / plan.name).write_bytes(plan.header + bytes(plan.size_bytes - len(plan.header)))
    yield Decoder(
        "the index of an imported directory",
        (json.dumps(json.loads(hf_index_json(plans))).encode(), hf_index_json(plans)),
        partial(_import_directory, directory),
        Form.JSON,
        ("history.import_plan:plan_import",),
        share=0.1,
    )


def _import_file(folder: Path, data: bytes) -> None:
    """What is taken over is what the library reads in the file."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    path.write_bytes(data)
    plan = plan_import(path, _LIMITS)
    form = run_import(MemoryBlobStore(), plan, "grpo-1-1-1", settings=_SETTINGS)
    library = read_with_library(data)
    assert {spec.name for spec in form.schema.tensors} == set(library)
    for spec in form.schema.tensors:
        assert list(spec.shape) == library[spec.name]["shape"]
        assert spec.size_bytes == len(library[spec.name]["data"])


def _import_directory(directory: Path, data: bytes) -> None:
    """An index that is believed names every tensor, and files of the directory alone."""
    (directory / INDEX_FILE_NAME).write_bytes(data)
    plan = plan_import(directory, _LIMITS)
    assert plan.index is None
    weight_map = json.loads(data)["weight_map"]
    assert {spec.name for spec in plan.schema.tensors} == set(weight_map)
    assert set(weight_map.values()) <= {file.name for file in plan.files}
    for file in plan.files:
        assert file.source.parent == directory.resolve()
