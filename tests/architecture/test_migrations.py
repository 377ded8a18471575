"""Migrations are frozen: they may not lean on code that goes on changing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "migrations"


def test_migrations_import_the_standard_library_and_each_other_alone() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    assert files
    own = {path.stem for path in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
                assert set(names) <= sys.stdlib_module_names, path.name
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                assert (node.module or "").partition(".")[0] in sys.stdlib_module_names, path.name
            elif isinstance(node, ast.ImportFrom):
                named = {node.module} if node.module else {alias.name for alias in node.names}
                assert node.level == 1, path.name
                assert named <= own, path.name
