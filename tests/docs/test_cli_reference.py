"""The page about the command line is current, and what it says does not change unseen."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from weightstore.cli.app import app

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # a group


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    """The script that writes the page, as a module."""
    path = ROOT / "tools" / "cli_reference.py"
    spec = importlib.util.spec_from_file_location("cli_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cli_reference"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["cli_reference"]


def test_the_page_is_current(tool: ModuleType) -> None:
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), "run tools/make_cli_reference"


def test_no_command_or_option_changes_unseen(tool: ModuleType) -> None:
    frozen = json.loads(tool.SURFACE.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(tool.surface()))
    assert found == frozen, (
        "scripts of users depend on this: if the change is meant, say so in docs/changes and run "
        "tools/make_cli_reference --freeze"
    )


def test_every_command_is_on_the_page_and_in_the_readme() -> None:
    page = (ROOT / "docs" / "reference-cli.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"\n## {command}\n" in page
        assert f"`weightstore {command}" in readme, command


def test_the_surface_names_what_the_help_shows(tool: ModuleType) -> None:
    """The declarations that the page is made from are those that typer made the commands from."""
    group = typer.main.get_command(app)
    for command in tool.commands():
        made = group.commands[command.name]  # type: ignore[attr-defined]  # a group
        options = {
            name for each in command.parameters if not each.is_argument for name in each.names
        }
        expected = {
            name
            for each in made.params
            if each.param_type_name == "option" and each.name != "help"
            for name in (*each.opts, *each.secondary_opts)
        }
        assert options == expected, command.name


@pytest.mark.parametrize("command", COMMANDS)
def test_the_usage_line_names_everything_that_is_required(tool: ModuleType, command: str) -> None:
    section = tool.page().partition(f"\n## {command}\n")[2]
    usage = re.search(r"(?m)^weightstore .*$", section)
    assert usage
    made = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]  # a group
    for each in made.params:
        if each.required and each.param_type_name == "option":
            assert f" {each.opts[0]} " in usage.group(), each.name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_is_a_command_with_options_that_exist(tool: ModuleType, command: str) -> None:
    (found,) = (each for each in tool.commands() if each.name == command)
    examples = re.findall(rf"weightstore {command}\b[^;]*", found.epilog)
    assert examples
    known = {name for each in found.parameters for name in each.names}
    for example in examples:
        words = shlex.split(example.partition(". ")[0])
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, example
