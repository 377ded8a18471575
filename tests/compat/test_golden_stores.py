"""Stores that earlier releases wrote are read bit for bit, and not touched.

`tools/make_golden_store` makes the store of the current format anew, as long as that format
is not frozen.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_args

import pytest

from weightstore.clock import SystemClock
from weightstore.codec.piece import GapCoding, ValueCoding
from weightstore.errors import StoreReadOnlyError, VersionGoneError
from weightstore.format.pack import PackReader
from weightstore.format.records import FORMAT_NUMBER, Kind
from weightstore.format.rules import EMPTY_PREFIX, Valid
from weightstore.history.chain import delta_form
from weightstore.history.log import Log
from weightstore.history.store_format import open_store
from weightstore.layout.dtypes import DType
from weightstore.settings import Settings
from weightstore.storage.durable import SYSCALLS, Syscalls
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.store.doctor import examine
from weightstore.store.findings import Severity
from weightstore.store.migrating import plan_migration
from weightstore.store.reading import Components, StoreReader
from weightstore.testing.store_lab import tree
from weightstore.testing.virtual_time import SeededEntropy

ROOT = Path(__file__).parents[2]
STORES = ROOT / "tests" / "compat" / "stores"
GOLDEN = sorted(path for path in STORES.iterdir() if path.is_dir())
CURRENT = STORES / f"format-{FORMAT_NUMBER}"


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    """The script that makes golden stores, as a module."""
    path = ROOT / "tools" / "golden_store.py"
    spec = importlib.util.spec_from_file_location("golden_store", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["golden_store"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["golden_store"]


def expected_of(golden: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((golden / "expected.json").read_text())
    return document


def as_cloned(golden: Path, target: Path) -> Path:
    """The store as a version control system lays it: no empty folders, no modes."""
    for key, data in tree(golden / "store").items():
        path = target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return target


def hashes(files: dict[str, bytes]) -> dict[str, str]:
    return {key: hashlib.sha256(data).hexdigest() for key, data in files.items()}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_the_files_are_those_that_were_written(golden: Path) -> None:
    assert hashes(tree(golden / "store")) == expected_of(golden)["files"]


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_every_version_is_checked_out_bit_for_bit(
    golden: Path, tmp_path: Path, tool: ModuleType
) -> None:
    expected = expected_of(golden)
    place = as_cloned(golden, tmp_path / "store")
    with WeightStore.open(place) as store:
        found = tool.describe(store, tree(golden / "store"))
        for version in expected["gone"]:
            with pytest.raises(VersionGoneError):
                store.checkout(version)
        for version in expected["versions"]:
            assert store.verify(int(version), scan=True).scanned
    assert {key: found[key] for key in expected} == expected
    left = hashes(tree(place))
    assert {key: left[key] for key in expected["files"]} == expected["files"]
    assert {key.partition("/")[0] for key in left.keys() - expected["files"].keys()} <= {"index"}


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_store_is_read_where_nothing_may_be_written(golden: Path, tmp_path: Path) -> None:
    place = as_cloned(golden, tmp_path / "store")
    before = tree(place)

    def refused(*_: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    changing = {each.name: refused for each in fields(Syscalls) if each.name != "fsync"}
    blobs = LocalBlobStore(place, syscalls=Syscalls(**changing, fsync=SYSCALLS.fsync))
    settings = Settings()
    store_id = open_store(blobs, Log(blobs, settings.limits))
    components = Components(blobs, SystemClock(), SeededEntropy())
    reader = StoreReader(components, store_id, settings=settings)
    for version in expected_of(golden)["versions"]:
        assert reader.checkout(int(version)).host
    assert tree(place) == before
    writer = WeightStore(components, store_id, settings=settings, cast={})
    with pytest.raises(StoreReadOnlyError):
        writer.tag("never", "latest")


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_nothing_is_wrong_with_it_and_it_can_be_migrated(golden: Path, tmp_path: Path) -> None:
    place = as_cloned(golden, tmp_path / "store")
    assert examine(place, deep=True).worst in {Severity.OK, Severity.NOTE}
    plan = plan_migration(place)
    assert (plan.format, plan.newest) == (expected_of(golden)["format"], FORMAT_NUMBER)


def test_there_is_one_of_every_format() -> None:
    assert [path.name for path in GOLDEN] == [f"format-{n + 1}" for n in range(FORMAT_NUMBER)]


def test_the_current_one_has_every_kind_of_object(tmp_path: Path) -> None:
    place = as_cloned(CURRENT, tmp_path / "store")
    with WeightStore.open(place) as store:
        # `alt` is written by no release yet, and `format` needs a second format.
        kinds = {step.stored.record.kind for step in store._log.steps(EMPTY_PREFIX)}
        assert kinds == set(get_args(Kind)) - {"alt", "format"}
        verdicts = {type(step.verdict) for step in store._log.steps(EMPTY_PREFIX)}
        assert verdicts == {Valid}
        folders = {key.partition("/")[0] for key in tree(place)}
        assert folders >= {"FORMAT", "head", "log", "manifests", "packs", "anchors", "receipts",
                           "receivers"}  # fmt: skip
        schema = store._plan(store._find("codes@8")[1]).schema
        assert {spec.dtype for spec in schema.tensors} == set(DType)
        assert schema.aliases
        assert schema.atomic_groups
        assert {info.kept for info in store.versions()} == {True, False}
        plans = [store._plan(store._find(version.version)[1]) for version in _kept(store)]
        assert any(plan.manifest.unmentioned for plan in plans)
        assert any(plan.manifest.full and plan.manifest.delta for plan in plans)
        found = _codings(store)
        assert {(coding, kind) for coding, kind, _ in found} >= {
            (coding, kind) for coding in ValueCoding for kind in ("TensorPlace", "BundlePlace")
        } | {(ValueCoding.ULP, "Box")}
        assert {gap for _, _, gap in found} == set(GapCoding)


def _kept(store: WeightStore) -> list[Any]:
    return [each for each in store.versions() if each.kept]


def _codings(store: WeightStore) -> set[tuple[ValueCoding, str, GapCoding]]:
    found: set[tuple[ValueCoding, str, GapCoding]] = set()
    for version in _kept(store):
        plan = store._plan(store._find(version.version)[1])
        packs = delta_form(plan.manifest).packs if plan.manifest.delta else ()
        for pack in packs:
            data = store._blobs.get(pack.key, max_size_bytes=pack.size_bytes)
            reader = PackReader(data, plan.schema, Settings().limits)
            for index, place in enumerate(reader.places):
                piece = reader.piece(index)
                has_box = getattr(place, "box", None) is not None
                kind = "Box" if has_box else type(place).__name__
                found.add((piece.value_coding, kind, piece.gap_coding))
    return found


def test_the_script_makes_the_same_versions_again(tmp_path: Path, tool: ModuleType) -> None:
    """The bytes may differ with zstandard; what they decode to may not."""
    tool.make(tmp_path / "again")
    made, expected = expected_of(tmp_path / "again"), expected_of(CURRENT)
    for document in (made, expected):
        document["files"] = sorted(
            key for key in document["files"] if not key.startswith("receipts/")
        )
    assert made == expected


def test_the_current_one_is_small() -> None:
    total = sum(map(len, tree(CURRENT).values()))
    assert total < 300_000
