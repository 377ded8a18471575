"""The Python of README and docs runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# A block after this comment is a fragment: it needs what the reader has.
BLOCK = re.compile(r"(?ms)(?P<mark><!-- no-run -->\n)?^```python\n(?P<code>.*?)^```$")
LINK = re.compile(r"\]\((?!https?:|#)(?P<target>[^)#\s]+)")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if block["mark"] is None:
            # Blank lines in front, so that a traceback names the line of the page.
            lead = "\n" * text.count("\n", 0, block.start("code"))
            exec(compile(lead + block["code"], _name(page), "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files(page: Path) -> None:
    targets = {link["target"] for link in LINK.finditer(page.read_text(encoding="utf-8"))}
    assert not {target for target in targets if not (page.parent / target).exists()}


def test_fragments_are_still_python() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            compile(block["code"], _name(page), "exec")
