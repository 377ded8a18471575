"""What commands say at the edges: bars, another model, damage, one of something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from weightstore.cli import output
from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run

Weights = dict[str, NDArray[Any]]


def file_of(path: Path, weights: Weights) -> Path:
    safetensors.numpy.save_file(weights, path)
    return path


def given(number: int = 0) -> Weights:
    weights: Weights = {"w": np.ones(1000, np.float32), "b": np.arange(4, dtype=np.float16)}
    weights["w"][number] = 7
    return weights


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of three versions, each with a full form of its own."""
    with WeightStore.open(tmp_path / "store", create=True) as store:
        for step in range(3):
            store.put_step(step, given(step), anchor=True)
    return tmp_path / "store"


def test_a_put_shows_how_far_it_is_and_only_on_a_terminal(
    run: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    original = output.BarReporter.__call__

    def heard(self: output.BarReporter, phase: str, done_bytes: int, total_bytes: int) -> None:
        told.append((phase, done_bytes, total_bytes))
        original(self, phase, done_bytes, total_bytes)

    monkeypatch.setattr(output.BarReporter, "__call__", heard)
    ran = run("put", place, file_of(tmp_path / "new", given(9)), "--step", 3, "--anchor")
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    assert ("read", 4008, 4008) in told
    assert {phase for phase, _, _ in told} == {"read", "write"}


def test_another_model_is_imported_only_if_that_is_said(
    run: Run, place: Path, tmp_path: Path
) -> None:
    other = file_of(tmp_path / "other", {"w": np.zeros(7, np.float32), "c": np.zeros(2, np.int8)})
    ran = run("import", place, other)
    assert ran.code == ExitCode.REFUSED
    for words in ("3 differences", "version 3", "shape of 'w'", "tensor 'b' is missing", "'c'"):
        assert words in ran.err
    assert "--new-schema" in ran.err
    assert run("show", place, "--json").json["store"]["newest"] == 3
    assert run("import", place, other, "--new-schema").code == ExitCode.OK
    same = file_of(tmp_path / "same", given(5))
    ran = run("import", place, same, "--step", 1, "--json")
    assert ran.code == ExitCode.REFUSED
    assert json.loads(ran.err)["error"] == "SchemaMismatchError"
    assert run("import", place, same, "--step", 1, "--new-schema").code == ExitCode.OK
    assert run("import", place, same, "--step", 2).code == ExitCode.OK


def test_an_import_again_asks_nothing_and_one_over_damage_says_so(
    run: Run, place: Path, tmp_path: Path
) -> None:
    other = file_of(tmp_path / "other", {"c": np.zeros(2, np.int8)})
    assert run("import", place, other, "--new-schema").code == ExitCode.OK
    with WeightStore.open(place) as store:
        store.put_step(9, {"d": np.zeros(2, np.int8)}, new_schema=True)
    again = run("import", place, other, "--json")
    assert (again.code, again.json["version"]) == (ExitCode.OK, 4)
    for schema in place.rglob("*schema*"):
        if schema.is_file():
            schema.unlink()
    ran = run("import", place, other, "--step", 7)
    assert ran.code == ExitCode.REFUSED
    assert "version 5 cannot be read" in ran.err
    assert run("import", place, other, "--step", 7, "--new-schema").code == ExitCode.OK


def test_an_export_without_a_configuration_warns(run: Run, place: Path, tmp_path: Path) -> None:
    ran = run("export", place, "latest", tmp_path / "bare")
    assert ran.code == ExitCode.OK
    assert "warning: version 3 has no config.json" in ran.err
    folder = tmp_path / "model"
    folder.mkdir()
    file_of(folder / "model.safetensors", given())
    (folder / "config.json").write_text("{}")
    assert run("import", place, folder).code == ExitCode.OK
    ran = run("export", place, "latest", tmp_path / "whole", "--json")
    assert (ran.code, ran.err) == (ExitCode.OK, "")


@pytest.fixture
def damaged(place: Path) -> Path:
    """The same store, where the full forms of versions 1 and 3 were changed."""
    for version in (1, 3):
        for path in place.glob(f"anchors/main-1-{version}-1/model*.safetensors"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.chmod(0o644)
            path.write_bytes(data)
    return place


def test_verify_all_lists_every_damaged_version(run: Run, damaged: Path) -> None:
    ran = run("verify", damaged, "--all")
    assert ran.code == ExitCode.CORRUPT
    lines = [line for line in ran.out.splitlines() if "DAMAGED" in line]
    assert [[word for word in line.split() if word.isdigit()] for line in lines] == [["3"], ["1"]]
    assert sum("every object" in line for line in ran.out.splitlines()) == 1
    assert ran.err.count("error WS-4001") == 2
    assert "2 versions of 3 damaged" in ran.err
    rows = run("verify", damaged, "--all", "--json")
    assert rows.code == ExitCode.CORRUPT
    found = {row["version"]: row.get("error", {}).get("code") for row in rows.json}
    assert found == {1: "WS-4001", 2: None, 3: "WS-4001"}
    assert rows.json[-1]["error"]["facts"]
    assert rows.err == ""


def test_verify_of_one_version_is_as_before(run: Run, damaged: Path) -> None:
    assert run("verify", damaged, 2).code == ExitCode.OK
    ran = run("verify", damaged, 3, "--json")
    assert (ran.code, ran.out) == (ExitCode.CORRUPT, "")
    assert json.loads(ran.err)["code"] == "WS-4001"


def test_one_of_something_is_said_in_the_singular(run: Run, place: Path, tmp_path: Path) -> None:
    file = file_of(tmp_path / "one", {"w": np.zeros(1, np.float32)})
    run("init", tmp_path / "small")
    assert "1 of 1 element\n" in run("put", tmp_path / "small", file, "--step", 0).out
    kept = run("retire", place, "--keep", 2, "--dry-run").out
    assert "1 version (1) would be retired, " in kept
    assert "1 version (1) was retired, " in run("retire", place, "--keep", 2).out
    assert "0 versions were retired, 0 objects (0 B) were deleted" in " ".join(
        run("retire", place, "--keep", 2).out.split()
    )
