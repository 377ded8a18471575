"""Writing full forms: files that other tools read, hashed as they pass, under names used once."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from typing_extensions import Buffer

from weightstore.errors import (
    BlobExistsError,
    BlobOutcomeUnknownError,
    CorruptObjectError,
    InputRefusedError,
)
from weightstore.format.keys import anchor_key
from weightstore.format.manifest import AnchorFile
from weightstore.history.anchor_writer import (
    AnchorSink,
    UnitsSource,
    put_own_stream,
    write_anchor,
)
from weightstore.history.import_plan import plan_import
from weightstore.layout.tensors import Units
from weightstore.settings import Limits, Settings
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Fault, LossyBlobs, writes_in_turn
from weightstore.testing.real_versions import (
    RealVersions,
    ThreeVersions,
    mixed_schema,
    next_weights,
    random_weights,
)

SCHEMA = mixed_schema()
WEIGHTS = random_weights(SCHEMA, 9)
ANCHOR = "grpo-1-1-1"
LIMITS = Limits()


def source(weights: dict[str, Units]) -> UnitsSource:
    def units_of(index: int, first_unit: int, unit_count: int) -> Units:
        return weights[SCHEMA.tensors[index].name][first_unit : first_unit + unit_count]

    return units_of


def file_of(blobs: MemoryBlobStore, name: str, folder: Path) -> Path:
    path = folder / name
    path.write_bytes(blobs._blobs[anchor_key(ANCHOR, name)])
    return path


def test_the_library_reads_what_was_written_and_tied_names_are_there(tmp_path: Path) -> None:
    blobs = MemoryBlobStore()
    full = write_anchor(blobs, ANCHOR, SCHEMA, source(WEIGHTS), settings=Settings())
    assert [file.name for file in full.files] == ["model.safetensors"]
    path = file_of(blobs, "model.safetensors", tmp_path)
    with safetensors.safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
        assert set(opened.keys()) == {*WEIGHTS, "tied"}
    data = path.read_bytes()
    assert WEIGHTS["block.large"].tobytes() in data


def test_files_are_cut_by_size_and_indexed(tmp_path: Path) -> None:
    blobs = MemoryBlobStore()
    settings = Settings(anchor_file_size_bytes=300_000)
    full = write_anchor(blobs, ANCHOR, SCHEMA, source(WEIGHTS), settings=settings)
    weights = [file for file in full.files if file.role == "weights"]
    assert len(weights) == 3
    assert [file.role for file in full.files if file.role != "weights"] == ["index"]
    assert full.size_bytes == sum(file.size_bytes for file in full.files)
    for file in full.files:
        file_of(blobs, file.name, tmp_path)
    # The import reads index and files together, so it is a judge of both.
    plan = plan_import(tmp_path, Limits())
    assert {spec.name for spec in plan.schema.tensors} == {*WEIGHTS, "tied"}


def test_ranges_are_asked_for_within_the_limit_and_from_its_multiples() -> None:
    asked: list[tuple[int, int, int]] = []

    def units_of(index: int, first_unit: int, unit_count: int) -> Units:
        asked.append((index, first_unit, unit_count))
        return source(WEIGHTS)(index, first_unit, unit_count)

    limits = replace(Limits(), piece_element_count=1_000)
    write_anchor(MemoryBlobStore(), ANCHOR, SCHEMA, units_of, settings=Settings(limits=limits))
    assert all(first % 1_000 == 0 and 0 < count <= 1_000 for _, first, count in asked)


def test_a_source_that_gives_something_else_is_refused_and_nothing_is_there() -> None:
    for wrong in (np.zeros(3, np.uint8), np.zeros((1, 70_000), "<u2"), np.zeros(70_000, "<u4")):
        blobs = MemoryBlobStore()
        with pytest.raises(InputRefusedError, match="were asked for"):
            write_anchor(blobs, ANCHOR, SCHEMA, lambda *_, w=wrong: w, settings=Settings())
        assert not blobs._blobs


def test_assets_of_an_earlier_version_are_carried_and_verified(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"w": np.ones(4, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"a": 1}')
    blobs = MemoryBlobStore()
    plan = plan_import(tmp_path, Limits())
    versions = RealVersions(blobs, plan.schema)
    versions.put_import(plan)
    bits = {"w": np.ones(4, np.float32).view("<u4")}
    versions.start_from(bits)
    versions.put(next_weights(bits, 1), full=True)
    full = versions.plan().full_form
    assert [(file.name, file.role) for file in full.files] == [
        ("config.json", "asset"),
        ("model.safetensors", "weights"),
    ]
    assert blobs._blobs[anchor_key(full.anchor_id, "config.json")] == b'{"a": 1}'
    blobs._blobs[anchor_key(full.anchor_id, "config.json")] = b'{"a": 2}'
    with pytest.raises(CorruptObjectError, match="config"):
        versions.put(next_weights(bits, 2), full=True)


def test_an_anchor_id_holds_one_set_of_bytes() -> None:
    blobs = MemoryBlobStore()
    full = write_anchor(blobs, ANCHOR, SCHEMA, source(WEIGHTS), settings=Settings())
    again = write_anchor(blobs, ANCHOR, SCHEMA, source(WEIGHTS), settings=Settings())
    assert again == full
    other = source(next_weights(WEIGHTS, 3))
    with pytest.raises(BlobExistsError, match="belongs to this attempt alone"):
        write_anchor(blobs, ANCHOR, SCHEMA, other, settings=Settings())


def test_a_file_of_another_size_than_planned_is_refused() -> None:
    sink = AnchorSink(MemoryBlobStore(), ANCHOR, LIMITS)
    with pytest.raises(InputRefusedError, match="3 bytes, 4 were planned"):
        sink.put(AnchorFile(name="a", size_bytes=4, role="asset"), lambda: [b"abc"])


def chunks_of(*chunks: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter(chunks)


FAULTS = (Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.REPEATED)


@pytest.mark.parametrize("faults", [*((one,) for one in FAULTS), *itertools.permutations(FAULTS)])
def test_a_lost_answer_is_settled_by_looking(faults: tuple[Fault, ...]) -> None:
    inner = MemoryBlobStore()
    lossy = LossyBlobs(inner, writes_in_turn(*faults, None, None))
    hasher = put_own_stream(lossy, "anchors/x/a", chunks_of(b"ab", b"c"), LIMITS)
    assert inner._blobs["anchors/x/a"] == b"abc"
    assert hasher.finish() == [hashlib.sha256(b"abc").digest()]


def test_a_put_that_never_answers_stays_unknown() -> None:
    lossy = LossyBlobs(MemoryBlobStore(), writes_in_turn(Fault.LOST_REQUEST))
    with pytest.raises(BlobOutcomeUnknownError):
        put_own_stream(lossy, "anchors/x/a", chunks_of(b"abc"), LIMITS)
    assert sum(call.method.is_write for call in lossy.calls) == LIMITS.put_try_count


class Late(MemoryBlobStore):
    """The first request gets no answer and lands only when the second one comes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def put_stream_if_absent(self, key: str, _: Iterable[Buffer], /) -> int:
        self.calls += 1
        if self.calls == 1:
            raise BlobOutcomeUnknownError("lost")
        self._blobs[key] = b"abc"
        raise BlobExistsError("there already; the chunks were never asked for")


def test_a_put_that_landed_late_is_hashed_anew() -> None:
    hasher = put_own_stream(Late(), "anchors/x/a", chunks_of(b"ab", b"c"), LIMITS)
    assert hasher.finish() == [hashlib.sha256(b"abc").digest()]


class Confirming(Late):
    """Writes down what is made durable, and fails at it when told to."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.confirmed: list[str] = []
        self.fails = fails

    def confirm_durable(self, prefix: str, /) -> None:
        self.confirmed.append(prefix)
        if self.fails:
            raise BlobOutcomeUnknownError("fsync failed")


def test_what_is_found_is_synced_before_it_counts() -> None:
    blobs = Confirming()
    put_own_stream(blobs, "anchors/x/a", chunks_of(b"abc"), LIMITS)
    assert blobs.confirmed == ["anchors/x/"]
    with pytest.raises(BlobOutcomeUnknownError, match="fsync failed"):
        put_own_stream(Confirming(fails=True), "anchors/x/a", chunks_of(b"abc"), LIMITS)


def test_a_blob_that_was_there_before_is_a_conflict() -> None:
    blobs = MemoryBlobStore()
    blobs.put_if_absent("anchors/x/a", b"other")
    with pytest.raises(BlobExistsError):
        put_own_stream(blobs, "anchors/x/a", chunks_of(b"abc"), LIMITS)


def test_written_versions_are_those_of_the_chain(chain: ThreeVersions) -> None:
    record = chain.versions.put(next_weights(chain.weights[2], 11), full=True)
    manifest = chain.versions.plan(record).manifest
    assert manifest.full is not None
    assert manifest.delta is not None
