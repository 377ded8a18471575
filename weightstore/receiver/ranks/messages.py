"""What the ranks of an engine say: canonical JSON, with binary tables behind it, and a hash.

    8 bytes   magic
    u64       size of the JSON
    JSON      one of the models below; it says which tables follow, and their sizes
    tables    little-endian, one after the other
    32 bytes  SHA-256 of everything before

Both ends are of one release and nothing in a log leads there, so it is no stored format.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from weightstore.errors import CorruptObjectError, WeightStoreError
from weightstore.format.canonical import MAX_INTEGER, CanonicalModel, decode_model, encode_model
from weightstore.ids import HEX128_PATTERN, SHA256_PATTERN, Sha256, VersionId
from weightstore.receiver.live_state import VersionRef

MAGIC = b"WSRANKS1"
SHA256_SIZE_BYTES = 32
LANE_COUNT = 2
RANK_COUNT_MAX = 4096
TEXT_LENGTH_MAX = 2000

_HEAD_SIZE_BYTES = len(MAGIC) + 8

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Hex128 = Annotated[str, Field(pattern=HEX128_PATTERN)]
Sha256Text = Annotated[str, Field(pattern=SHA256_PATTERN)]
Text = Annotated[str, Field(max_length=TEXT_LENGTH_MAX)]


class Part(enum.Enum):
    """What a leader asks for: the parts of a round in their order, and four of no round."""

    ATTACH = "attach"
    """Close the gate, look at everything that is live, and say what it is."""
    STAGE = "stage"
    """Make a version ready while serving, and say its partial digests."""
    CLOSE = "close"
    """Close the gate."""
    APPLY = "apply"
    """Write."""
    RESUME = "resume"
    """Call the callbacks."""
    OPEN = "open"
    """Open the gate."""
    CALL = "call"
    """Say that you are there: the version is open already."""
    SCAN = "scan"
    """Look at everything that is live; the version is open."""
    SOIL = "soil"
    """Give up what is known: the digests do not add up."""


class VersionText(CanonicalModel):
    """A version by number and by what it holds."""

    version: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    digest: Sha256Text


class Engine(CanonicalModel):
    """A leader's beginning: the engine as it is from here on."""

    engine_id: Hex128
    generation: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    rank_count: Annotated[int, Field(ge=1, le=RANK_COUNT_MAX)]


class Order(CanonicalModel):
    """What the leader asks of every rank; turns of an engine rise by one."""

    engine_id: Hex128
    turn: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    round: Count
    part: Part
    target: VersionText
    base: VersionText | None
    reason: Text


class Failure(CanonicalModel):
    """Why a rank could not do it."""

    code: Annotated[str, Field(max_length=100)]
    message: Text
    do: Text


class Work(CanonicalModel):
    """What a rank has done in a round so far."""

    way: Annotated[str, Field(max_length=20)]
    reason: Text
    is_redo: bool
    applied_count: Count
    launch_count: Count
    wire_bytes: Count
    decoded_bytes: Count
    applied_bytes: Count
    skipped_bytes: Count
    full_bytes: Count
    seconds_us: dict[Annotated[str, Field(max_length=20)], Count]


class Answer(CanonicalModel):
    """What a rank answers.

    `held` is the version that is wholly there. The counts at the end are those of the tables
    that follow (`Tables`), or `null` where one does not.
    """

    engine_id: Hex128
    turn: Count
    part: Part
    rank: Annotated[int, Field(ge=0, lt=RANK_COUNT_MAX)]
    rank_count: Annotated[int, Field(ge=1, le=RANK_COUNT_MAX)]
    process_id: Hex128
    failure: Failure | None
    held: VersionText | None
    schema_id: Sha256Text
    callback_count: Count
    work: Work | None
    box_word_count: Count | None
    before_count: Count | None
    after_count: Count | None


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """What follows an answer.

    Attributes:
        box_words: Where each place of the rank is, as `shares.encode_boxes` writes it.
        before: Digest lanes of each place, shape (places, 2), of the version that is there.
        after: The same of the version that will be there, or is there now.
    """

    box_words: NDArray[np.int64] | None = None
    before: NDArray[np.uint64] | None = None
    after: NDArray[np.uint64] | None = None


NO_TABLES = Tables()

MessageT = TypeVar("MessageT", Engine, Order, Answer)


def encode(model: Engine | Order | Answer, tables: Tables = NO_TABLES) -> bytes:
    """Bytes of a message; the counts of an answer are those of its tables (`counts_of`)."""
    text = encode_model(model)
    arrays = (tables.box_words, tables.before, tables.after)
    parts = [MAGIC, len(text).to_bytes(8, "little"), text]
    parts += [array.astype("<u8", copy=False).tobytes() for array in arrays if array is not None]
    body = b"".join(parts)
    return body + hashlib.sha256(body).digest()


def decode(kind: type[MessageT], data: bytes, *, what: str) -> MessageT:
    """Parse a message without tables.

    Raises:
        CorruptObjectError: it is no such message.
    """
    model, rest = _opened(kind, data, what)
    if rest:
        raise CorruptObjectError(f"{what} goes on for {len(rest)} bytes after its end")
    return model


def decode_answer(data: bytes, *, what: str) -> tuple[Answer, Tables]:
    """Parse an answer and its tables.

    Raises:
        CorruptObjectError: it is no answer, or its tables have other sizes than it says.
    """
    answer, rest = _opened(Answer, data, what)
    counts = (answer.box_word_count, answer.before_count, answer.after_count)
    widths = (1, LANE_COUNT, LANE_COUNT)
    sizes = [8 * (count or 0) * width for count, width in zip(counts, widths, strict=True)]
    if sum(sizes) != len(rest):
        raise CorruptObjectError(f"{what} has tables of {len(rest)} bytes, not {sum(sizes)}")
    words = np.frombuffer(rest, "<u8")
    ends = np.cumsum([size // 8 for size in sizes]).tolist()
    boxes, before, after = (
        words[end - size // 8 : end] for end, size in zip(ends, sizes, strict=True)
    )
    return answer, Tables(
        None if counts[0] is None else boxes.view(np.int64),
        None if counts[1] is None else before.reshape(-1, LANE_COUNT),
        None if counts[2] is None else after.reshape(-1, LANE_COUNT),
    )


def counts_of(tables: Tables) -> dict[str, int | None]:
    """The fields of an answer that say its tables' sizes."""
    return {
        "box_word_count": None if tables.box_words is None else tables.box_words.size,
        "before_count": None if tables.before is None else len(tables.before),
        "after_count": None if tables.after is None else len(tables.after),
    }


def ref_of(said: VersionText) -> VersionRef:
    """The version that a message names."""
    return VersionRef(VersionId(said.version), Sha256(said.digest))


def version_text(ref: VersionRef) -> VersionText:
    """A version as messages name it."""
    return VersionText(version=ref.version, digest=ref.digest)


def failure_of(error: Exception) -> Failure:
    """An error as answers tell it."""
    if isinstance(error, WeightStoreError):
        return Failure(code=error.code, message=text_of(error.message), do=text_of(error.do))
    return Failure(code=type(error).__name__[:100], message=text_of(error), do="")


def text_of(value: object) -> str:
    """A text that fits a message, whatever is in it."""
    text = str(value).encode("utf-8", "replace").decode()
    return text[:TEXT_LENGTH_MAX]


def _opened(kind: type[MessageT], data: bytes, what: str) -> tuple[MessageT, bytes]:
    body, found = data[:-SHA256_SIZE_BYTES], data[-SHA256_SIZE_BYTES:]
    if body[: len(MAGIC)] != MAGIC or hashlib.sha256(body).digest() != found:
        raise CorruptObjectError(f"{what} is no whole message of an engine's rank")
    size = int.from_bytes(body[len(MAGIC) : _HEAD_SIZE_BYTES], "little")
    end = _HEAD_SIZE_BYTES + size
    if len(body) < _HEAD_SIZE_BYTES or end > len(body):
        raise CorruptObjectError(f"{what} ends before its JSON does")
    return decode_model(kind, body[_HEAD_SIZE_BYTES:end], what=what), body[end:]
