"""diff, doctor and migrate as a person and a script meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run
from weightstore.testing.store_lab import LAB_SETTINGS, tree


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four versions; the last one has a full form and another schema."""
    weights: dict[str, NDArray[Any]] = {
        "few": np.ones(1000, np.float32),
        "many": np.zeros((20, 5), np.float16),
        "[red]odd": np.zeros(3, np.uint8),
    }
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, weights, run="grpo")
        weights["few"][7] = 1.5
        weights["many"][3, :4] = 2
        store.put_step(1, weights, run="grpo")
        weights["[red]odd"][1] = 9
        store.put_step(2, weights, run="grpo")
        del weights["many"]
        weights["new"] = np.zeros((), np.int64)
        store.put_step(3, weights, run="grpo", new_schema=True)
        store.tag("best", 2)
    return tmp_path / "store"


def rows_of(table: str) -> list[list[str]]:
    """Cells of a printed table."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in table.splitlines()
        if line.startswith("│")
    ]


def test_diff_prints_the_densest_change_first_and_the_totals(run: Run, place: Path) -> None:
    told = run("diff", place, "grpo@0", "tag:best")
    assert (told.code, told.err) == (ExitCode.OK, "")
    assert rows_of(told.out) == [
        ["many", "F16", "20x5", "4", "4.0000 %", "16,384", "2"],
        ["few", "F32", "1000", "1", "0.1000 %", "4,194,304", "0.5"],
    ]
    assert "version 1 (grpo@0) to 2 (grpo@1): 5 of 1,103 elements" in told.out
    assert "in 2 of 3 tensors" in told.out
    limited = run("diff", place, 1, 3, "--limit", 1).out
    assert [row[0] for row in rows_of(limited)] == ["[red]odd"]
    assert "and 2 more tensors" in limited
    assert len(rows_of(run("diff", place, 1, 3, "-n", 0).out)) == 3


def test_diff_counts_from_the_packs(run: Run, place: Path) -> None:
    told = run("diff", place, 1, 2, "--counts")
    assert rows_of(told.out)[0] == ["many", "F16", "20x5", "4", "4.0000 %", "", ""]
    document = run("diff", place, 1, 2, "--counts", "--json").json
    assert document["source"] == "packs"
    assert document["tensors"][0]["largest_ulps"] is None


def test_diff_as_json_has_everything(run: Run, place: Path) -> None:
    document = run("diff", place, 1, "--json").json
    assert (document["old"]["version"], document["new"]["version"]) == (1, 4)
    assert document["schema"] == [
        {"name": "many", "old": "F16 (20, 5)", "new": None},
        {"name": "new", "old": None, "new": "I64 ()"},
    ]
    assert document["source"] == "weights"
    assert (document["changed_count"], document["changed_tensor_count"]) == (2, 2)
    odd, few = document["tensors"]
    assert (odd["name"], odd["largest_ulps"], odd["largest_ulps_at"]) == ("[red]odd", 9, [1])
    assert few == {
        "name": "few", "dtype": "F32", "shape": [1000], "unit_count": 1000, "changed_count": 1,
        "density": 0.001, "largest_ulps": 1 << 22, "largest_ulps_at": [7],
        "largest_absolute": 0.5, "nonfinite_count": 0,
    }  # fmt: skip


def test_diff_tells_other_schemas_in_words(run: Run, place: Path) -> None:
    told = run("diff", place, 3, 4).out
    assert "many: F16 (20, 5) -> not there" in told
    assert "new: not there -> I64 ()" in told
    assert "2 names are not the same tensor in both" in told


def test_diff_of_what_is_not_there_fails_as_other_commands_do(run: Run, place: Path) -> None:
    assert run("diff", place, 1, 99).code == ExitCode.NOT_FOUND
    assert run("diff", place, "newest", 1).code == ExitCode.REFUSED
    assert run("diff", place).code == ExitCode.USAGE


def test_retire_says_what_stays_and_why(run: Run, place: Path) -> None:
    before = tree(place)
    planned = run("retire", place, "--keep", 1, "--dry-run")
    assert tree(place) == before
    assert rows_of(planned.out) == [
        ["1", "chain of 2"],
        ["2", "tag best"],
        ["4", "newest, asked for"],
    ]
    assert "1 version (3) would be retired" in planned.out
    document = run("retire", place, "--keep", 1, "--dry-run", "--json").json
    assert document["gone"] == [3]
    assert document["kept"][0] == {"version": 1, "reasons": ["chain of 2"]}
    assert document["deleted_size_bytes"] > 0
    done = run("retire", place, "--keep", 1, "--json").json
    assert {key: done[key] for key in ("gone", "kept", "deleted_size_bytes")} == {
        key: document[key] for key in ("gone", "kept", "deleted_size_bytes")
    }


def test_doctor_ends_well_for_a_whole_store(run: Run, place: Path) -> None:
    told = run("doctor", place)
    assert (told.code, told.err) == (ExitCode.OK, "")
    assert "log          8 records, every hash fits the next one" in told.out
    not_hashed = "the contents of objects were not hashed; --deep does that"
    assert not_hashed in told.out
    assert not_hashed not in run("doctor", place, "--deep").out
    deep = run("doctor", place, "--deep", "--json")
    assert deep.code == ExitCode.OK
    assert deep.json["deep"] is True
    assert {"severity", "check", "what", "do"} == set(deep.json["findings"][0])


def test_doctor_has_exit_codes_for_scripts(run: Run, place: Path, tmp_path: Path) -> None:
    (place / "packs" / "link").symlink_to(tmp_path)
    warned = run("doctor", place)
    assert warned.code == ExitCode.FOUND_WARNINGS
    assert run("doctor", place, "--json").json["worst"] == "warning"
    next(place.glob("packs/*/2-*")).unlink()
    broken = run("doctor", place)
    assert broken.code == ExitCode.FOUND_ERRORS
    assert "version 2: packs/" in broken.out
    assert "-> Restore it from another copy" in broken.out
    assert run("doctor", tmp_path / "nowhere").code == ExitCode.FOUND_ERRORS


def test_migrate_says_that_there_is_nothing_to_do(run: Run, place: Path, tmp_path: Path) -> None:
    before = tree(place)
    for words in (("--dry-run",), ()):
        told = run("migrate", place, *words)
        assert (told.code, told.out) == (ExitCode.OK, "format 1 is the newest; nothing to do\n")
        document = run("migrate", place, *words, "--json").json
        assert document == {"format": 1, "newest": 1, "steps": [], "done": False}
    assert tree(place) == before
    assert run("migrate", tmp_path / "nowhere").code == ExitCode.NOT_FOUND


def test_migrate_refuses_a_newer_store(run: Run, place: Path) -> None:
    file = place / "FORMAT"
    document = json.loads(file.read_bytes()) | {"format": 2}
    file.chmod(0o644)
    file.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
    ran = run("migrate", place, "--dry-run", "--json")
    assert ran.code == ExitCode.UNAVAILABLE
    assert json.loads(ran.err)["error"] == "UpgradeRequiredError"
