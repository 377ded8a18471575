"""What the machine itself can do: reading, copying, and writing to the disk for good."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from tools.bench.published_step import PieceInput

_Pair = tuple[NDArray[np.uint64], NDArray[np.uint64]]
PART_COUNT = 16
COMPUTE_STEP_COUNT = 4_000_000
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 -- files in memory keep the disk out of figures


@numba.njit(nogil=True)
def _read(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> np.uint64:
    """Read two arrays as a comparison does, and do nothing else."""
    seen = np.uint64(0)
    for index in range(old.size):
        seen |= old[index] ^ new[index]
    return seen


@numba.njit(nogil=True)
def _compute(step_count: int) -> float:
    """Work in registers alone."""
    value = 1.0
    for _ in range(step_count):
        value = value * 1.0000001 + 1e-9
    return value


def compute(threads: ThreadPoolExecutor | None = None, thread_count: int = 1) -> None:
    """Do a fixed amount of work for each thread: whether the other cores are free at all."""
    if threads is None:
        _compute(COMPUTE_STEP_COUNT)
        return
    for _ in threads.map(_compute, [COMPUTE_STEP_COUNT] * thread_count):
        pass


class Reading:
    """Reads both versions of every piece, by one thread or by several."""

    def __init__(self, inputs: Sequence[PieceInput]) -> None:
        self._pairs: list[_Pair] = []
        for each in inputs:
            count = each.old.nbytes // 8 * 4
            old, new = each.old[:count].view(np.uint64), each.new[:count].view(np.uint64)
            self._pairs += zip(
                np.array_split(old, PART_COUNT), np.array_split(new, PART_COUNT), strict=True
            )

    def by_one(self) -> None:
        """Read everything in this thread."""
        for pair in self._pairs:
            _read(*pair)

    def by(self, threads: ThreadPoolExecutor, thread_count: int) -> None:
        """Read everything in threads that take parts in turn."""
        shares = [self._pairs[start::thread_count] for start in range(thread_count)]
        for _ in threads.map(self._share, shares):
            pass

    def _share(self, pairs: Sequence[_Pair]) -> None:
        for pair in pairs:
            _read(*pair)


def write_durably(folder: Path, name: str, data: bytes) -> None:
    """Make one durable object by the fewest calls that leave all of it or nothing in a crash.

    The bytes are synced before they get their name, and the folder after.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        file = os.open(folder, os.O_RDWR | os.O_TMPFILE, 0o600)
        try:
            os.write(file, data)
            os.fsync(file)
            os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=handle, follow_symlinks=True)
        finally:
            os.close(file)
        os.fsync(handle)
    finally:
        os.close(handle)


def memory_folder() -> Path | None:
    """Where files lie in memory, or None for the usual temporary folder."""
    return MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
