"""The page of errors lists every error with its code and first sentence, and every exit code."""

from __future__ import annotations

import re
from pathlib import Path

from weightstore import errors
from weightstore.cli.exit_codes import ExitCode, exit_code_of

TEXT = (Path(__file__).parents[2] / "docs/guide/errors.md").read_text(encoding="utf-8")


def kinds() -> list[type[errors.WeightStoreError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.WeightStoreError)
        and kind is not errors.WeightStoreError
    ]


def test_every_error_is_listed_once_by_its_code() -> None:
    rows = re.findall(r"(?m)^\| (WS-\d{4}) \| `(\w+)` \| (.+) \|$", TEXT)
    said = []
    for kind in sorted(kinds(), key=lambda kind: kind.code):
        sentence = (kind.__doc__ or "").splitlines()[0].removesuffix(".")
        said.append((kind.code, kind.__name__, sentence[0].lower() + sentence[1:]))
    assert rows == said


def test_every_branch_has_its_exit_code() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\d+) \| ", TEXT)
    branches = [kind for kind in kinds() if kind.__bases__ == (errors.WeightStoreError,)]
    assert {name: int(code) for name, code in rows} == {
        kind.__name__: int(exit_code_of(kind(""))) for kind in branches
    }


def test_every_exit_code_is_mentioned() -> None:
    numbers = set(map(int, re.findall(r"\b\d{1,3}\b", TEXT)))
    assert numbers >= {int(code) for code in ExitCode}
