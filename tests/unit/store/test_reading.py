"""Reading by the facade: checkouts of every kind, and what damage and retirement look like."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from weightstore.errors import (
    CorruptError,
    InputRefusedError,
    SchemaMismatchError,
    SelectorError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.store.reading import Selector, StoreReader
from weightstore.testing.store_lab import LAB_SETTINGS, store_on, tree

VERSION_COUNT = 4


def bits(tensor: torch.Tensor) -> bytes:
    """Row-major bytes of a tensor."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def weights(step: int) -> dict[str, torch.Tensor]:
    """Hard shapes and dtypes, bits that differ with the step, and a tied pair."""
    generator = torch.Generator().manual_seed(step)

    def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        size = (*shape, torch.empty(0, dtype=dtype).element_size())
        raw = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        return raw.view(dtype).reshape(shape)

    embed = random(torch.bfloat16, 40, 16)
    return {
        "embed": embed,
        "head": embed,
        "scalar": random(torch.float32),
        "empty": torch.zeros((0, 3), dtype=torch.float16),
        "mask": torch.randint(0, 2, (5,), generator=generator).bool(),
        "phases": random(torch.complex64, 3, 2),
        "quantised": random(torch.float8_e4m3fn, 8, 4),
        "counter": torch.tensor(step),
        "all_bf16": (torch.arange(65_536) + step).to(torch.uint16).view(torch.bfloat16),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four versions, the first and the third with a full form."""
    place = tmp_path_factory.mktemp("made") / "store"
    with WeightStore.open(place, create=True, settings=LAB_SETTINGS) as store:
        for step in range(VERSION_COUNT):
            store.put_step(step, weights(step), anchor=step == 2)
    return place


@pytest.mark.parametrize("step", range(VERSION_COUNT))
def test_every_way_out_gives_the_bits_that_were_put(made: Path, tmp_path: Path, step: int) -> None:
    expected = {name: bits(tensor) for name, tensor in weights(step).items()}
    reader: StoreReader = WeightStore.open(made)
    taken = reader.checkout(step + 1)
    assert {name: bits(tensor) for name, tensor in taken.tensors.items()} == expected
    assert {name: host.units.tobytes() for name, host in taken.host.items()} == expected

    live = {name: torch.zeros_like(tensor) for name, tensor in weights(step).items()}
    pointers = {name: tensor.data_ptr() for name, tensor in live.items()}
    assert reader.checkout_into(step + 1, live) == taken.info
    assert {name: bits(tensor) for name, tensor in live.items()} == expected
    assert {name: tensor.data_ptr() for name, tensor in live.items()} == pointers

    reader.checkout_to_file(step + 1, tmp_path / "model.safetensors")
    in_file = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert {name: bits(tensor) for name, tensor in in_file.items()} == expected

    reader.export(step + 1, tmp_path / "model")
    exported = {
        name: bits(tensor)
        for file in (tmp_path / "model").glob("*.safetensors")
        for name, tensor in safetensors.torch.load_file(file).items()
    }
    assert expected == exported | {"head": exported["embed"]}


def test_a_live_model_follows_the_store_version_by_version(made: Path) -> None:
    live = {name: torch.zeros_like(tensor) for name, tensor in weights(0).items()}
    reader = WeightStore.open(made)
    for version in (1, 4, 2, 3):
        reader.checkout_into(version, live)
        for name, tensor in weights(version - 1).items():
            assert bits(live[name]) == bits(tensor), name


def test_a_live_model_that_does_not_fit_is_told_everything_and_left_alone(made: Path) -> None:
    live: dict[str, torch.Tensor] = {
        "embed": torch.ones((40, 17), dtype=torch.bfloat16),
        "head": torch.ones((40, 16)),
        "scalar": torch.ones((1,)),
        "layers.9.bias": torch.ones(3),
    }
    with pytest.raises(SchemaMismatchError) as caught:
        WeightStore.open(made).checkout_into("latest", live)
    problems = "\n".join(caught.value.facts["problems"])  # type: ignore[arg-type] # a tuple here
    for name in ("embed", "head", "scalar", "layers.9.bias", "empty", "mask", "all_bf16"):
        assert repr(name) in problems
        assert repr(name) in caught.value.message
    assert all(bool((tensor == 1).all()) for tensor in live.values())


def test_what_is_in_the_way_stays(made: Path, tmp_path: Path) -> None:
    reader = WeightStore.open(made)
    file, folder = tmp_path / "model.safetensors", tmp_path / "model"
    file.write_text("mine")
    folder.mkdir()
    (folder / "notes").write_text("mine")
    before = tree(tmp_path)
    told: list[str] = []
    with pytest.raises(InputRefusedError, match="there already"):
        reader.checkout_to_file(1, file, progress=lambda phase, _done, _total: told.append(phase))
    with pytest.raises(InputRefusedError):
        reader.export(1, folder)
    with pytest.raises(InputRefusedError):
        reader.checkout_to_file(1, tmp_path / "missing" / "model.safetensors")
    assert tree(tmp_path) == before
    assert not told


def test_reading_changes_nothing_in_the_store(made: Path) -> None:
    before = tree(made)
    reader = WeightStore.open(made)
    reader.checkout(2)
    reader.verify(4, scan=True)
    reader.describe(3)
    list(reader.log())
    list(reader.versions())
    reader.tags()
    reader.close()
    assert tree(made) == before


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        (0, VersionNotFoundError),
        (-1, VersionNotFoundError),
        (VERSION_COUNT + 1, VersionNotFoundError),
        ("main@9", VersionNotFoundError),
        ("other@1", VersionNotFoundError),
        ("newest", SelectorError),
        ("", SelectorError),
        ("01", SelectorError),
        ("main@-1", SelectorError),
        (True, SelectorError),
        (None, SelectorError),
        (1.0, SelectorError),
    ],
)
def test_a_selector_of_nothing_is_a_typed_error(
    made: Path, selector: Selector, kind: type[Exception]
) -> None:
    reader = WeightStore.open(made)
    for call in (reader.version, reader.checkout, reader.verify, reader.describe):
        with pytest.raises(kind):
            call(selector)


def test_an_empty_store_has_no_version_to_give(tmp_path: Path) -> None:
    reader = WeightStore.open(tmp_path, create=True)
    assert reader.state().newest is None
    assert list(reader.versions()) == []
    for selector in ("latest", 1, "main@0"):
        with pytest.raises(VersionNotFoundError):
            reader.checkout(selector)


def test_progress_ends_at_its_total(made: Path, tmp_path: Path) -> None:
    reader = WeightStore.open(made)
    live = {name: torch.zeros_like(tensor) for name, tensor in weights(0).items()}
    calls: tuple[Callable[[Any], object], ...] = (
        lambda told: reader.checkout(4, progress=told),
        lambda told: reader.checkout_into(4, live, progress=told),
        lambda told: reader.verify(4, scan=True, progress=told),
        lambda told: reader.export(4, tmp_path / "model", progress=told),
        lambda told: reader.checkout_to_file(4, tmp_path / "file", progress=told),
    )
    for call in calls:
        last: dict[str, tuple[int, int]] = {}

        def told(phase: str, done: int, total: int, last: dict[str, Any] = last) -> None:
            assert last.get(phase, (0, 0))[0] <= done <= total
            last[phase] = (done, total)

        call(told)
        assert last
        assert all(done == total for done, total in last.values())


# What a checkout of version 4 reads: the full form of version 3, then one delta. The log is
# init, claim, four versions, close.
OBJECTS_OF_VERSION_4 = {
    "record": "log/*5",
    "record of its base": "log/*4",
    "newest record": "log/*6",
    "manifest": "manifests/*/4-????????????????????????????????",
    "manifest of its base": "manifests/*/3-????????????????????????????????",
    "digest table": "manifests/*/4-*.digests",
    "digest table of its base": "manifests/*/3-*.digests",
    "schema": "manifests/*/*.schema",
    "pack": "packs/*/4-*",
    "weights of its base": "anchors/*-3-1/*.safetensors",
    "block hashes of its base": "anchors/*-3-1/weightstore.blocks",
}


@pytest.mark.parametrize("kind", OBJECTS_OF_VERSION_4)
@pytest.mark.parametrize("damage", ["first byte", "a byte", "last byte", "cut", "missing"])
def test_damage_of_an_object_is_a_typed_error_and_never_wrong_weights(
    made: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    place = tmp_path / "store"
    shutil.copytree(made, place)
    (path,) = place.glob(OBJECTS_OF_VERSION_4[kind])
    _damage(path, damage)
    if kind == "newest record" and damage == "missing":
        # A log that ends earlier is a shorter log: the version is still whole.
        WeightStore.open(place).verify(4, scan=True)
        return
    live = {name: torch.ones_like(tensor) for name, tensor in weights(0).items()}
    before = {name: bits(tensor) for name, tensor in live.items()}
    calls: tuple[Callable[[StoreReader], object], ...] = (
        lambda reader: reader.checkout(4),
        lambda reader: reader.verify(4),
        lambda reader: reader.verify(4, scan=True),
        lambda reader: reader.checkout_into(4, live),
        lambda reader: reader.checkout_to_file(4, tmp_path / "file"),
        lambda reader: reader.export(4, tmp_path / "model"),
    )
    for call in calls:
        with pytest.raises(CorruptError) as caught:
            call(WeightStore.open(place))
        assert caught.value.message
    assert {name: bits(tensor) for name, tensor in live.items()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def _damage(path: Path, how: str) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:-1])
    else:
        place = {"first byte": 0, "a byte": len(data) // 3, "last byte": len(data) - 1}[how]
        data[place] ^= 0x10
        path.write_bytes(data)


def test_damage_of_one_version_leaves_the_others_readable(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "store"
    shutil.copytree(made, place)
    (path,) = place.glob("packs/*/2-*")
    _damage(path, "a byte")
    reader = WeightStore.open(place)
    for version in (1, 3, 4):
        reader.verify(version, scan=True)
    with pytest.raises(CorruptError, match="version 2"):
        reader.verify(2)


class _RetiredUnderway:
    """Progress that retires everything but the newest version when the first byte was read."""

    def __init__(self, blobs: MemoryBlobStore) -> None:
        self._blobs = blobs
        self.gone: tuple[int, ...] = ()

    def __call__(self, phase: str, done_bytes: int, total_bytes: int, /) -> None:
        del phase, done_bytes, total_bytes
        if not self.gone:
            self.gone = store_on(self._blobs, seed="retirer", settings=LAB_SETTINGS).retire().gone


def _three_full_versions() -> MemoryBlobStore:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        for step in range(6):
            store.put_step(step, weights(step), anchor=step == 4)
    return blobs


@pytest.mark.parametrize("call", ["checkout", "verify", "export", "into"])
def test_p9_a_version_retired_under_its_reader_is_gone_and_never_damaged(
    call: str, tmp_path: Path
) -> None:
    blobs = _three_full_versions()
    reader = store_on(blobs, seed="reader")
    underway = _RetiredUnderway(blobs)
    live = {name: torch.zeros_like(tensor) for name, tensor in weights(0).items()}
    calls: dict[str, Callable[[], object]] = {
        "checkout": lambda: reader.checkout(4, progress=underway),
        "verify": lambda: reader.verify(4, progress=underway),
        "export": lambda: reader.export(4, tmp_path / "model", progress=underway),
        "into": lambda: reader.checkout_into(4, live, progress=underway),
    }
    with pytest.raises(VersionGoneError, match="newest kept version is 6"):
        calls[call]()
    assert underway.gone == (1, 2, 3, 4)
    assert list(tmp_path.iterdir()) == []
    assert reader.version().version == 6


def test_p9_a_tag_protects_a_version_from_its_retirement_under_a_reader() -> None:
    blobs = _three_full_versions()
    reader = store_on(blobs, seed="reader")
    reader.tag("eval", 4, owner="evaluator")
    underway = _RetiredUnderway(blobs)
    taken = reader.checkout("tag:eval", progress=underway)
    assert underway.gone == ()
    assert {name: bits(tensor) for name, tensor in taken.tensors.items()} == {
        name: bits(tensor) for name, tensor in weights(3).items()
    }
    store_on(blobs, seed="later").retire()
    assert reader.version(4).kept


def test_a_version_that_was_found_before_it_was_retired_is_described_as_gone() -> None:
    blobs = _three_full_versions()
    reader = store_on(blobs, seed="reader")
    assert reader.describe(4).has_full_form is False
    store_on(blobs, seed="retirer").retire()
    for call in (reader.describe, reader.checkout, reader.version):
        with pytest.raises(VersionGoneError):
            call(4)
    assert [info.kept for info in reader.versions()] == [True, True, False, False, False, False]


def test_weights_are_never_written_into_the_store(made: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(made, tmp_path / "store"))
    reader: StoreReader = WeightStore.open(place)
    before = tree(place)
    for target in (place / "log" / "000000000099", place / "new"):
        with pytest.raises(InputRefusedError, match="lies in the store"):
            reader.checkout_to_file("latest", target)
        with pytest.raises(InputRefusedError, match="lies in the store"):
            reader.export("latest", target)
    assert tree(place) == before


@pytest.mark.parametrize("kept", ["target", "neither"])
def test_p9_an_overwrite_set_whose_versions_are_retired_while_it_is_iterated_is_gone(
    kept: str,
) -> None:
    blobs = _three_full_versions()
    reader = store_on(blobs, seed="reader")
    target = 6 if kept == "target" else 3
    found = reader.overwrite_set(target, 1)
    assert not found.is_whole
    store_on(blobs, seed="retirer", settings=LAB_SETTINGS).retire()
    with pytest.raises(VersionGoneError, match="newest kept version is 6"):
        list(found)
