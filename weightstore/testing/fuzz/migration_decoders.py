"""Decoders of the frozen code that raises stores to newer formats, beside those of today."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

from weightstore.errors import CorruptLogError, WeightStoreError
from weightstore.format.format_file import FormatFile, decode_format_file, encode_format_file
from weightstore.format.keys import FORMAT_KEY, log_key
from weightstore.format.records import Record, decode_record, encode_record
from weightstore.format.rules import EMPTY_PREFIX, Prefix, advance
from weightstore.history.log import sha256_of
from weightstore.ids import Slot, StoreId
from weightstore.store.migrating import PACKAGE, load_migrations, plan_migration
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.json_decoders import said_slot
from weightstore.testing.fuzz.mutating import Form
from weightstore.testing.log_story import LogStory

_STORE_ID = StoreId("0" * 32)


def migration_decoders(folder: Path) -> Iterator[Decoder]:
    """The decoders of this file.

    Args:
        folder: An empty one, for the file `FORMAT`.
    """
    load_migrations()
    story = LogStory().begin().claimed().published(3)
    story.put(story.intent())
    builders: tuple[Callable[[], Record], ...] = (
        *(story.opening, story.closing, story.version, story.alt, story.void_attempt),
        *(story.void_intent, story.tag, story.activate, story.retire, story.format),
    )
    yield Decoder(
        "frozen records",
        (encode_record(LogStory().init()), *(encode_record(build()) for build in builders)),
        partial(_decode_record, _frozen("log_1"), _frozen("failures"), story.prefix),
        Form.JSON,
        ("_migrations.log_1:advance", "_migrations.record_1:parse"),
    )
    root = folder / "frozen"
    (root / "log").mkdir(parents=True)
    (root / log_key(Slot(0))).write_bytes(encode_record(LogStory().init()))
    yield Decoder(
        "frozen FORMAT",
        (encode_format_file(FormatFile(store_id=_STORE_ID)),),
        partial(_decode_format, root),
        Form.JSON,
        ("_migrations.chain:plan", "_migrations.place:Place.read"),
        share=0.5,
    )


def _frozen(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}")


def _decode_record(log_1: ModuleType, failures: ModuleType, story: Prefix, data: bytes) -> None:
    """What today's code reads, the frozen code reads too, and both come to one state."""
    slot = Slot(said_slot(data))
    before = replace(story if slot else EMPTY_PREFIX, next_slot=slot)
    try:
        record = decode_record(data, slot=slot)
    except WeightStoreError:
        record = None
    try:
        after = log_1.advance(
            log_1.Prefix(slot, before.tail_sha256, before.now.model_dump(mode="json")), data
        )
    except failures.MigrationError as error:
        assert record is None, "refused what the product reads"
        raise CorruptLogError(str(error)) from error
    if record is not None:
        expected = advance(before, record, sha256_of(data))
        assert after.now == expected.now.model_dump(mode="json")
        assert (after.next_slot, after.tail_sha256) == (expected.next_slot, expected.tail_sha256)


def _decode_format(root: Path, data: bytes) -> None:
    (root / FORMAT_KEY).write_bytes(data)
    try:
        plan = plan_migration(root)
    except WeightStoreError:
        # A larger one than was ever written is for today's code to read.
        assert not _is_format(data) or len(data) > _frozen("chain").FORMAT_SIZE_BYTES_MAX
        raise
    assert (plan.format, plan.steps) == (1, ())


def _is_format(data: bytes) -> bool:
    try:
        decode_format_file(data, location="")
    except WeightStoreError:
        return False
    return True
