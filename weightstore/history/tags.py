"""Tags: names for versions. A tagged version and its chain are kept until the tag moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weightstore.errors import InputRefusedError, LimitError, TagNotFoundError
from weightstore.format.records import Record, TagRecord
from weightstore.format.rules import Prefix
from weightstore.history.commit import LogWriter
from weightstore.history.existence import check_kept
from weightstore.history.log import Log
from weightstore.ids import Slot, TagName, VersionId

OWNER_LENGTH_MAX = 256


@dataclass(frozen=True, slots=True)
class Tag:
    """A name that keeps a version, and who set it."""

    name: TagName
    version: VersionId
    owner: str
    slot: Slot


def put_tag(writer: LogWriter, name: TagName, version: int, *, owner: str) -> TagRecord:
    """Point a name at a kept version; a name that is set moves.

    After a crash: the tag as it was, or as asked for; setting it again is harmless.

    Raises:
        VersionNotFoundError: the version was never committed.
        VersionGoneError: it was retired.
        InputRefusedError: `owner` is too long, or no text that UTF-8 can hold.
        CommitUnknownError: no answer until the deadline.
    """
    _check_owner(owner)
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record:
        kept = check_kept(prefix.now, version)
        return TagRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            name=name,
            version=kept,
            owner=owner,
        )

    return _tag_record(writer.put(build).record)


def remove_tag(writer: LogWriter, name: TagName, *, owner: str) -> TagRecord:
    """Remove a name; its version may be retired from then on.

    After a crash: the tag as it was, or removed.

    Raises:
        TagNotFoundError: no such tag is set.
        InputRefusedError: `owner` is too long, or no text that UTF-8 can hold.
        CommitUnknownError: no answer until the deadline.
    """
    _check_owner(owner)
    commit_id = writer.new_commit_id()

    def build(prefix: Prefix) -> Record:
        find_tag(writer.log, prefix, name)
        return TagRecord(
            **writer.header(prefix, commit_id),
            epoch=prefix.now.epoch,
            run=None,
            name=name,
            version=None,
            owner=owner,
        )

    return _tag_record(writer.put(build).record)


def find_tag(log: Log, prefix: Prefix, name: TagName) -> VersionId:
    """The version that a tag names.

    Raises:
        TagNotFoundError: it was never set, or was removed.
    """
    for record in _tag_records(log, prefix):
        if record.name == name and record.version is not None:
            return record.version
        if record.name == name:
            break
    raise TagNotFoundError(
        f"no tag {name!r} is set", do="List the tags of the store.", facts={"tag": name}
    )


def list_tags(log: Log, prefix: Prefix) -> tuple[Tag, ...]:
    """Every tag that is set, by name; reads every tag record."""
    newest: dict[TagName, TagRecord] = {}
    for record in _tag_records(log, prefix):
        newest.setdefault(record.name, record)
    return tuple(
        Tag(name, record.version, record.owner, record.slot)
        for name, record in sorted(newest.items())
        if record.version is not None
    )


def _check_owner(owner: str) -> None:
    if len(owner) > OWNER_LENGTH_MAX:
        raise InputRefusedError(
            f"the owner of a tag has {len(owner)} characters, more than {OWNER_LENGTH_MAX}",
            do="Shorten it.",
        )
    try:
        owner.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputRefusedError(
            f"the owner of a tag, {owner!a}, is no text that UTF-8 can hold",
            do="Give it as Unicode text without lone surrogates.",
        ) from error


def _tag_records(log: Log, prefix: Prefix) -> Iterator[TagRecord]:
    limit = log.limits.tag_record_count
    for count, stored in enumerate(log.records_of_kind(prefix, "tag"), start=1):
        if count > limit:
            raise LimitError(f"the log holds more than {limit} tag records")
        yield _tag_record(stored.record)


def _tag_record(record: Record) -> TagRecord:
    assert isinstance(record, TagRecord)
    return record
