"""Totals are kept by any number of processes, and none is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from weightstore.testing.totals import (
    FILE_NAME,
    MINIMA,
    add,
    default_path,
    example_count,
    main,
    totals,
    union_when_complete,
)

ROOT = Path(__file__).parents[3]

_EXAMPLES = """
from hypothesis import assume, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from pathlib import Path

def seen(name):
    with Path(__file__).with_name("seen").open("a") as file:
        file.write(name)

@given(st.integers())
@settings(max_examples=30)
def test_numbers(number):
    assume(number % 7)
    seen("n")

@given(st.booleans())
def test_few(flag):
    seen("f")

class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        seen("m")

    @rule()
    def step(self):
        pass

TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=5)
"""


def test_a_total_begins_at_0_and_grows(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    assert totals(file) == {}
    add("sigkills", 3, path=file)
    add("crash_states", 0, path=file)
    add("sigkills", 4, path=file)
    assert totals(file) == {"crash_states": 0, "sigkills": 7}
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_a_total_never_falls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only grows"):
        add("sigkills", -1, path=tmp_path / FILE_NAME)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["[]", '{"sigkills": "1"}', '{"sigkills": true}', "{"])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    file = tmp_path / FILE_NAME
    file.write_text(text, encoding="ascii")
    with pytest.raises(ValueError, match=r"no totals|Expecting"):
        add("sigkills", 1, path=file)
    assert file.read_text(encoding="ascii") == text


def test_by_default_the_file_lies_at_the_top_of_the_checkout() -> None:
    assert default_path() == ROOT / FILE_NAME


def test_no_count_of_several_processes_is_lost(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    with ProcessPoolExecutor(4, mp_context=get_context("forkserver")) as processes:
        for future in [processes.submit(_add_often, file) for _ in range(4)]:
            future.result()
    assert totals(file) == {"sigkills": 4 * 25}


PARTS = {"a b": {1, 2, 1 << 63}, "b": {2, 3}, "a": {1, (1 << 64) - 1}, "none": set[int]()}
UNION = {1, 2, 3, 1 << 63, (1 << 64) - 1}


def test_the_last_part_alone_is_told_the_union(tmp_path: Path) -> None:
    told = [union_when_complete(tmp_path / "of", name, PARTS[name], PARTS) for name in PARTS]
    assert told == [None, None, None, UNION]


def test_the_union_is_told_once_to_any_number_of_processes(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=get_context("forkserver")) as processes:
        work = [processes.submit(_keep, tmp_path / "of", name) for name in PARTS]
        told = [future.result() for future in work]
    assert [one for one in told if one is not None] == [UNION]


def test_a_part_is_kept_once_and_must_be_waited_for(tmp_path: Path) -> None:
    union_when_complete(tmp_path / "of", "b", {2}, PARTS)
    with pytest.raises(ValueError, match="already"):
        union_when_complete(tmp_path / "of", "b", {3}, PARTS)
    with pytest.raises(ValueError, match="waited for"):
        union_when_complete(tmp_path / "of", "c", {3}, PARTS)
    assert [path.name for path in (tmp_path / "of").iterdir()] == ["b.u64"]


def test_the_examples_that_hypothesis_describes_are_counted() -> None:
    described = """x.py::test:

  - during generate phase (0.01 seconds):
    - Typical runtimes: < 1ms, of which < 1ms in data generation
    - 41 passing, 1 failing, and 17 invalid test cases
    - Found 1 distinct error in this phase

  - during shrink phase (0.02 seconds):
    - Typical runtimes: < 1ms, of which < 1ms in data generation
    - 2 passing, 3 failing, and 1 invalid test cases
    - Tried 6 shrinks of which 2 were successful
"""
    assert example_count(described) == 47
    assert example_count("") == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_every_session_adds_the_examples_that_its_tests_have_run(
    tmp_path: Path, workers: int
) -> None:
    """With the hook of this checkout, in one process and under xdist."""
    hook = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    elsewhere = (
        "totals.default_path = lambda: __import__('pathlib').Path(__file__).parent / 'out'\n"
    )
    (tmp_path / "conftest.py").write_text(hook + elsewhere, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_examples.py").write_text(_EXAMPLES, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", str(workers), str(tmp_path)],
        check=True,
        cwd=tmp_path,
        timeout=120,
    )
    seen = (tmp_path / "seen").read_text(encoding="ascii")
    assert totals(tmp_path / "out")["hypothesis_examples"] == len(seen)
    assert (seen.count("n"), seen.count("f"), seen.count("m")) == (30, 2, 5)


def test_what_a_whole_run_must_go_through_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "faults.json"
    monkeypatch.setattr("weightstore.testing.totals.default_path", lambda: file)
    for name, least in MINIMA.items():
        assert main() == 1
        assert f"{name} is 0, and must be {least} at least" in capsys.readouterr().out
        add(name, least - 1)
    assert main() == 1
    for name in MINIMA:
        add(name, 1)
    assert main() == 0
    last = capsys.readouterr().out.rpartition("{")
    assert json.loads("{" + last[2]) == MINIMA


def _keep(folder: Path, name: str) -> frozenset[int] | None:
    return union_when_complete(folder, name, PARTS[name], PARTS)


def _add_often(file: Path) -> None:
    for _ in range(25):
        add("sigkills", 1, path=file)
