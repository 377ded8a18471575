"""What an import would take: complete, checked against the index, and nothing that runs code."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import safetensors.numpy

from weightstore.errors import InputRefusedError, NameRefusedError
from weightstore.history.import_plan import ImportPlan, plan_import
from weightstore.settings import Limits
from weightstore.testing.safetensors_files import file_of

LIMITS = Limits()


def save(path: Path, *names: str) -> None:
    safetensors.numpy.save_file({name: np.ones(4, np.float32) for name in names}, path)


def write_index(
    folder: Path, weight_map: object, name: str = "model.safetensors.index.json"
) -> None:
    (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def plan(path: Path) -> ImportPlan:
    return plan_import(path, LIMITS)


def names(found: ImportPlan) -> list[tuple[str, str]]:
    return [(file.name, file.role) for file in found.files]


def test_one_file_is_stored_under_the_name_that_loaders_expect(tmp_path: Path) -> None:
    save(tmp_path / "mine.safetensors", "b", "a")
    (tmp_path / "config.json").write_text("{}")
    found = plan(tmp_path / "mine.safetensors")
    assert names(found) == [("model.safetensors", "weights")]
    assert [spec.name for spec in found.schema.tensors] == ["a", "b"]
    assert found.index is None


def test_a_directory_takes_weights_and_plain_files_and_says_what_it_leaves(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", "w")
    for name in ("config.json", "tokenizer.model", "modeling_x.py", "chat_template.jinja"):
        (tmp_path / name).write_text("x")
    for name in ("pytorch_model.bin", "optimizer.pt", "x.ckpt", "pytorch_model.bin.index.json"):
        (tmp_path / name).write_text("x")
    (tmp_path / ".gitattributes").write_text("x")
    (tmp_path / "weightstore.blocks").write_text("x")
    (tmp_path / "caf\u00e9.txt").write_text("x")
    (tmp_path / "original").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "broken.json").symlink_to(tmp_path / "nowhere")
    found = plan(tmp_path)
    assert names(found) == [
        ("chat_template.jinja", "asset"),
        ("config.json", "asset"),
        ("model.safetensors", "weights"),
        ("modeling_x.py", "asset"),
        ("tokenizer.model", "asset"),
    ]
    assert {name for name, _ in found.skipped} == {
        "pytorch_model.bin",
        "optimizer.pt",
        "x.ckpt",
        "pytorch_model.bin.index.json",
        ".gitattributes",
        "weightstore.blocks",
        "caf\u00e9.txt",
        "original",
        "pipe.json",
        "broken.json",
    }
    assert found.size_bytes == sum(file.size_bytes for file in found.files)
    assert "1 tensors in 1 files, 4 other files" in str(found)


def test_the_links_of_a_model_cache_are_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    save(tmp_path / "blobs" / "0123", "w")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/0123")
    found = plan(tmp_path / "snapshot")
    assert found.files[0].source == (tmp_path / "blobs" / "0123").resolve()


def test_an_index_decides_which_files_count(tmp_path: Path) -> None:
    save(tmp_path / "a-1.safetensors", "x")
    save(tmp_path / "a-2.safetensors", "y")
    save(tmp_path / "consolidated.safetensors", "x", "y")
    write_index(tmp_path, {"x": "a-1.safetensors", "y": "a-2.safetensors"})
    found = plan(tmp_path)
    assert names(found) == [
        ("a-1.safetensors", "weights"),
        ("a-2.safetensors", "weights"),
        ("model.safetensors.index.json", "index"),
    ]
    assert found.skipped == (("consolidated.safetensors", "not named by the index"),)
    assert found.index is None


def test_several_files_without_an_index_get_one(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", "x")
    save(tmp_path / "b.safetensors", "y")
    found = plan(tmp_path)
    assert found.index is not None
    assert json.loads(found.index) == {
        "metadata": {"total_size": 32},
        "weight_map": {"x": "a.safetensors", "y": "b.safetensors"},
    }


def test_everything_that_disagrees_with_the_index_is_listed(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", "x", "extra", "twice")
    save(tmp_path / "b.safetensors", "y", "twice")
    write_index(
        tmp_path,
        {
            "x": "b.safetensors",
            "y": "b.safetensors",
            "z": "c.safetensors",
            "twice": "a.safetensors",
        },
    )
    with pytest.raises(InputRefusedError) as caught:
        plan(tmp_path)
    assert caught.value.facts["problems"] == (
        "tensor 'extra' of a.safetensors is not in the index",
        "tensor 'twice' is in a.safetensors and in b.safetensors",
        "tensor 'x' should be in b.safetensors, which does not hold it",
        "tensor 'z' should be in 'c.safetensors', which is not in the directory",
    )


def test_an_index_that_names_a_path_names_no_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    save(tmp_path / "secret.safetensors", "x")
    save(tmp_path / "inner" / "a.safetensors", "y")
    write_index(tmp_path / "inner", {"x": "../secret.safetensors", "y": "a.safetensors"})
    with pytest.raises(InputRefusedError, match="not in the directory"):
        plan(tmp_path / "inner")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 1}', '{"weight_map": {"x": 1}}', "[" * 100_000]
)
def test_an_unreadable_index_is_refused(tmp_path: Path, text: str) -> None:
    save(tmp_path / "a.safetensors", "x")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(InputRefusedError, match="index"):
        plan(tmp_path)


def test_an_index_above_the_limit_is_not_read(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", "x")
    write_index(tmp_path, {"x": "a.safetensors"})
    with pytest.raises(InputRefusedError, match="are above 10"):
        plan_import(tmp_path, replace(LIMITS, anchor_index_size_bytes=10))


def test_two_indices_or_a_single_file_beside_one_are_ambiguous(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", "x")
    write_index(tmp_path, {"x": "a.safetensors"})
    save(tmp_path / "model.safetensors", "x")
    with pytest.raises(InputRefusedError, match=r"loaders would take model\.safetensors"):
        plan(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_index(tmp_path, {"x": "a.safetensors"}, "model.fp16.safetensors.index.json")
    with pytest.raises(InputRefusedError, match="there are 2"):
        plan(tmp_path)


def test_pickles_alone_are_refused_with_advice_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pytorch_model.bin")  # opening it would hang
    with pytest.raises(InputRefusedError, match=r"pytorch_model\.bin") as caught:
        plan(tmp_path)
    assert "safetensors" in caught.value.do


@pytest.mark.parametrize("what", ["nothing", "empty", "pipe", "no tensors"])
def test_places_without_weights_are_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.safetensors"
    if what == "empty":
        (tmp_path / "dir").mkdir()
        path = tmp_path / "dir"
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "no tensors":
        path.write_bytes(file_of({}, 0))
    with pytest.raises(InputRefusedError):
        plan(path)


def test_a_link_to_nowhere_among_the_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(InputRefusedError, match="leads to no file"):
        plan(tmp_path)


def test_a_pipe_among_the_weights_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(InputRefusedError, match="no regular file"):
        plan(tmp_path)


def test_a_weight_file_whose_name_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "mod\u00e8le.safetensors", "x")
    with pytest.raises(InputRefusedError, match="cannot be stored"):
        plan(tmp_path)


def test_a_damaged_or_lying_file_is_the_users_to_fix(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    for data in (
        b"short",
        file_of({"a": entry}, 7),
        file_of({"a": entry}, 9),
        file_of({"a": entry}, 8, said_size=1 << 40),
    ):
        path.write_bytes(data)
        with pytest.raises(InputRefusedError):
            plan(tmp_path)
    path.write_bytes(file_of({"": entry}, 8))
    with pytest.raises(NameRefusedError):
        plan(tmp_path)


def test_names_that_look_like_paths_are_just_names(tmp_path: Path) -> None:
    odd = ("../../etc/x", "/abs", "a\nb", "A", "a", "e\u0301", "\u00e9", "CON")
    save(tmp_path / "model.safetensors", *odd)
    assert {spec.name for spec in plan(tmp_path).schema.tensors} == set(odd)


@pytest.mark.parametrize("named", ["directory", "file"])
def test_a_file_that_vanishes_while_it_is_planned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"x" * 100)
    opened = Path.open

    def vanish(source: Path, mode: str) -> IO[Any]:
        source.unlink()
        return opened(source, mode)

    monkeypatch.setattr(Path, "open", vanish)
    with pytest.raises(InputRefusedError, match="changed while it was read"):
        plan_import(tmp_path if named == "directory" else path, LIMITS)


OTHER_FORMS = (
    "a.BIN", "Optimizer.PT", "x.dill", "x.joblib", "x.pdparams", "x.npy", "x.Pkl", "x.pickle",
    "x.ckpt", "x.pth", "pytorch_model.bin.gz", "x.PT.tar.zst", "pytorch_model.bin.",
)  # fmt: skip


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_other_forms_of_weights_are_left_behind_however_they_are_spelt(
    tmp_path: Path, name: str
) -> None:
    save(tmp_path / "model.safetensors", "w")
    (tmp_path / name).write_text("x")
    (tmp_path / "binary.txt").write_text("x")
    found = plan(tmp_path)
    assert found.skipped == ((name, "weights or state in another form than safetensors"),)
    assert ("binary.txt", "asset") in names(found)
