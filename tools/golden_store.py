"""A store with every kind of object, made the same way each time, and what it holds.

Names, times and hosts are made up, so that the bytes depend on the release alone.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import ValueCoding
from weightstore.format.member import Member, MemberVersion
from weightstore.format.pack import BundlePlace, TensorPlace
from weightstore.format.records import (
    FORMAT_NUMBER,
    ActivateRecord,
    IntentRecord,
    Record,
    VoidAttempt,
    VoidIntent,
    VoidRecord,
)
from weightstore.format.rules import Prefix, next_version
from weightstore.format.safetensors_header import encode_safetensors_header
from weightstore.history.commit import LogWriter
from weightstore.history.members import list_members, put_member
from weightstore.ids import RunId, Sha256, VersionId
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec, Units
from weightstore.settings import Settings
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing.members import empty_member, member_id
from weightstore.testing.real_versions import RealVersions, next_weights, random_weights
from weightstore.testing.store_lab import LAB_SETTINGS, store_on, tree
from weightstore.testing.toy_store import ToyStore
from weightstore.testing.virtual_time import SeededEntropy
from weightstore.trainer import attempt, claiming

ROOT = Path(__file__).parents[1]
STORES = ROOT / "tests" / "compat" / "stores"
STORE_NAME = "store"
EXPECTED_NAME = "expected.json"
SETTINGS = Settings(
    thread_count=1,
    warn_changed_ratio=LAB_SETTINGS.warn_changed_ratio,
    full_after_chain_ratio=LAB_SETTINGS.full_after_chain_ratio,
)
LARGE = 65_536
"""Units of the smallest tensor that is in no bundle."""

ANCHORED_STEP = 2
_MADE_UP = (
    (claiming, "host_name", "golden"),
    (claiming, "process_id", 1),
    (claiming, "boot_id", "boot"),
    (attempt, "host_name", "golden"),
    (attempt, "process_id", 1),
)
"""Where the product asks who and where it is, and what it is told here."""

Tensors = Mapping[TensorSpec, NDArray[Any]]


def main(arguments: Sequence[str]) -> None:
    """Make the store and the file that says what it holds."""
    target = Path(arguments[0]) if arguments else STORES / f"format-{FORMAT_NUMBER}"
    make(target)
    files = tree(target)
    print(f"{target}: {len(files)} files, {sum(map(len, files.values())):,} bytes")


def make(target: Path) -> None:
    """Make the store below a directory; what is there is replaced.

    After a crash: a part of the store; making it again replaces that.
    """
    shutil.rmtree(target, ignore_errors=True)
    place = target / STORE_NAME
    place.mkdir(parents=True)
    blobs = LocalBlobStore(place, entropy=SeededEntropy("disk"))
    with ExitStack() as made_up:
        for module, name, value in _MADE_UP:
            made_up.enter_context(mock.patch.object(module, name, lambda value=value: value))
        _put_by_the_facade(blobs, target / "files")
        _put_every_coding(blobs)
        with store_on(blobs, seed="end", settings=SETTINGS) as store:
            store.tag("codes", "codes@0", owner="golden")
            newest = store.state().newest or 0
            store.retire(keep_newest=1, keep_versions=range(3, newest + 1))
            _put_last(store, target / "files")
            _put_members(blobs, store)
    shutil.rmtree(target / "files")
    with WeightStore.open(place) as store:
        _clear(place)
        expected = describe(store, tree(place))
    _clear(place)
    (target / EXPECTED_NAME).write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


def _clear(place: Path) -> None:
    """Remove what is no object, and folders without files, which no clone would have."""
    for name in ("locks", "index"):
        shutil.rmtree(place / name, ignore_errors=True)
    for folder in sorted((path for path in place.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def describe(store: WeightStore, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What a store holds: all that a later release must find again."""
    versions = list(store.versions())
    return {
        "format": FORMAT_NUMBER,
        "store_id": store.store_id,
        "record_count": store.state().record_count,
        "active": store.state().active,
        "tags": {tag.name: [tag.version, tag.owner] for tag in store.tags()},
        "gone": sorted(each.version for each in versions if not each.kept),
        "versions": {
            str(each.version): {
                "run": each.run,
                "step": each.step,
                "base": each.base,
                "digest": each.digest,
                "tensors": _tensors(store, each.version),
            }
            for each in versions
            if each.kept
        },
        "receivers": [
            member.model_dump(mode="json")
            for member in list_members(store._blobs, SETTINGS.limits).members  # noqa: SLF001 -- as bytes say it
        ],
        "files": {key: hashlib.sha256(data).hexdigest() for key, data in files.items()},
    }


def _tensors(store: WeightStore, version: int) -> dict[str, str]:
    """Dtype, shape and a hash of the bits of every name; 64 bits tell accidents."""
    return {
        name: f"{tensor.spec.dtype.value} {tensor.spec.shape} "
        + hashlib.sha256(tensor.units.tobytes()).hexdigest()[:16]
        for name, tensor in sorted(store.checkout(version).host.items())
    }


def _put_members(blobs: LocalBlobStore, store: WeightStore) -> None:
    """Two receivers: one that says everything there is to say, and one that has just started."""
    live, staged = (
        MemberVersion(version=VersionId(each.version), digest=Sha256(each.digest))
        for each in (store.version("active"), store.version("latest"))
    )
    fresh = empty_member(2)
    busy = Member(
        **{
            **fresh.model_dump(),
            "member_id": member_id(1),
            "name": "rollout-1",
            "host": "golden",
            "rank_count": 2,
            "state": "whole",
            "live": live,
            "staged": staged,
            "activate_slot": 38,
            "applied_slot": 12,
            "counter": 7,
            "phase": "stage",
            "refit_count": 3,
            "wire_bytes": 1234,
            "applied_bytes": 5678,
            "last_pause_us": 910,
        }
    )
    for member in (busy, fresh):
        put_member(blobs, member)


def _put_by_the_facade(blobs: LocalBlobStore, folder: Path) -> None:
    """Versions 1 to 6: an import, deltas, both forms, a rewind, tensors that were not given."""
    folder.mkdir()
    weights = _facade_weights()
    with store_on(blobs, seed="facade", settings=SETTINGS) as store:
        store.import_checkpoint(_checkpoint(folder / "base", weights))
        with store.trainer("grpo") as trainer:
            for step in (1, 2, 3):
                _move(weights, step)
                path = _file(folder / f"{step}.safetensors", weights)
                trainer.put_step(step, path, anchor=step == ANCHORED_STEP).result()
        store.tag("best", "grpo@2", owner="golden")
        store.tag("short-lived", 1)
        store.untag("short-lived")
        _move(weights, 4)
        with store.trainer("grpo", rewind_to=2) as trainer:
            trainer.put_step(3, _file(folder / "3b.safetensors", weights)).result()
            few = {spec: array for spec, array in weights.items() if spec.name != "norm"}
            _move(few, 5)
            path = _file(folder / "4.safetensors", few)
            trainer.put_step(4, path, missing="unchanged").result()
            trainer.put_step(4, path, missing="unchanged").result()


def _put_last(store: WeightStore, folder: Path) -> None:
    """The newest version: after the sweep, so that the receipt of its attempt stays."""
    spec = TensorSpec("each.bf16", DType.BF16, (8, 4))
    path = _file(folder / "last.safetensors", {spec: np.arange(32, dtype=np.uint16)})
    with store.trainer("after") as trainer:
        trainer.put_step(0, path, missing="unchanged").result()


def _put_every_coding(blobs: LocalBlobStore) -> None:
    """Versions 7 and on: each coding of values, boxes, an empty delta; records of every kind."""
    store = ToyStore(blobs, "codes", SETTINGS)
    versions = _BoxedVersions(blobs, _codes_schema(), store=store)
    versions.trainer.close()
    versions.trainer = store.trainer("codes")
    weights = random_weights(versions.schema, 0)
    # Small in the repository: what is random is hardly compressed.
    weights["large"] = (np.arange(LARGE) // 97).astype(np.uint8)
    versions.put(weights)
    for seed, coding in enumerate(ValueCoding, start=1):
        share = 0.001 if coding is ValueCoding.ULP else 0.01
        weights = next_weights(weights, seed, share)
        versions.put(weights, coding=coding)
    versions.put(weights)
    versions.has_boxes = True
    weights = next_weights(weights, 9)
    versions.put(weights)
    writer, claim = versions.trainer.writer, versions.trainer.claim
    _put_record(writer, lambda prefix, head: VoidRecord(
        **head, epoch=claim.epoch, run=RunId("codes"),
        what=VoidAttempt(
            version=next_version(prefix.now), attempt=prefix.now.lowest_open_attempt,
            attempt_commit_id=writer.new_commit_id(),
        ),
    ))  # fmt: skip
    versions.has_boxes = False
    versions.put(next_weights(weights, 10), coding=ValueCoding.XOR)
    versions.trainer.close()
    _put_other_records(store.writer())


def _put_other_records(writer: LogWriter) -> None:
    """Records that no command of this release writes; every release must read them."""
    anchor_id = "c-" + "a" * 32
    for version in (8, 9):
        _put_record(writer, lambda prefix, head, version=version: ActivateRecord(
            **head, epoch=prefix.now.epoch, run=None, version=version,
            previous_activate_slot=prefix.now.last_slots.get("activate"),
            members_sha256=Sha256("1" * 64), listed_count=2, staged_count=2,
        ))  # fmt: skip
    _put_record(writer, lambda prefix, head: IntentRecord(
        **head, epoch=prefix.now.epoch, run=None, version=VersionId(9), anchor_id=anchor_id,
    ))  # fmt: skip
    _put_record(writer, lambda prefix, head: VoidRecord(
        **head, epoch=prefix.now.epoch, run=None, what=VoidIntent(anchor_id=anchor_id),
    ))  # fmt: skip


def _put_record(writer: LogWriter, build: Callable[..., Record]) -> None:
    commit_id = writer.new_commit_id()

    def built(prefix: Prefix) -> Record:
        return build(prefix, writer.header(prefix, commit_id))

    writer.put(built)


class _BoxedVersions(RealVersions):
    """Puts the large tensor as two boxes, if asked to."""

    has_boxes = False

    def _pieces(
        self, arrays: Sequence[Units]
    ) -> list[tuple[TensorPlace | BundlePlace, Units, Units, int]]:
        pieces = super()._pieces(arrays)
        if not self.has_boxes:
            return pieces
        index = self.schema.index_of("large")
        boxed: list[tuple[TensorPlace | BundlePlace, Units, Units, int]] = [
            each for each in pieces if isinstance(each[0], BundlePlace)
        ]
        for first_row, row_count in ((0, 100), (100, 156)):
            run = slice(first_row * 256, (first_row + row_count) * 256)
            place = TensorPlace(index, 0, row_count * 256, Box((first_row, 0), (row_count, 256)))
            boxed.append((place, self._before[index][run], arrays[index][run], run.start))
        return boxed


def _codes_schema() -> Schema:
    """A large tensor, a small one of every dtype, tied names and a weight with its scale."""
    specs = [TensorSpec(f"each.{dtype.value.lower()}", dtype, (8, 4)) for dtype in DType]
    specs += [
        TensorSpec("empty", DType.BF16, (0, 4)),
        TensorSpec("large", DType.U8, (256, 256)),
        TensorSpec("quantised.weight", DType.F8_E4M3, (16, 16)),
        TensorSpec("quantised.weight_scale", DType.F32, ()),
        TensorSpec("../é \n name", DType.I32, (3,)),
    ]
    return Schema.build(
        specs,
        aliases=[Alias("tied", "each.bf16")],
        atomic_groups=[("quantised.weight", "quantised.weight_scale")],
    )


def _facade_weights() -> dict[TensorSpec, NDArray[Any]]:
    generator = np.random.default_rng(1)

    def bits(name: str, dtype: DType, *shape: int) -> tuple[TensorSpec, NDArray[Any]]:
        spec = TensorSpec(name, dtype, shape)
        high = 1 << (8 * dtype.unit_size_bytes)
        return spec, generator.integers(0, high, spec.unit_count, dtype.unit_dtype)

    return dict(
        (
            bits("embed", DType.BF16, 40, 16),
            bits("head", DType.F16, 16, 8),
            bits("norm", DType.F32, 16),
            bits("scalar", DType.F64),
        )
    )


def _move(weights: Mapping[TensorSpec, NDArray[Any]], seed: int) -> None:
    """A step: some units of each tensor move by a pattern, in place."""
    generator = np.random.default_rng(seed)
    for units in weights.values():
        places = generator.integers(0, units.size, 1 + units.size // 50)
        units[places] += generator.integers(1, 3, places.size).astype(units.dtype)


def _checkpoint(folder: Path, weights: Tensors) -> Path:
    """A Hugging Face directory of two shards."""
    folder.mkdir()
    items = list(weights.items())
    shards = {
        "model-00001-of-00002.safetensors": dict(items[:2]),
        "model-00002-of-00002.safetensors": dict(items[2:]),
    }
    for name, tensors in shards.items():
        _file(folder / name, tensors)
    weight_map = {spec.name: name for name, tensors in shards.items() for spec in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, sort_keys=True))
    (folder / "config.json").write_text('{"model_type": "golden"}\n')
    return folder


def _file(path: Path, tensors: Tensors) -> Path:
    header = encode_safetensors_header(
        [(spec.name, spec.dtype, spec.shape) for spec in tensors], {"format": "pt"}
    )
    path.write_bytes(header + b"".join(array.tobytes() for array in tensors.values()))
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
