"""The examples of README and docs run, print what they say, and links lead somewhere.

The blocks of a page run in order, in one namespace and one empty directory: Python, and shell
blocks with `$ weightstore` commands. A `#>` line in Python, and the lines below a command, are
what is printed; `...` in them stands for anything. A block that does not run says why in a comment
above it: `<!-- no-run: reason -->`.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weightstore.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?ms)(?:^<!-- no-run(?P<mark>[^\n]*) -->\n)?"
    r"^```(?P<language>python|console|bash|sh|shell|pycon)\b[^\n]*\n(?P<code>.*?)^```$"
)
LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
HEADING = re.compile(r"(?m)^#{1,6} +(?P<text>.+?)\s*$")
FENCED = re.compile(r"(?ms)^```.*?^```$")


@dataclass
class Shell:
    """Runs `weightstore` commands in this process, and remembers the last exit code."""

    last_code: int = 0
    lines: list[str] = field(default_factory=list)

    def run(self, command: str) -> None:
        words = shlex.split(command, comments=True)
        self.lines = []
        if words == ["echo", "$?"]:
            self.lines, self.last_code = [str(self.last_code)], 0
            return
        assert self.last_code == 0, "the command before failed, and no `echo $?` says so"
        assert words[0] == "weightstore", f"this test runs no {words[0]}"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                main(words[1:])
            except SystemExit as end:
                self.last_code = int(end.code or 0)
        self.lines = printed.getvalue().splitlines()


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _blocks(page: Path) -> Iterator[tuple[re.Match[str], str]]:
    """Each block, and its code behind as many empty lines as stand above it in the page."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        yield block, "\n" * text.count("\n", 0, block.start("code")) + block["code"]


def _pattern(expected: str) -> re.Pattern[str]:
    """A line loosely: any amount of space for space, anything for `...`."""
    words = [".*".join(map(re.escape, word.split("..."))) for word in expected.split()]
    return re.compile(r"\s*" + r"\s+".join(words) + r"\s*")


def _check_printed(expected: list[str], printed: list[str], where: str) -> None:
    """Check that the expected lines are among the printed ones, in their order."""
    left = iter(printed)
    for line in filter(str.strip, expected):
        if line.strip() == "...":
            continue
        found = any(_pattern(line).fullmatch(each) for each in left)
        assert found, f"{where}: not printed: {line}\nprinted:\n" + "\n".join(printed)


def _run_python(code: str, where: str, namespace: dict[str, object]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, where, "exec"), namespace)
    expected = [line.partition("#>")[2] for line in code.splitlines() if "#>" in line]
    lines = printed.getvalue().splitlines()
    assert expected or not lines, f"{where}: printed without a mark: {lines}"
    assert len(expected) == len(lines), f"{where}: {lines}"
    _check_printed(expected, lines, where)


def _run_shell(code: str, where: str, shell: Shell) -> None:
    expected: list[str] = []
    for line in code.lstrip("\n").splitlines():
        if not line.startswith("$ "):
            expected.append(line)
            continue
        _check_printed(expected, shell.lines, where)
        expected = []
        shell.run(line.removeprefix("$ "))
    _check_printed(expected, shell.lines, where)
    assert shell.last_code == 0, f"{where}: the last command failed: {shell.lines}"


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "example"}
    shell = Shell()
    for block, code in _blocks(page):
        if block["mark"] is not None:
            continue
        if block["language"] == "python":
            _run_python(code, _name(page), namespace)
        else:
            # Any other shell block needs a reason for not being run.
            assert "\n$ weightstore" in f"\n{code}", f"{_name(page)}: no command: {code}"
            _run_shell(code, _name(page), shell)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_what_does_not_run_says_why_and_is_still_python(page: Path) -> None:
    for block, code in _blocks(page):
        if block["mark"] is not None:
            assert re.fullmatch(r": \S.{10,}", block["mark"]), f"no reason: {block['code']}"
            if block["language"] == "python":
                compile(code, _name(page), "exec")


def test_a_block_that_prints_something_else_is_noticed() -> None:
    with pytest.raises(AssertionError, match="not printed"):
        _run_python("print(1)\n#> 2", "here", {})
    with pytest.raises(AssertionError, match="without a mark"):
        _run_python("print(1)", "here", {})
    with pytest.raises(AssertionError, match="not printed"):
        _run_shell("$ weightstore --help\nno such line", "here", Shell())
    with pytest.raises(AssertionError, match="the last command failed"):
        _run_shell("$ weightstore show nowhere\n", "here", Shell())


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as both GitHub and mkdocs make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading["text"].lower()) for heading in HEADING.finditer(text))
    return {each.strip().replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    broken = []
    for link in LINK.finditer(text):
        target = page.parent / link["target"] if link["target"] else page
        if not target.exists() or (link["anchor"] and link["anchor"] not in anchors_of(target)):
            broken.append(link[0])
    assert not broken
