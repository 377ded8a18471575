"""The tutorial of two terminals in the README, line by line, in two real shells."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from weightstore.clock import SystemClock

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?ms)^```bash\n# terminal (?P<number>[12])\n(?P<lines>.*?)^```$")
DONE = "this block is done"
TIMEOUT_S = 600.0


def blocks() -> list[tuple[int, list[str]]]:
    """Terminal and lines of each block, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [(int(each["number"]), each["lines"].splitlines()) for each in BLOCK.finditer(text)]


class Terminal:
    """A shell that is typed into, and what it has printed."""

    def __init__(self, home: Path) -> None:
        environment = {**os.environ, "HOME": str(home), "PYTHONUNBUFFERED": "1"}
        self._shell = subprocess.Popen(
            ["/bin/bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home,
            env=environment,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def enter(self, lines: list[str]) -> None:
        """Give lines to the shell, and one that says when it is done with them."""
        assert self._shell.stdin is not None
        self._shell.stdin.write("".join(f"{line}\n" for line in [*lines, f"echo {DONE}"]))
        self._shell.stdin.flush()

    def wait_for(self, is_there: Callable[[list[str]], bool], what: str) -> None:
        """Wait until the lines that were printed are so."""
        with self._heard:
            found = self._heard.wait_for(lambda: is_there(self.lines), TIMEOUT_S)
        assert found, f"no {what} in {TIMEOUT_S} s:\n" + "\n".join(self.lines)

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            with self._heard:
                self.lines.append(line.rstrip("\n"))
                self._heard.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The shell's own session, and nothing else: what it has started goes with it.
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait(timeout=TIMEOUT_S)
        self._reader.join(timeout=TIMEOUT_S)
        for stream in (self._shell.stdin, self._shell.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A clone, as far as the lines look at it, that is the home directory too."""
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    return tmp_path


def _said(pattern: str, count: int = 1) -> Callable[[list[str]], bool]:
    return lambda lines: sum(bool(re.search(pattern, line)) for line in lines) >= count


def test_the_readme_has_both_terminals() -> None:
    assert [number for number, _ in blocks()] == [1, 2, 2, 2]


@pytest.mark.slow
def test_the_tutorial_of_two_terminals_ends_in_equal_bytes(home: Path) -> None:
    started_s = SystemClock().monotonic_s()
    (_, train), (_, begin), (_, again), (_, compare) = blocks()
    with Terminal(home) as first, Terminal(home) as second:
        first.enter(train)
        first.wait_for(_said(r"version 1,"), "first version")
        second.enter(begin)
        second.wait_for(_said(r"^version \d+  change"), "change in place")
        second.enter(again)
        second.wait_for(_said(r"^version \d+ is there: "), "look at what was there")
        first.wait_for(_said(DONE), "end of the trainer")
        assert _said("all versions bit-exact")(first.lines), first.lines
        second.enter(compare)
        second.wait_for(_said(DONE, 3), "end of the comparison")
        assert second.lines[-2] == "equal", second.lines
    assert SystemClock().monotonic_s() - started_s < TIMEOUT_S
