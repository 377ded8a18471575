"""Reading what the processes of a fleet have written down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Said:
    """One line.

    Attributes:
        process: Number of the process that wrote it.
        when_s: Monotonic time, the same for all processes.
        word: What it is about.
        rest: What belongs to it.
    """

    process: int
    when_s: float
    word: str
    rest: tuple[Any, ...]


class Scroll:
    """The file of one seat, read on as it grows.

    Args:
        path: It; it need not be there yet.

    Attributes:
        said: Everything so far, in order.
    """

    def __init__(self, path: Path) -> None:
        self.said: list[Said] = []
        self._path = path
        self._offset = 0

    def read_on(self) -> None:
        """Read what was written since; a line that is still being written comes later."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            process, when_s, word, *rest = json.loads(line)
            self.said.append(Said(process, when_s, word, tuple(rest)))

    def of(self, word: str, *, process: int | None = None, first: int = 0) -> list[Said]:
        """The lines with a word.

        Args:
            word: What they are about.
            process: Of this process alone.
            first: From this line on.
        """
        return [
            one for one in self.said[first:] if one.word == word and process in {None, one.process}
        ]
