"""Errors of commands advise options of the command line, not arguments of Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from weightstore.cli.advice import command_line_advice
from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run

PYTHON = re.compile(r"\w+=(True|False|None|['\"{])|\b(rewind_to|take_over|new_schema)\b")
WEIGHTS: dict[str, NDArray[Any]] = {"a": np.ones(9, np.float16), "b": np.ones(9, np.float16)}
PUTS: dict[str, tuple[dict[str, NDArray[Any]], int, str]] = {
    "a cast": (WEIGHTS | {"a": np.ones(9, np.float32)}, 9, "--cast '*=f16'"),
    "another schema": ({"a": WEIGHTS["a"]}, 9, "--new-schema"),
    "a missing tensor": ({"a": WEIGHTS["a"]}, 9, "--missing unchanged"),
    "a step below": ({name: each + each for name, each in WEIGHTS.items()}, 1, "--rewind-to N"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store with one version."""
    with WeightStore.open(tmp_path / "store", create=True) as store:
        store.put_step(5, WEIGHTS, run="grpo")
    return tmp_path / "store"


def put_words(place: Path, weights: dict[str, NDArray[Any]], step: int) -> tuple[object, ...]:
    """A put of these weights."""
    safetensors.numpy.save_file(weights, place.parent / "file")
    return ("put", place, place.parent / "file", "--run", "grpo", "--step", step)


@pytest.mark.parametrize("case", PUTS)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_refused_put_names_the_option(
    run: Run, place: Path, case: str, form: tuple[str, ...]
) -> None:
    weights, step, option = PUTS[case]
    told = run(*put_words(place, weights, step), *form)
    assert told.code == ExitCode.REFUSED
    assert option in told.err
    advice = told.err.partition('"do": ' if form else "->")[2].splitlines()[0]
    assert not PYTHON.search(advice), advice


def test_an_owned_store_names_the_option(run: Run, place: Path) -> None:
    with WeightStore.open(place) as owner, owner.trainer("grpo"):
        told = run(*put_words(place, WEIGHTS, 9))
    assert told.code == ExitCode.CONFLICT
    assert "repeat with --take-over: it is fenced" in told.err
    assert not PYTHON.search(told.err)


def test_every_advice_of_the_library_is_translated() -> None:
    """A new phrase in a `do=` of the library must get its option too."""
    package = Path(__file__).parents[3] / "weightstore"
    source = "\n".join(
        path.read_text(encoding="utf-8")
        for layer in ("history", "trainer", "store")
        for path in sorted((package / layer).rglob("*.py"))
    )
    advices = re.findall(r"\bdo\s?=\s*f?(?:\"([^\"]*)\"|'([^']*)')", source)
    texts = [
        (one or other).replace("{{", "{").replace("}}", "}")  # of f-strings
        for one, other in advices
    ]
    assert any(PYTHON.search(text) for text in texts)
    assert not [text for text in texts if PYTHON.search(command_line_advice(text))]


def test_other_advice_stays_as_it_is() -> None:
    assert command_line_advice("Put 4.") == "Put 4."
    assert command_line_advice("") == ""
