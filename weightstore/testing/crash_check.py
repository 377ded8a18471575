"""What must hold after a power cut, checked on models of the disk, many thousand a second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Buffer

from weightstore.errors import (
    BlobNotFoundError,
    CorruptError,
    CorruptObjectError,
    NotAStoreError,
    StoreReadOnlyError,
    WeightStoreError,
)
from weightstore.format.records import VersionRecord
from weightstore.format.rules import EMPTY_PREFIX, is_kept
from weightstore.history.log import Log
from weightstore.history.references import References
from weightstore.history.store_format import open_store
from weightstore.ids import StoreId
from weightstore.settings import Limits
from weightstore.storage.blob_keys import is_key
from weightstore.storage.blobs import BlobInfo
from weightstore.storage.buffers import byte_view
from weightstore.testing.disk_model import FOLDER, Contents, State
from weightstore.testing.history_check import (
    Acknowledged,
    History,
    HistoryViolation,
    Read,
    check_history,
)

# Put without durability, overwritten, or no blob: after a power cut any bytes may be there.
_NOT_DURABLE = re.compile(r"head|(receivers|probe|locks|index)/.*|receipts/.*/open|(.*/)?~tmp-.*")


@dataclass(frozen=True, slots=True)
class StoreMade:
    """A store was made, and its maker was told."""

    store_id: StoreId


@dataclass(frozen=True, slots=True)
class FilesMade:
    """A file or a folder of files outside the store was made, and its maker was told.

    Attributes:
        path: Where, below the traced directory.
        files: Path below `path` to contents; the path itself for a file.
    """

    path: str
    files: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Reliance:
    """Everything that somebody relies on at one moment.

    Attributes:
        store_id: Of the store, once its maker was told.
        history: What was told of the log.
        made: Files outside.
    """

    store_id: StoreId | None = None
    history: History = field(default_factory=History)
    made: tuple[FilesMade, ...] = ()

    @classmethod
    def on(cls, told: list[object]) -> Reliance:
        """On what was told, in order."""
        made = [one.store_id for one in told if isinstance(one, StoreMade)]
        return cls(
            store_id=made[0] if made else None,
            history=History(
                acknowledged=tuple(one for one in told if isinstance(one, Acknowledged)),
                reads=tuple(one for one in told if isinstance(one, Read)),
            ),
            made=tuple(one for one in told if isinstance(one, FilesMade)),
        )


Query = tuple[str, str]
Answer = int | tuple[tuple[str, int], ...]
MISSING = -2


class StateBlobs:
    """A store as a state of the disk holds it, for reading; writes down what it answers.

    Attributes:
        answers: Each question and its answer, in order.
    """

    def __init__(self, state: State, place: str, contents: Contents) -> None:
        self.answers: list[tuple[Query, Answer]] = []
        self.state = state
        self.place = place
        self._contents = contents

    @property
    def location(self) -> str:
        """Where this is, for messages."""
        return f"a state of {self.place}"

    def get(self, key: str, /, *, max_size_bytes: int) -> bytes:
        """See `BlobStore.get`."""
        data = self._found(key)
        if len(data) > max_size_bytes:
            raise CorruptObjectError(f"{key} has {len(data)} bytes", facts={"key": key})
        return data

    def read_into(self, key: str, offset: int, target: Buffer, /) -> None:
        """See `BlobStore.read_into`."""
        view, data = byte_view(target), self._found(key)
        if offset + view.nbytes > len(data):
            raise CorruptObjectError(f"{key} ends early", facts={"key": key})
        view[:] = data[offset : offset + view.nbytes]

    def size(self, key: str, /) -> int:
        """See `BlobStore.size`."""
        return len(self._found(key))

    def list(self, prefix: str, /) -> Iterator[BlobInfo]:
        """See `BlobStore.list`."""
        found = answer(self.state, self.place, ("list", prefix))
        assert isinstance(found, tuple)
        self.answers.append((("list", prefix), found))
        for key, content in found:
            yield BlobInfo(key, len(self._contents.bytes_of(content)))

    def confirm_durable(self, prefix: str, /) -> None:
        """Do nothing: what the power cut has left is on the disk."""

    def local_path(self, key: str, /) -> Path | None:
        """None: there are no files."""
        self._found(key)
        return None

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """Refuse; as does every other write."""
        del data, durable
        raise StoreReadOnlyError(f"{self.location} cannot take {key}")

    def put_stream_if_absent(self, key: str, chunks: object, /) -> int:
        """Refuse."""
        del chunks
        raise StoreReadOnlyError(f"{self.location} cannot take {key}")

    def put_file_if_absent(self, key: str, source: Path, /) -> int:
        """Refuse."""
        del source
        raise StoreReadOnlyError(f"{self.location} cannot take {key}")

    def overwrite(self, key: str, data: Buffer, /) -> None:
        """Refuse."""
        del data
        raise StoreReadOnlyError(f"{self.location} cannot take {key}")

    def delete(self, key: str, /) -> None:
        """Refuse."""
        raise StoreReadOnlyError(f"{self.location} cannot lose {key}")

    def _found(self, key: str) -> bytes:
        found = answer(self.state, self.place, ("blob", key))
        assert isinstance(found, int)
        self.answers.append((("blob", key), found))
        if found == MISSING:
            raise BlobNotFoundError(f"no blob {key}", facts={"key": key})
        return self._contents.bytes_of(found)


def answer(state: State, place: str, query: Query) -> Answer:
    """What a state says to a question: the contents of a key, or the blobs of a prefix."""
    kind, text = query
    if kind == "blob":
        found = state.get(place + text, MISSING)
        return MISSING if found == FOLDER else found
    start = place + text
    keys = sorted(
        (path[len(place) :], content)
        for path, content in state.items()
        if content != FOLDER and path.startswith(start)
    )
    return tuple((key, content) for key, content in keys if is_key(key))


@dataclass(slots=True)
class _Node:
    """What a check asks next, and where each answer leads; or what it has found."""

    query: Query | None = None
    after: dict[Answer, _Node] = field(default_factory=dict)
    found: tuple[str, ...] | None = None


class StateChecks:
    """The checks of one trace's states.

    A check is a function of the answers that it gets, so one that would hear the same
    answers as an earlier one is not run again; whether it would is looked up answer by
    answer.

    Args:
        contents: Of the disk.
        place: Path of the store in a state, with a slash at its end.
        whole: Path of each durable blob to the contents that it was ever given.
        files: What is made outside the store; whole or not there until its maker is told.
    """

    def __init__(
        self,
        contents: Contents,
        place: str,
        whole: dict[str, set[int]],
        files: tuple[FilesMade, ...],
    ) -> None:
        self._contents = contents
        self._place = place
        self._whole = whole
        self._files = files
        self._roots: dict[Reliance, _Node] = {}
        self.run_count = 0

    def violations(self, state: State, reliance: Reliance) -> tuple[str, ...]:
        """Everything that is wrong with a state."""
        wrong = [*self._parts(state), *self._stored(state, reliance)]
        done = {one.path for one in reliance.made}
        for files in self._files:
            if files.path in done or not _is_nothing(state, files.path):
                wrong += _wrong_files(state, files, self._contents)
        return tuple(wrong)

    def _parts(self, state: State) -> Iterator[str]:
        """Blobs that were put durably are whole wherever they are."""
        for path, content in state.items():
            allowed = self._whole.get(path)
            if allowed is not None and content not in allowed:
                yield f"{path} is there in part"

    def _stored(self, state: State, reliance: Reliance) -> tuple[str, ...]:
        root = node = self._roots.setdefault(reliance, _Node())
        while node.query is not None:
            known = node.after.get(answer(state, self._place, node.query))
            if known is None:
                break
            node = known
        if node.found is not None:
            return node.found
        self.run_count += 1
        blobs = StateBlobs(state, self._place, self._contents)
        found = tuple(_store_violations(blobs, reliance))
        for query, heard in blobs.answers:
            root.query = query
            root = root.after.setdefault(heard, _Node())
        root.found = found
        return found


def is_durable_key(key: str) -> bool:
    """Whether what is stored under a key is whole after a power cut, or not there."""
    return not _NOT_DURABLE.fullmatch(key)


def _store_violations(blobs: StateBlobs, reliance: Reliance) -> Iterator[str]:
    try:
        check_history(blobs, reliance.history)
    except HistoryViolation as error:
        yield from map(str, error.violations)
    yield from _swept_in_order(blobs)
    try:
        found = open_store(blobs, Log(blobs, Limits()))
    except NotAStoreError as error:
        if reliance.store_id is not None:
            yield f"the store is not there: {error.message}"
    except WeightStoreError as error:
        yield f"the store does not open: {error.message}"
    else:
        if reliance.store_id not in {None, found}:
            yield f"the store is {found}, not {reliance.store_id}"


def _swept_in_order(blobs: StateBlobs) -> Iterator[str]:
    """Where a retired version's manifest still is, what it names is there: it goes first."""
    log = Log(blobs, Limits())
    references = References(blobs, log, Limits())
    try:
        steps = list(log.steps(EMPTY_PREFIX))
    except WeightStoreError:
        return  # told by the check of the history
    for record in (step.stored.record for step in steps):
        if isinstance(record, VersionRecord) and not is_kept(steps[-1].after.now, record.version):
            with suppress(CorruptError):  # its manifest is gone
                for info in references.objects_of(record):
                    found = answer(blobs.state, blobs.place, ("blob", info.key))
                    blobs.answers.append((("blob", info.key), found))
                    if found == MISSING and not info.key.startswith("manifests/"):
                        yield f"{info.key} was deleted before its manifest"


def _is_nothing(state: State, path: str) -> bool:
    """Whether nothing is there, or an empty folder."""
    found = state.get(path, MISSING)
    if found != FOLDER:
        return found == MISSING
    return not any(other.startswith(path + "/") for other in state)


def _wrong_files(state: State, made: FilesMade, contents: Contents) -> Iterator[str]:
    for name, data in made.files:
        path = f"{made.path}/{name}" if name else made.path
        found = state.get(path, MISSING)
        if found < 0 or contents.bytes_of(found) != data:
            yield f"{path} is not what was written"
