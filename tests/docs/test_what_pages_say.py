"""Statements of pages that the product or a stored result settles, and that no example shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from weightstore.format import keys
from weightstore.ids import parse_run_id

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted(path.name for path in (DOCS / "guide").glob("*.md"))
NOTE = DOCS / "design" / "0009-what-bounds-encoding.md"
CODEC = ROOT / "tools" / "bench" / "results" / "codec.json"
FIGURE = re.compile(r"\d[\d.,]*\s+(?:[mµ]?s|[KMG]i?B(?:/s)?|%\s+less)\b")
"""A measured time, size or rate, which needs its machine, n and spread."""
BOUND = re.compile(r"at\s+most\s+" + FIGURE.pattern)


@pytest.mark.parametrize("guide", GUIDES)
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_every_guide_is_linked(guide: str, page: str) -> None:
    assert f"guide/{guide})" in (ROOT / page).read_text(encoding="utf-8")


def test_names_of_engines_that_talk_over_a_store_are_allowed() -> None:
    """They go by the grammar of runs."""
    page = (DOCS / "guide" / "ranks.md").read_text(encoding="utf-8")
    names = re.findall(r"channel=store, name=\"([^\"]*)\"", page)
    assert names
    for name in names:
        assert parse_run_id(name) == name


def test_the_table_of_keys_has_every_prefix() -> None:
    page = (DOCS / "format.md").read_text(encoding="utf-8")
    prefixes = [value for name, value in vars(keys).items() if name.endswith("_PREFIX")]
    assert keys.RANKS_PREFIX in prefixes
    for prefix in prefixes:
        assert re.search(rf"(?m)^\| `{prefix}", page), prefix


def test_the_note_on_encoding_has_the_figures_of_the_stored_run() -> None:
    stored = json.loads(CODEC.read_text(encoding="utf-8"))
    rows = {(row["name"], row["peer_name"]): row for row in stored["rows"]}
    encode = rows["training step: encode, one core", "modelexpress 0.7.0"]
    reading = rows["training step: encode, one core", "one core reading"]
    second = rows["training step: encode, two cores", "encode, one core"]
    cores = rows["training step: two cores reading", "one core reading"]
    note = " ".join(NOTE.read_text(encoding="utf-8").split())
    share = 5 / encode["ratio"]["median"] * reading["ratio"]["median"]
    for said in (
        f"a load of {stored['load']} ",
        f"n = {encode['measured']['count']} ",
        f"{encode['measured']['median']:.1f} GB/s on one core",
        f"{reading['ratio']['median']:.0%}".replace("%", " % of all that this core reads"),
        f"({reading['peer']['median']:.1f} GB/s)",
        f"{encode['ratio']['median']:.2f}x the peer",
        f"would be {share:.0%}".replace("%", " % of reading"),
        f"gives {second['ratio']['median']:.2f}x",
        f"read {cores['ratio']['median']:.2f}x",
    ):
        assert said in note, said


@pytest.mark.parametrize(
    "path", sorted((DOCS / "changes").glob("*.md")), ids=lambda path: path.name
)
def test_a_fragment_holds_no_measured_figure(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "third less" not in text
    # A bound is no measurement.
    assert not FIGURE.search(BOUND.sub("", text))


@pytest.mark.parametrize(
    ("text", "has_one"),
    [("of at most\n16 KiB", False), ("at most 16 KiB in 3 ms", True), ("at most\n3, in 4 s", True)],
)
def test_a_bound_hides_no_figure_beside_it(text: str, *, has_one: bool) -> None:
    assert bool(FIGURE.search(BOUND.sub("", text))) is has_one
