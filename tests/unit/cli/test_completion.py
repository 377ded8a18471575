"""What a shell offers: names of the store that was typed, and silence where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
import typer.main

from weightstore.cli.app import app
from weightstore.cli.completion import complete_selector
from weightstore.store import WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        for step in range(3):
            store.put_step(step, {"w": np.full(9, step, np.uint8)}, run="grpo", anchor=True)
        store.tag("best", 2)
        store.tag("eval", 3)
        store.retire(keep_newest=1)
    return tmp_path / "store"


def typed(place: object) -> typer.Context:
    context = typer.Context(typer.main.get_command(app))
    context.params = {"store": place}
    return context


def test_selectors_of_kept_versions_are_offered(place: Path) -> None:
    offered = complete_selector(typed(place), "")
    assert offered == ["latest", "tag:best", "tag:eval", "grpo@2", "grpo@1", "3", "2"]
    assert complete_selector(typed(str(place)), "tag:e") == ["tag:eval"]
    assert complete_selector(typed(place), "g") == ["grpo@2", "grpo@1"]


@pytest.mark.parametrize("damage", ["nowhere", "no store", "no argument"])
def test_where_there_is_no_store_nothing_is_offered(tmp_path: Path, damage: str) -> None:
    place = {"nowhere": tmp_path / "x", "no store": tmp_path, "no argument": None}[damage]
    assert complete_selector(typed(place), "") == []


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("weightstore di", "diff"),
        ("weightstore show {store} tag:", "tag:best"),
        ("weightstore diff {store} grpo@1 la", "latest"),
    ],
)
def test_bash_is_answered_by_the_command_itself(place: Path, words: str, wanted: str) -> None:
    line = words.format(store=place)
    environment = {
        **os.environ,
        "_WEIGHTSTORE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line,
    }
    code = "import sys; sys.argv = ['weightstore']; from weightstore.cli import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert wanted in ran.stdout.split(), ran.stdout + ran.stderr
