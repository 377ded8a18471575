"""Real file systems in memory that run full or turn read-only; needs the right to mount."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

PAGE_SIZE_BYTES = 4096
_BALLAST = "ballast"


class MountRefusedError(Exception):
    """This user may not mount file systems, or this machine has no `mount`."""


class SmallDisk:
    """A tmpfs of a size, mounted while the block runs.

    Args:
        folder: Where to; made if it is missing.
        size_bytes: So much fits on it.

    Raises:
        MountRefusedError: it cannot be mounted here.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder))

    def fill(self, *, free_page_count: int) -> None:
        """Take all space but some pages; what was taken before is given back first."""
        self.free()
        with (self.folder / _BALLAST).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(PAGE_SIZE_BYTES))
            except OSError:
                file.truncate(max(0, file.tell() - free_page_count * PAGE_SIZE_BYTES))

    def free(self) -> None:
        """Give back the space that `fill` took."""
        (self.folder / _BALLAST).unlink(missing_ok=True)

    def make_read_only(self) -> None:
        """Refuse every write from now on; nothing may be open for writing.

        Raises:
            MountRefusedError: this may not be changed here, or a file is open.
        """
        _mount("-o", "remount,ro", str(self.folder))

    def make_writable(self) -> None:
        """Take writes again."""
        _mount("-o", "remount,rw", str(self.folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Lazily: what a failed test has left open must not leave the mount behind.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)  # noqa: S603, S607 -- of the system


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(  # noqa: S603 -- of the system
            ["mount", *words],  # noqa: S607 -- wherever it is
            check=False,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise MountRefusedError("there is no `mount`") from error
    if done.returncode:
        raise MountRefusedError(done.stderr.strip())
