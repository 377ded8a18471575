"""The reader in the docs gets every version out of real stores, without the package."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors

from weightstore import Limits, Settings, WeightStore
from weightstore.cli import demo
from weightstore.cli.demo_model import DemoShape, DemoTransformer, Policy, PolicyGradient
from weightstore.codec.piece import GapCoding, ValueCoding
from weightstore.format.index_rows import PlaceKind
from weightstore.format.pack import BundlePlace, PackReader, TensorPlace
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.real_versions import RealVersions, random_weights

READER = Path(__file__).parents[2] / "docs/independent_reader.py"
PAGE = READER.with_name("reading-without-weightstore.md")
LINE_COUNT_MAX = 145
LINE_COUNT_SAID = 140
"""What the page says, "some"."""
# The demo as it is, with all of its twenty steps.
DEMO = [sys.executable, "-m", "weightstore", "demo", "--json"]
BOXED = "BF16/large"
ROWS = slice(64 * 256, 164 * 256)
"""Units of the box: a hundred rows of it."""
ALLOWED_IMPORTS = {
    "hashlib", "io", "json", "numpy", "pathlib", "safetensors", "struct", "sys", "zstandard",
}  # fmt: skip

# Runs the reader as a program, where any import of the package would fail.
_GUARDED = """
import runpy, sys
sys.modules["weightstore"] = None
reader, store, out, *versions = sys.argv[1:]
for version in versions:
    sys.argv = [reader, store, version, f"{out}/{version}"]
    runpy.run_path(reader, run_name="__main__")
"""

Bits = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Name to dtype, shape and bytes."""


def read(store: Path, out: Path, versions: list[str]) -> list[Bits]:
    """What the reader writes for each of some versions."""
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", _GUARDED, str(READER), str(store), str(out), *versions],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [bits_of_file(out / version) for version in versions]


def bits_of_file(path: Path) -> Bits:
    found = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call] # so it is
    return {
        name: (part["dtype"], tuple(part["shape"]), bytes(part["data"])) for name, part in found
    }


def bits_of_host(host: Mapping[str, HostTensor]) -> Bits:
    return {
        name: (tensor.spec.dtype.value, tensor.spec.shape, tensor.units.tobytes())
        for name, tensor in host.items()
    }


def bits_of(schema: Schema, weights: Mapping[str, Units]) -> Bits:
    found = {
        spec.name: (spec.dtype.value, spec.shape, weights[spec.name].tobytes())
        for spec in schema.tensors
    }
    return found | {alias.name: found[alias.target] for alias in schema.aliases}


def every_dtype() -> Schema:
    """Of each dtype a large tensor, two small ones, a 0-d and an empty one; and aliases."""
    specs = []
    for dtype in DType:
        shapes = {"large": (264, 256), "small": (3, 8), "tiny": (4,), "empty": (0, 4)}
        if not dtype.is_packed:
            shapes["one"] = ()
        if dtype.unit_count(shapes["large"]) < 65_536:
            shapes["large"] = (528, 256)
        specs += [TensorSpec(f"{dtype.value}/{name}", dtype, shapes[name]) for name in shapes]
    aliases = [Alias("tied.large", "BF16/large"), Alias("tied.small", "F32/small")]
    return Schema.build(specs, aliases=aliases)


def moved(weights: Mapping[str, Units], seed: int, share: float, reach: int) -> dict[str, Units]:
    """Some units of each tensor, at least one, move by up to so many patterns either way."""
    generator = np.random.default_rng(seed)
    after = {name: units.copy() for name, units in weights.items()}
    for units in after.values():
        if units.size:
            places = generator.integers(0, units.size, max(1, int(units.size * share)))
            steps = generator.integers(-reach, reach, places.size, endpoint=True)
            units[places] += np.where(steps == 0, 1, steps).astype(units.dtype)
    return after


class BoxedVersions(RealVersions):
    """Puts the change of one tensor as that of a box of it: some of its rows."""

    def _pieces(
        self, arrays: Sequence[Units]
    ) -> list[tuple[TensorPlace | BundlePlace, Units, Units, int]]:
        boxed = [spec.name for spec in self.schema.tensors].index(BOXED)
        place = TensorPlace(boxed, 0, ROWS.stop - ROWS.start, Box((64, 0), (100, 256)))
        others = [
            piece
            for piece in super()._pieces(arrays)
            if isinstance(piece[0], BundlePlace) or piece[0].tensor_index != boxed
        ]
        return [*others, (place, self._before[boxed][ROWS], arrays[boxed][ROWS], ROWS.start)]


def what_packs_hold(store: Path, schema: Schema) -> set[object]:
    """Kinds of place, codings, and whether there are escapes and wide words."""
    found: set[object] = set()
    for path in (store / "packs").rglob("*.safetensors"):
        reader = PackReader(path.read_bytes(), schema, Limits())
        for number, place in enumerate(reader.places):
            piece = reader.piece(number)
            if isinstance(place, TensorPlace):
                found.add(PlaceKind.FLAT if place.box is None else PlaceKind.BOX)
            else:
                found.add(PlaceKind.BUNDLE)
            found.update({piece.value_coding, piece.gap_coding})
            sizes = zip(("escapes", "wide"), piece.raw_sizes[2:], strict=True)
            found.update(name for name, size in sizes if size)
    return found


def test_a_store_of_every_coding_dtype_and_place(tmp_path: Path) -> None:
    schema = every_dtype()
    blobs = LocalBlobStore(tmp_path / "store", create=True)
    versions = BoxedVersions(blobs, schema, pieces_per_pack=7, piece_unit_count=50_000)
    weights = [random_weights(schema, 0)]
    versions.put(weights[0])
    plans: list[tuple[ValueCoding | None, float, int, bool]] = [
        (ValueCoding.ULP, 0.02, 1, False),
        (ValueCoding.ULP, 0.02, 100, False),
        (ValueCoding.ULP, 0.0005, 2, False),
        (ValueCoding.XOR, 0.01, 100, False),
        (ValueCoding.OVERWRITE, 0.01, 100, False),
        (ValueCoding.DENSE_ULP, 0.9, 3, False),
        (None, 0.01, 2, True),
        (ValueCoding.DENSE_BITS, 0.5, 100, False),
        (None, 0.01, 2, False),
    ]
    for seed, (coding, share, reach, full) in enumerate(plans):
        after = moved(weights[-1], seed, share, reach)
        if reach == 100 and coding is ValueCoding.ULP:
            for name in ("U64/large", "F32/large", BOXED):
                after[name][ROWS.start : ROWS.start + 9] ^= np.array(3 << 12, after[name].dtype)
        rows = after[BOXED][ROWS].copy()
        after[BOXED] = weights[-1][BOXED].copy()  # what is outside the box stays
        after[BOXED][ROWS] = rows
        versions.put(after, coding=coding, full=full)
        weights.append(after)

    held = what_packs_hold(tmp_path / "store", schema)
    assert held >= {*ValueCoding, *GapCoding, *PlaceKind, "escapes", "wide"}

    numbers = [str(number + 1) for number in range(len(weights))]
    found = read(tmp_path / "store", tmp_path / "out", [*numbers, "latest"])
    for number, bits, expected in zip(numbers, found, weights, strict=False):
        assert bits == bits_of(schema, expected), number
    assert found[-1] == found[-2]


def test_a_store_with_imports_runs_tags_and_retired_versions(tmp_path: Path) -> None:
    place = tmp_path / "store"
    generator = np.random.default_rng(0)
    weights = {
        "b": generator.standard_normal(11).astype(np.float32),
        "w": generator.standard_normal((300, 300)).astype(np.float32),
    }
    few = Settings(full_after_chain_count=3, anchor_file_size_bytes=200_000)
    with WeightStore.open(place, create=True, settings=few) as store:
        for step in range(9):
            weights["w"][step] *= 2
            store.put_step(step, weights, run="first" if step < 4 else "second")
        store.tag("best", 6)
        store.retire(keep_newest=2)
        kept = [info.version for info in store.versions() if info.kept]
        expected = [bits_of_host(store.checkout(version).host) for version in kept]
        store.export(kept[0], tmp_path / "exported")
    with WeightStore.open(tmp_path / "imported", create=True) as store:
        store.import_checkpoint(tmp_path / "exported")
    assert len(kept) >= 3
    assert read(place, tmp_path / "out", list(map(str, kept))) == expected
    assert read(tmp_path / "imported", tmp_path / "again", ["1"]) == [expected[0]]


@pytest.mark.parametrize("folder", ["manifests", "packs", "anchors", "log"])
def test_a_changed_byte_ends_it(tmp_path: Path, folder: str) -> None:
    place = tmp_path / "store"
    weights = {"w": np.arange(70_000, dtype=np.float32)}
    with WeightStore.open(place, create=True) as store:
        store.put_step(0, weights)
        weights["w"][5] = 1
        store.put_step(1, weights)
    for path in sorted((place / folder).rglob("*")):
        if path.is_file() and "00000000000000000004" not in path.name:
            data = bytearray(path.read_bytes())
            data[-3] ^= 1
            path.write_bytes(data)
    with pytest.raises(AssertionError, match=r"is not what the format says|JSONDecodeError"):
        read(place, tmp_path / "out", ["2"])


def check_demo_store(place: Path, tmp_path: Path) -> None:
    with WeightStore.open(place) as store:
        numbers = sorted(info.version for info in store.versions())
        found = read(place, tmp_path / "out", list(map(str, numbers)))
        for number, bits in zip(numbers, found, strict=True):
            assert bits == bits_of_host(store.checkout(number).host)


def test_the_store_of_a_small_demo(tmp_path: Path) -> None:
    shape = DemoShape(vocabulary_size=1024, width=128, layer_count=1, head_count=4)
    model = DemoTransformer(shape)
    policy = Policy(model, model, shape.vocabulary_size)
    trainer = PolicyGradient(policy, learning_rate=1e-6, seed=0)
    demo._train(policy, trainer, steps=2, store=tmp_path / "store", quiet=True)
    check_demo_store(tmp_path / "store", tmp_path)


@pytest.mark.slow
def test_the_store_of_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [*DEMO, "--store", tmp_path / "store"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,  # below the limit at which pytest would leave it behind
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bit_exact"]
    check_demo_store(tmp_path / "store", tmp_path)


def test_it_imports_nothing_else() -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(READER.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    assert names == ALLOWED_IMPORTS


def test_it_is_short() -> None:
    """Lines with code on them: neither empty, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(READER.read_text(encoding="utf-8")).readline):
        if token.string.strip() and not token.string.startswith(("#", '"""')):
            lines.update(range(token.start[0], token.end[0] + 1))
    assert len(lines) <= LINE_COUNT_MAX
    assert abs(len(lines) - LINE_COUNT_SAID) <= LINE_COUNT_MAX - LINE_COUNT_SAID
    assert f"a program of some {LINE_COUNT_SAID} lines" in PAGE.read_text(encoding="utf-8")
