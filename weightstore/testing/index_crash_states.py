"""What a loss of power during one commit may leave of the files of an index.

LMDB writes the new pages of a commit into free ones, syncs the file, and writes its meta page
through a descriptor that syncs each write; then the index lengthens the file and seals it,
and syncs neither. So a loss of power leaves any of the new pages, whole or in part, and with
all of them the meta page, old or new; and of length and date what the file system has kept.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightstore.ids import StoreId

SECTOR_SIZE_BYTES = 512
PAGE_SIZE_BYTES = os.sysconf("SC_PAGESIZE")
META_COUNT = 2
ALL_SUBSETS_COUNT_MAX = 6
"""Of so many new pages every subset is tried."""
UNSEALED_EVERY = 6
"""One in so many partial states is tried where it has no seal: it is deleted unread."""


class Beside(StrEnum):
    """What is left of the two files beside the data, which nobody syncs."""

    KEPT = "kept"
    LOCK_OF_ZEROS = "lock of zeros"
    LOCK_EMPTY = "lock empty"
    LOCK_GONE = "lock gone"
    GUARD_GONE = "guard gone"


@dataclass(frozen=True, slots=True)
class IndexCommit:
    """One commit, as the files were around it.

    Attributes:
        name: Of its phase.
        before: The data file as sealed before; empty if there was none.
        after: As sealed after.
        lock: The lock file after.
        blobs: The store at that time.
        store_id: Of the store.
    """

    name: str
    before: bytes
    after: bytes
    lock: bytes
    blobs: Mapping[str, bytes]
    store_id: StoreId


@dataclass(frozen=True, slots=True)
class IndexState:
    """What a loss of power left.

    Attributes:
        name: For messages.
        data: The data file.
        sealed_size_bytes: Its date is the seal of a file of this size; None: it is now.
        beside: What is left of the other files.
    """

    name: str
    data: bytes
    sealed_size_bytes: int | None
    beside: Beside = Beside.KEPT

    @property
    def number(self) -> int:
        """Of 64 bits; alike for states that are alike, whatever commit they are of."""
        head = f"{self.sealed_size_bytes} {self.beside} ".encode()
        return int.from_bytes(hashlib.sha256(head + self.data).digest()[:8])


def new_pages(commit: IndexCommit) -> tuple[list[int], int]:
    """The data pages that a commit wrote, and its meta page."""
    count = -(-len(commit.after) // PAGE_SIZE_BYTES)
    changed = [
        number
        for number in range(count)
        if _page(commit.before, number) != _page(commit.after, number)
    ]
    # LMDB writes the meta pages in turn; in a new file the first commit has the number 1.
    meta = next(n for n in changed if n < META_COUNT) if commit.before else 1
    return [number for number in changed if number != meta], meta


def states(commit: IndexCommit, torn_count: int, seed: int = 0) -> Iterator[IndexState]:
    """What a loss of power during a commit may leave, each state once."""
    seen: set[int] = set()
    for state in (
        *_partial_states(commit, torn_count, np.random.default_rng(seed)),
        *_whole_states(commit),
        *_states_beside(commit),
    ):
        if state.number not in seen:
            seen.add(state.number)
            yield state


def unsynced_states(commit: IndexCommit) -> Iterator[IndexState]:
    """The new meta page and the new seal, without some or all of the new pages."""
    data_pages, meta = new_pages(commit)
    lacks = [set(data_pages), *({page} for page in data_pages)]
    for lack in lacks:
        there = [page for page in data_pages if page not in lack]
        image = _image(commit, [*there, meta], len(commit.after))
        name = f"meta without {sorted(lack)}"
        yield IndexState(name, image, len(commit.after))


def _partial_states(
    commit: IndexCommit, torn_count: int, rng: np.random.Generator
) -> Iterator[IndexState]:
    """Some of the new data pages, and the old meta page."""
    data_pages, _ = new_pages(commit)
    for number, there in enumerate(_subsets(data_pages, torn_count, rng)):
        is_unsealed = number % UNSEALED_EVERY == 0
        for size_bytes in _sizes(commit):
            image = _image(commit, there, size_bytes)
            name = f"pages {list(there)} of {data_pages}, {size_bytes} bytes"
            if is_unsealed or size_bytes == len(commit.before):
                yield from _dated(commit, name, image, is_unsealed=is_unsealed)
    for _ in range(torn_count if data_pages else 0):
        some = [page for page in data_pages if rng.integers(2)]
        torn = int(rng.choice(data_pages))
        size_bytes = int(rng.choice(_sizes(commit)))
        torn_image = bytearray(_image(commit, [page for page in some if page != torn], size_bytes))
        is_new = rng.integers(2, size=PAGE_SIZE_BYTES // SECTOR_SIZE_BYTES)
        _tear(torn_image, commit.after, torn, is_new)
        name = f"pages {some} of {data_pages}, {torn} torn {is_new}, {size_bytes} bytes"
        yield from _dated(commit, name, bytes(torn_image), is_unsealed=False)


def _whole_states(commit: IndexCommit) -> Iterator[IndexState]:
    """All new data pages; the meta page old, in part or new; any of the dates."""
    data_pages, meta = new_pages(commit)
    sector_count = PAGE_SIZE_BYTES // SECTOR_SIZE_BYTES
    for size_bytes in _sizes(commit):
        without = _image(commit, data_pages, size_bytes)
        for new_count in range(sector_count + 1):
            for is_first in (True, False):
                is_new = np.arange(sector_count) < new_count
                image = bytearray(without)
                _tear(image, commit.after, meta, is_new if is_first else is_new[::-1])
                name = f"meta with {new_count} sectors, first: {is_first}, {size_bytes} bytes"
                yield from _dated(commit, name, bytes(image), is_unsealed=True)
        whole = _image(commit, [*data_pages, meta], size_bytes)
        yield IndexState(f"sealed, {size_bytes} bytes", whole, len(commit.after))


def _states_beside(commit: IndexCommit) -> Iterator[IndexState]:
    """The other files have their own fate."""
    for beside in Beside:
        yield IndexState(f"after, {beside}", commit.after, len(commit.after), beside)
        if commit.before:
            yield IndexState(f"before, {beside}", commit.before, len(commit.before), beside)


def _dated(
    commit: IndexCommit, name: str, image: bytes, *, is_unsealed: bool
) -> Iterator[IndexState]:
    """With the seal from before, where there was one, and without any."""
    if commit.before:
        yield IndexState(f"{name}, old seal", image, len(commit.before))
    if is_unsealed or not commit.before:
        yield IndexState(f"{name}, no seal", image, None)


def _subsets(
    pages: list[int], random_count: int, rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """All of a few; else none, one, all but one, all, the first ones, and a sample."""
    count = len(pages)
    if count <= ALL_SUBSETS_COUNT_MAX:
        for size in range(count + 1):
            yield from combinations(pages, size)
        return
    for size in (0, 1, count - 1, count):
        yield from combinations(pages, size)
    yield from (tuple(pages[:size]) for size in range(2, count - 1))
    for _ in range(random_count):
        yield tuple(page for page in pages if rng.integers(2))


def _sizes(commit: IndexCommit) -> list[int]:
    """The lengths that the file may have: old, new, and what was written of either."""
    written = [len(data.rstrip(b"\0")) for data in (commit.before, commit.after)]
    ends = [-(-size_bytes // PAGE_SIZE_BYTES) * PAGE_SIZE_BYTES for size_bytes in written]
    return sorted({len(commit.before), len(commit.after), *ends})


def _image(commit: IndexCommit, pages: Sequence[int], size_bytes: int) -> bytes:
    """The old file with some new pages, cut or lengthened."""
    image = bytearray(commit.before or _empty_file(commit))
    image += bytes(max(0, len(commit.after) - len(image)))
    for number in pages:
        begin = number * PAGE_SIZE_BYTES
        image[begin : begin + PAGE_SIZE_BYTES] = _page(commit.after, number)
    return bytes(image[:size_bytes].ljust(size_bytes, b"\0"))


def _empty_file(commit: IndexCommit) -> bytes:
    """The two meta pages of a file that LMDB has just made: alike but for their number."""
    first = _page(commit.after, 0)
    return bytes(PAGE_SIZE_BYTES) + (1).to_bytes(8, sys.byteorder) + first[8:]


def _tear(image: bytearray, new: bytes, page: int, is_new: NDArray[Any]) -> None:
    """Take some sectors of a page from the new file, as far as the image goes."""
    for number in np.flatnonzero(is_new):
        begin = page * PAGE_SIZE_BYTES + int(number) * SECTOR_SIZE_BYTES
        end = min(begin + SECTOR_SIZE_BYTES, len(image))
        image[begin:end] = new[begin:end]


def _page(data: bytes, number: int) -> bytes:
    return data[number * PAGE_SIZE_BYTES : (number + 1) * PAGE_SIZE_BYTES]
