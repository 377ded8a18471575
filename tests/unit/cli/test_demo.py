"""The demo as a new user meets it: what it refuses, what it says, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from weightstore.cli import demo_model
from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run

STEPS = ("demo", "--steps", "1")


@pytest.fixture
def small_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same transformer with 20 thousand parameters: a run takes seconds."""
    shape = demo_model.DemoShape(vocabulary_size=256, width=32, layer_count=1, head_count=2)
    monkeypatch.setattr(demo_model, "DemoShape", lambda: shape)


def test_a_store_that_is_there_is_refused_and_stays_as_it_is(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "store"
    WeightStore.open(place, create=True).close()
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    ran = run(*STEPS, "--store", place)
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "is not empty" in ran.err
    assert "new or empty directory" in ran.err
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


def test_a_url_is_refused_as_everywhere_and_makes_no_directory(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run(*STEPS, "--store", "s3://bucket/policy")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    assert "s3://bucket/policy is a URL" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_refused_as_a_store(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("words")
    ran = run(*STEPS, "--store", tmp_path / "file")
    assert ran.code == ExitCode.REFUSED
    assert (tmp_path / "file").read_text() == "words"


def test_a_model_that_is_no_directory_is_refused(run: Run, tmp_path: Path) -> None:
    ran = run(*STEPS, "--model", tmp_path / "nope", "--json")
    assert (ran.code, ran.out) == (ExitCode.REFUSED, "")
    error = json.loads(ran.err)
    assert (error["error"], error["facts"]) == (
        "InputRefusedError",
        {"model": str(tmp_path / "nope")},
    )
    assert "local directory" in error["do"]


@pytest.mark.parametrize("config", [None, "{", '{"model_type": "nobody-made-this"}'])
def test_a_directory_that_holds_no_model_is_refused(
    run: Run, tmp_path: Path, config: str | None
) -> None:
    pytest.importorskip("transformers")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    ran = run(*STEPS, "--model", tmp_path)
    assert ran.code == ExitCode.REFUSED
    assert f"cannot load a causal model from {tmp_path}" in ran.err
    assert "-> Name a directory" in ran.err


@pytest.mark.usefixtures("small_policy")
def test_the_full_form_is_counted_and_each_step_is_a_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    ran = run(*STEPS, "--store", tmp_path / "store")
    assert ran.code == ExitCode.OK
    first, second = (line for line in ran.err.splitlines() if line.startswith("step "))
    assert first.startswith("step 0 of 1: version 1, ")
    assert second.startswith("step 1 of 1: version 2, ")
    assert "step 0 of 1" not in ran.out
    with WeightStore.open(tmp_path / "store") as store:
        assert store.state().newest == 2
    table = [line for line in ran.out.splitlines() if line.startswith("│ ")]
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in table]
    assert cells[0][4].endswith("KiB")
    assert float(cells[0][4].split()[0]) > 40
    assert cells[0][5:7] == ["", ""]
    assert all(float(cell) > 0 for cell in cells[1][5:7])
    assert "KiB for the full form of version 1: " in ran.out


@pytest.mark.usefixtures("small_policy")
def test_json_is_all_that_is_printed(run: Run) -> None:
    ran = run(*STEPS, "--json")
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    first, second = ran.json["versions"]
    assert first["stored_bytes"] > first["full_form_bytes"] > 40_000
    assert (first["of_full_percent"], first["bytes_per_changed"]) == (None, None)
    assert second["full_form_bytes"] == 0
    assert 0 < second["stored_bytes"] < first["stored_bytes"]


def test_put_says_the_full_form_too(run: Run, tmp_path: Path) -> None:
    store, file = tmp_path / "store", tmp_path / "file"
    weights = np.zeros(50_000, np.float32)
    safetensors.numpy.save_file({"w": weights}, file)
    run("init", store)
    first = run("put", store, file, "--step", 0).out.splitlines()[-1]
    assert float(first.split()[1]) > 50_000 * 4 / 1024
    assert "(full form 195." in first
    assert "KiB, delta " in first
    weights[3] = 1
    safetensors.numpy.save_file({"w": weights}, file)
    second = run("put", store, file, "--step", 1).out.splitlines()[-1]
    assert second.startswith("stored ")
    assert "full form" not in second
