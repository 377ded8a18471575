"""A disk that forgets: which names and bytes a power cut may leave, as a model.

A file's bytes survive from the fsync of the file on, a name from the fsync of the folder
that holds it on. Everything else may be there or not, each name and each file for itself,
and what was written without an fsync may be there in part. That is more than any journal
lets happen, so what holds here holds on every file system.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias, assert_never

ROOT = 0
"""Inode of the folder that everything else is in; it survives always."""
FOLDER = -1
"""Stands in a state where a file has its contents."""
EMPTY = 0
"""The contents of a file that was never written."""
_GOLDEN_NUMERATOR = 6180339887498949
_GOLDEN_DENOMINATOR = 10**16
_PAGE_SIZE_BYTES = 4096
_LINK_MARK = b"\0symbolic link to "

State: TypeAlias = Mapping[str, int]
"""Path below the root to contents; folders are there too."""


@dataclass(frozen=True, slots=True)
class Named:
    """A name in a folder came to mean an inode, or None: it was removed."""

    folder: int
    name: str
    inode: int | None


@dataclass(frozen=True, slots=True)
class Made:
    """An inode was made, without a name yet.

    Attributes:
        inode: Its number.
        is_folder: Whether names can be in it.
        content: What it holds for good: the text of a symbolic link, which is written with it.
    """

    inode: int
    is_folder: bool
    content: int = EMPTY


@dataclass(frozen=True, slots=True)
class Written:
    """A file has other contents now."""

    inode: int
    content: int


@dataclass(frozen=True, slots=True)
class Synced:
    """An fsync of a file or folder.

    Attributes:
        inode: Of what.
        site: Which call in the product it was.
        path: Where that was, for people; files without a name by that of their folder.
    """

    inode: int
    site: str
    path: str


@dataclass(frozen=True, slots=True)
class Told:
    """From here on somebody relies on something."""

    what: object


Event: TypeAlias = Named | Made | Written | Synced | Told


def link_bytes(target: str) -> bytes:
    """What stands for the contents of a symbolic link."""
    return _LINK_MARK + target.encode("utf-8", "surrogateescape")


def link_target(data: bytes) -> str | None:
    """Where a symbolic link leads whose contents these are; None for those of a file."""
    if not data.startswith(_LINK_MARK):
        return None
    return data.removeprefix(_LINK_MARK).decode("utf-8", "surrogateescape")


class Contents:
    """Bytes by small numbers, so that states are compared quickly."""

    def __init__(self) -> None:
        self._bytes: list[bytes] = [b""]
        self._numbers: dict[bytes, int] = {b"": EMPTY}
        self._marks: dict[tuple[str, int], int] = {}

    def number_of(self, data: bytes) -> int:
        """The number of these bytes."""
        number = self._numbers.setdefault(data, len(self._bytes))
        if number == len(self._bytes):
            self._bytes.append(data)
        return number

    def mark_of(self, path: str, number: int) -> int:
        """64 bits for a path with these contents, the same in every process and run."""
        mark = self._marks.get((path, number))
        if mark is None:
            whole = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8)
            whole.update(b"\0/" if number == FOLDER else b"\0." + self._bytes[number])
            mark = self._marks[path, number] = int.from_bytes(whole.digest(), "little")
        return mark

    def number_of_state(self, state: State) -> int:
        """64 bits for a state, the same in every process and run."""
        return sum(self.mark_of(*one) for one in state.items()) % (1 << 64)

    def bytes_of(self, number: int) -> bytes:
        """The bytes of a number."""
        return self._bytes[number]

    def torn(self, durable: int, newest: int) -> list[int]:
        """What may be on the disk when these bytes were written over durable ones, unsynced.

        Parts of them, in order and out of it; the new size with no data, with old blocks of
        the disk, or with the first or last page alone. The pages at the beginning that are
        what is durable were not written, so they stay.
        """
        data = self.bytes_of(newest)
        kept = _equal_pages(self.bytes_of(durable), data)
        size = len(data)
        if not size:
            return []
        noise = bytes((7 * index + size) % 251 for index in range(min(size, 997)))
        garbage = (noise * (size // len(noise) + 1))[:size]
        half = size // 2
        parts = [data[:cut] for cut in sorted({1, size // 3, half, size - 1})]
        parts += [bytes(size), garbage, data[:half] + bytes(size - half)]
        parts += [bytes(half) + data[half:], data[:half] + garbage[half:], data + b"\0" * 8]
        before = self.bytes_of(durable)
        if len(before) == size:  # written in place: some pages are the old ones
            parts += [before[:half] + data[half:], data[:half] + before[half:]]
        whole = [part if len(part) < len(kept) else kept + part[len(kept) :] for part in parts]
        numbers = dict.fromkeys(self.number_of(part) for part in whole if len(part) >= len(kept))
        return [number for number in numbers if number not in {durable, newest}]


def _equal_pages(durable: bytes, newest: bytes) -> bytes:
    """The whole pages at the beginning that two contents share."""
    count = 0
    while ((end := (count + 1) * _PAGE_SIZE_BYTES) <= min(len(durable), len(newest))) and durable[
        end - _PAGE_SIZE_BYTES : end
    ] == newest[end - _PAGE_SIZE_BYTES : end]:
        count += 1
    return newest[: count * _PAGE_SIZE_BYTES]


@dataclass(slots=True)
class _File:
    durable: int = EMPTY
    pending: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    durable: dict[str, int] = field(default_factory=dict)
    pending: dict[str, list[int | None]] = field(default_factory=dict)

    def newest(self) -> dict[str, int]:
        names: dict[str, int | None] = {**self.durable}
        names.update({name: values[-1] for name, values in self.pending.items()})
        return {name: inode for name, inode in names.items() if inode is not None}


@dataclass(frozen=True, slots=True)
class _Axis:
    """One thing that a power cut decides: what a name means, or what a file holds.

    The first option is what is durable, the last what was there when the power went.
    """

    inode: int
    name: str | None
    options: Sequence[int | None]


class ModelDisk:
    """The disk at one moment: what is durable, and what is not yet."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Folder] = {ROOT: _Folder()}

    def apply(self, event: Event) -> None:
        """Let one thing happen."""
        match event:
            case Made():
                if event.is_folder:
                    self._folders[event.inode] = _Folder()
                else:
                    self._files[event.inode] = _File(durable=event.content)
            case Named():
                pending = self._folders[event.folder].pending
                pending.setdefault(event.name, []).append(event.inode)
            case Written():
                self._files[event.inode].pending.append(event.content)
            case Synced():
                self._sync(event.inode)
            case Told():
                pass
            case _:
                assert_never(event)

    def settle(self) -> None:
        """Make everything durable, as on a disk that had time."""
        for inode in (*self._folders, *self._files):
            self._sync(inode)

    def present(self) -> State:
        """What a process sees now."""
        return self._state(self._axes(), highest=True)

    def crash_states(self, limit: int) -> Iterator[State]:
        """What a power cut now may leave: all of it, or a spread of so many states.

        The two extremes, and those that differ from an extreme in one thing, always are
        among them.
        """
        axes = self._axes()
        for picks in _picks([len(axis.options) for axis in axes], limit):
            yield self._state(axes, picks)

    def _sync(self, inode: int) -> None:
        folder = self._folders.get(inode)
        if folder is not None:
            folder.durable = folder.newest()
            folder.pending.clear()
            return
        file = self._files[inode]
        if file.pending:
            file.durable = file.pending[-1]
            file.pending.clear()

    def _axes(self) -> list[_Axis]:
        axes: list[_Axis] = []
        named: set[int | None] = set()
        for inode, folder in self._folders.items():
            named.update(folder.durable.values())
            for name, values in folder.pending.items():
                named.update(values)
                options = dict.fromkeys((folder.durable.get(name), *values[:-1]))
                options.pop(values[-1], None)
                axes.append(_Axis(inode, name, (*options, values[-1])))
        for inode, file in self._files.items():
            if file.pending and inode in named:
                newest = file.pending[-1]
                torn = self._contents.torn(file.durable, newest)
                options = dict.fromkeys((file.durable, *file.pending[:-1], *torn))
                options.pop(newest, None)
                axes.append(_Axis(inode, None, (*options, newest)))
        return axes

    def _state(
        self, axes: Sequence[_Axis], picks: Sequence[int] = (), *, highest: bool = False
    ) -> State:
        names: dict[int, dict[str, int]] = {}
        data: dict[int, int] = {}
        for axis, pick in zip(axes, picks or [-1 if highest else 0] * len(axes), strict=True):
            option = axis.options[pick]
            if axis.name is None:
                assert option is not None
                data[axis.inode] = option
                continue
            if axis.inode not in names:
                names[axis.inode] = dict(self._folders[axis.inode].durable)
            if option is None:
                names[axis.inode].pop(axis.name, None)
            else:
                names[axis.inode][axis.name] = option
        return self._flat(names, data)

    def _flat(self, names: Mapping[int, Mapping[str, int]], data: Mapping[int, int]) -> State:
        state: dict[str, int] = {}
        # A folder may be reached by two names while it is renamed, never by one in itself.
        pending = [("", ROOT)]
        while pending:
            path, inode = pending.pop()
            for name, inner in names.get(inode, self._folders[inode].durable).items():
                where = path + name
                if inner in self._folders:
                    state[where] = FOLDER
                    pending.append((where + "/", inner))
                else:
                    state[where] = data.get(inner, self._files[inner].durable)
        return state


def _picks(sizes: Sequence[int], limit: int) -> Iterator[Sequence[int]]:
    """Choices of one option per axis: all, or the extremes, their neighbours and a spread."""
    total = math.prod(sizes)
    if total <= limit:
        yield from product(*(range(size) for size in sizes))
        return
    yield from _extremes(sizes)
    # Steps of about the golden ratio that share no factor with the whole never repeat, and
    # lie as far from each other as they can. In whole numbers: a float holds no such count.
    step = total * _GOLDEN_NUMERATOR // _GOLDEN_DENOMINATOR | 1
    while math.gcd(step, total) != 1:
        step += 1
    for count in range(1, limit):
        place, picks = count * step % total, []
        for size in sizes:
            place, pick = divmod(place, size)
            picks.append(pick)
        yield picks


def _extremes(sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """Everything lost, everything there, and all that differs from these in one thing."""
    lowest, highest = [0] * len(sizes), [size - 1 for size in sizes]
    yield lowest
    yield highest
    for axis, size in enumerate(sizes):
        for option in range(size):
            yield [*lowest[:axis], option, *lowest[axis + 1 :]]
            yield [*highest[:axis], option, *highest[axis + 1 :]]
