"""Every row of the failure model names tests that are there and are run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from weightstore.testing.removed_steps import STEPS
from weightstore.testing.simulation.mutations import Removed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/failure-model.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(?:(Test\w+)::)?(test_\w+)`")
COLUMNS = ["fault", "noticed by", "outcome for writer and reader", "what to do", "test"]
# What a run of kills has printed: its rows are counts, and one test is behind them all.
KILLS = ["killed", "in", "seen by others", "healed by", "bytes equal", "kills"]
KILLS_SECTION = "## A fleet under kills"
# No faults of the world, but of a product that lacks something.
REMOVED = ["step", "what breaks without it", "test that turns red"]
REMOVED_SECTION = "## Steps that are taken out"
# Each has a row whose fault says so.
FAULTS = [
    "kill -9 in `init`", "kill -9 in a put", "kill -9 in attach, import, tag or retire",
    "kill -9 in checkout to a file, export, verify", "kill -9 in the recovery", "loss of power",
    "enospc", "eio from an fsync", "read-only", "short writes", "zombie trainer",
    "two trainers", "answer to a commit is lost", "request is lost", "no answer",
    "any changed byte", "missing pack", "missing manifest, schema or digest table",
    "file of a full form", "log is cut short", "any bytes in any stored object", "bomb",
    "retired under its reader", "clock jumps", "fork", "index is lost", "`head` is garbage",
    "newer format",
    "live weights is cut at any launch", "staged for it is lost", "whole version is cut",
    "written, zeroed or moved", "unrelated weights", "or twice", "chain with it",
    "everything, and memory is short", "with verify and retire between", "killed at any part",
    "leader of an engine dies", "same rank", "digests of ranks do not add up", "follower, at any",
]  # fmt: skip


def rows() -> list[list[str]]:
    """The cells of each row of each table, without heads and rules."""
    found = [
        [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        for line in about_faults().splitlines()
        if line.startswith("|")
    ]
    return [row for row in found if row != COLUMNS and not set("".join(row)) <= set("-|")]


def about_faults() -> str:
    """The page without its sections of kills and of removed steps."""
    text = PAGE.read_text(encoding="utf-8")
    for heading in (KILLS_SECTION, REMOVED_SECTION):
        before, found, rest = text.partition(heading)
        text = before + rest[rest.index("\n## ") :] if found else before
    return text


@cache
def collected(path: Path) -> frozenset[tuple[str, str]]:
    """Class (or nothing) and name of each test that pytest collects from a file."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(("", node.name))
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found.update(
                (node.name, each.name) for each in node.body if isinstance(each, ast.FunctionDef)
            )
    return frozenset(pair for pair in found if pair[1].startswith("test_"))


def test_every_row_is_complete_and_names_tests_that_are_collected() -> None:
    assert len(rows()) > 40
    wrong = []
    for row in rows():
        assert len(row) == len(COLUMNS), row
        assert all(row), row
        tests = TEST.findall(row[-1])
        named = ["::".join(part for part in test if part) for test in tests]
        assert "<br>".join(f"`{name}`" for name in named) == row[-1], row[-1]
        for path, owner, name in tests:
            file = ROOT / path
            runs = file.name.startswith("test_") and file.exists()
            if not runs or (owner, name) not in collected(file):
                wrong.append(f"{path}::{name}")
    assert not wrong


def test_every_kind_of_fault_has_a_row() -> None:
    faults = [row[0].lower() for row in rows()]
    assert not [wanted for wanted in FAULTS if not any(wanted in fault for fault in faults)]


def test_the_tables_have_the_same_columns() -> None:
    text = PAGE.read_text(encoding="utf-8")
    heads = re.findall(r"(?m)^(\|.*\|)\n\|[-|]+\|$", text)
    assert heads
    assert set(heads) == {f"| {' | '.join(head)} |" for head in (COLUMNS, KILLS, REMOVED)}


def test_every_kill_of_the_printed_run_healed_to_equal_bytes() -> None:
    section = PAGE.read_text(encoding="utf-8").partition(KILLS_SECTION)[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    assert lines[0] == KILLS
    assert len(lines) > 20
    assert all(len(line) == len(KILLS) and line[4] == "yes" for line in lines[2:])
    total = sum(int(line[5]) for line in lines[2:])
    assert f"{total} kills" in section


def test_every_step_that_is_taken_out_is_in_the_list_with_its_test() -> None:
    section = PAGE.read_text(encoding="utf-8").partition(REMOVED_SECTION)[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    assert lines[0] == REMOVED
    assert lines[2:] == [
        [step.step, step.breaks, f"`{step.test_function}`"] for step in STEPS.values()
    ]
    said = " ".join(section.split())
    assert [step.value for step in Removed if f" {step.value}" not in said] == []
    named = ["::".join(part for part in test if part) for test in TEST.findall(section)]
    assert (
        "tests/crash/test_fsyncs.py::test_without_this_fsync_a_power_cut_breaks_a_promise" in named
    )
    for path, owner, name in TEST.findall(section):
        # What a class of a contract holds is elsewhere; that it is run, its removed step shows.
        assert owner or ("", name) in collected(ROOT / path), name


def test_a_test_that_is_not_there_would_be_noticed() -> None:
    here = collected(Path(__file__))
    assert ("", "test_a_test_that_is_not_there_would_be_noticed") in here
    assert ("", "rows") not in here
