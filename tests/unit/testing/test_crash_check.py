"""The checks of states: quick ones say what slow ones say, and recovery tells what it finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from weightstore.errors import BlobNotFoundError, CorruptObjectError, StoreReadOnlyError
from weightstore.storage.blobs import BlobInfo
from weightstore.testing.crash_check import Reliance, StateBlobs, StateChecks, StoreMade
from weightstore.testing.crash_stories import STORE, STORIES
from weightstore.testing.crash_traces import Crash, Trace, crashes, recover, write_state
from weightstore.testing.crash_traces import record as record_story
from weightstore.testing.disk_model import FOLDER, Contents
from weightstore.testing.disk_trace import no_fsync


@pytest.fixture(scope="module")
def mutant(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A put of a product that syncs no name."""
    return record_story(
        "mutant",
        STORIES["put of a delta"],
        tmp_path_factory.mktemp("mutant"),
        skips=lambda event: event.site == "LocalBlobStore._sync_name",
    )


def alone(crash: Crash) -> tuple[str, ...]:
    """What a check that remembers nothing finds in the store."""
    checks = StateChecks(crash.trace.contents, f"{STORE}/", {}, ())
    return checks.violations(crash.state, crash.reliance)


def test_a_check_that_remembers_finds_what_one_without_memory_finds(mutant: Trace) -> None:
    found = list(crashes(mutant, 3))
    wrong = [crash for crash in found if crash.wrong]
    assert len(wrong) > 50
    assert len(found) - len(wrong) > 50
    for crash in found:
        assert crash.wrong == alone(crash)


def test_checks_are_run_far_less_often_than_they_are_asked(mutant: Trace) -> None:
    checks = StateChecks(mutant.contents, f"{STORE}/", {}, ())
    asked = 0
    for crash in crashes(mutant, 3):
        checks.violations(crash.state, crash.reliance)
        asked += 1
    assert 0 < checks.run_count < asked // 2


def test_recovery_says_what_a_state_lacks(tmp_path: Path) -> None:
    base = tmp_path / "whole"
    base.mkdir()
    trace = record_story("whole", STORIES["put of a delta"], base, skips=no_fsync)
    *_, last = crashes(trace, 1)
    clean = tmp_path / "clean"
    clean.mkdir()
    assert recover(last, clean) == []
    pack = next(path for path in last.state if path.startswith(f"{STORE}/packs/run-2/"))
    state = {path: content for path, content in last.state.items() if path != pack}
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    assert "OBJECTS_WHOLE" in "".join(recover(replace(last, state=state), damaged))
    other = tmp_path / "other"
    other.mkdir()
    trace = replace(trace, outcome=((), (), ()))
    assert recover(replace(last, trace=trace), other)[0].startswith("ends with")


def test_a_state_reads_as_a_store(tmp_path: Path) -> None:
    contents = Contents()
    state = {
        "s": FOLDER,
        "s/log": FOLDER,
        "s/log/1": contents.number_of(b"one"),
        "s/log/~tmp-1": contents.number_of(b"part"),
        "other": contents.number_of(b"x"),
    }
    blobs = StateBlobs(state, "s/", contents)
    assert blobs.get("log/1", max_size_bytes=3) == b"one"
    assert blobs.size("log/1") == 3
    assert list(blobs.list("")) == [BlobInfo("log/1", 3)]
    part = bytearray(2)
    blobs.read_into("log/1", 1, part)
    assert part == b"ne"
    blobs.confirm_durable("log/")
    assert blobs.local_path("log/1") is None
    with pytest.raises(CorruptObjectError):
        blobs.read_into("log/1", 2, part)
    with pytest.raises(CorruptObjectError):
        blobs.get("log/1", max_size_bytes=2)
    for missing in ("log/2", "log", "other"):
        with pytest.raises(BlobNotFoundError):
            blobs.size(missing)
    no_chunks: Iterable[bytes] = ()
    for write in (
        lambda: blobs.put_if_absent("log/2", b""),
        lambda: blobs.put_stream_if_absent("log/2", no_chunks),
        lambda: blobs.put_file_if_absent("log/2", tmp_path),
        lambda: blobs.overwrite("head", b""),
        lambda: blobs.delete("log/1"),
    ):
        with pytest.raises(StoreReadOnlyError):
            write()


def test_a_store_that_was_told_of_must_be_there(mutant: Trace, tmp_path: Path) -> None:
    checks = StateChecks(mutant.contents, f"{STORE}/", {}, ())
    told = [one for one in mutant.told_before if isinstance(one, StoreMade)]
    assert checks.violations({}, Reliance()) == ()
    assert "is not there" in checks.violations({}, Reliance.on(list(told)))[0]
    write_state(mutant.disk().present(), mutant.contents, tmp_path)
    assert (tmp_path / STORE / "FORMAT").is_file()
    other = Reliance.on([StoreMade(told[0].store_id[::-1])])  # type: ignore[arg-type]
    assert "not" in checks.violations(mutant.disk().present(), other)[0]
