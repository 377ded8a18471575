"""The public names of the package are those of `__all__`, and nothing else."""

from __future__ import annotations

import ast
import importlib.metadata
import types
from pathlib import Path

import weightstore
from weightstore import settings, store

COMMANDS = Path(weightstore.__file__).parent / "cli"


def test_all_is_sorted_and_has_no_name_twice() -> None:
    assert list(weightstore.__all__) == sorted(set(weightstore.__all__))


def test_every_public_name_resolves() -> None:
    for name in weightstore.__all__:
        assert getattr(weightstore, name) is not None


def test_no_public_name_is_left_out() -> None:
    public = {
        name
        for name, value in vars(weightstore).items()
        if not name.startswith("_")
        and name != "annotations"  # of `from __future__ import annotations`
        and not isinstance(value, types.ModuleType)
    }
    # Names that are loaded on first use are in `__all__` alone until then.
    assert public <= set(weightstore.__all__)


def test_names_of_the_root_are_those_of_the_layers() -> None:
    for name in weightstore.__all__:
        homes = [home for home in (store, settings) if name in vars(home)]
        assert name == "WeightStoreError" or homes, name
        assert all(getattr(weightstore, name) is vars(home)[name] for home in homes)
    assert set(store.__all__) == {
        name
        for name, value in vars(store).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }


def test_the_version_is_that_of_the_installed_package() -> None:
    assert weightstore.__version__ == importlib.metadata.version("weightstore")


def test_commands_call_what_every_user_can() -> None:
    """The store layer by its public names alone; no command knows a way that Python lacks."""
    files = sorted(COMMANDS.rglob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not module.startswith("weightstore.store."), f"{path.name}: {module}"
            if isinstance(node, ast.ImportFrom) and module == "weightstore.store":
                assert {alias.name for alias in node.names} <= set(store.__all__), path.name
