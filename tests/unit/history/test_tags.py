"""Tags name kept versions; the newest record of a name counts."""

from __future__ import annotations

import pytest

from weightstore.errors import (
    InputRefusedError,
    LimitError,
    TagNotFoundError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.history.log import Log
from weightstore.history.retire import Keep, retire
from weightstore.history.tags import find_tag, list_tags, put_tag, remove_tag
from weightstore.ids import TagName
from weightstore.settings import Limits
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.toy_store import ToyStore

BEST, LAST = TagName("best"), TagName("last")


@pytest.fixture
def store() -> ToyStore:
    made = ToyStore(MemoryBlobStore())
    made.create()
    trainer = made.trainer()
    for step in range(4):
        trainer.put(step, full=True)
    return made


def tags(store: ToyStore) -> dict[str, int]:
    log = Log(store.blobs, Limits())
    return {tag.name: tag.version for tag in list_tags(log, log.tail())}


def test_tags_are_set_moved_and_removed(store: ToyStore) -> None:
    writer = store.writer()
    assert tags(store) == {}
    record = put_tag(writer, LAST, 2, owner="me")
    put_tag(writer, BEST, 1, owner="me")
    assert tags(store) == {"best": 1, "last": 2}
    put_tag(writer, LAST, 4, owner="you")
    assert tags(store) == {"best": 1, "last": 4}
    log = Log(store.blobs, Limits())
    assert [tag.owner for tag in list_tags(log, log.tail())] == ["me", "you"]
    assert find_tag(log, log.tail(), LAST) == 4
    assert record.version == 2
    remove_tag(writer, LAST, owner="me")
    assert tags(store) == {"best": 1}
    with pytest.raises(TagNotFoundError):
        find_tag(log, log.tail(), LAST)
    with pytest.raises(TagNotFoundError):
        remove_tag(writer, LAST, owner="me")
    put_tag(writer, LAST, 3, owner="me")
    assert tags(store) == {"best": 1, "last": 3}


def test_only_kept_versions_can_be_tagged(store: ToyStore) -> None:
    before = store.log.tail()
    for version in (0, 5, -1):
        with pytest.raises(VersionNotFoundError):
            put_tag(store.writer(), BEST, version, owner="me")
    assert store.log.tail() == before
    retire(
        store.writer(),
        store.blobs,
        Keep(newest_count=2),
        chain_of=store.chain_of,
        objects_of=store.objects_of,
    )
    with pytest.raises(VersionGoneError):
        put_tag(store.writer(), BEST, 1, owner="me")
    put_tag(store.writer(), BEST, 3, owner="me")


def test_an_owner_that_does_not_fit_a_record_is_refused(store: ToyStore) -> None:
    before = store.log.tail()
    with pytest.raises(InputRefusedError):
        put_tag(store.writer(), BEST, 1, owner="x" * 257)
    assert store.log.tail() == before
    put_tag(store.writer(), BEST, 1, owner="x" * 256)
    with pytest.raises(InputRefusedError):
        remove_tag(store.writer(), BEST, owner="x" * 257)


def test_an_owner_that_utf8_cannot_hold_is_refused(store: ToyStore) -> None:
    before = store.log.tail()
    with pytest.raises(InputRefusedError, match=r"'\\ud800'"):
        put_tag(store.writer(), BEST, 1, owner="\ud800")
    with pytest.raises(InputRefusedError, match="UTF-8"):
        remove_tag(store.writer(), BEST, owner="\ud800")
    assert store.log.tail() == before


def test_more_tag_records_than_the_bound_are_refused(store: ToyStore) -> None:
    for _ in range(3):
        put_tag(store.writer(), BEST, 1, owner="me")
    log = Log(store.blobs, Limits(tag_record_count=2))
    with pytest.raises(LimitError):
        list_tags(log, log.tail())
