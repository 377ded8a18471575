"""Every fsync of the product is needed: without it, a power cut breaks a promise (P6).

Each row takes one fsync away, at the system call, and shows a story and a state of the disk
that goes wrong. Those few that no power cut can miss stand in a table of their own.
"""

from __future__ import annotations

import ast
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from weightstore.testing import totals
from weightstore.testing.crash_stories import STORE, STORIES, versions
from weightstore.testing.crash_traces import (
    Trace,
    crashes,
    kind_of,
    record,
    record_killed,
    record_lost,
    record_moved,
)
from weightstore.testing.disk_model import Synced
from weightstore.testing.disk_trace import AtCall, Call, Lack, Skips, no_fsync

PRODUCT = Path(__file__).parents[2] / "weightstore"
MAGIC = b"weightstore-baseline-1\n"
BASELINE_STORY = "put with a baseline file"
SPREAD = 64
PLENTY = 1
"""The extremes and their neighbours are tried whatever the limit is: that shows a loss."""

Recorder = Callable[[Path, Skips], Trace | None]


@dataclass(frozen=True)
class Need:
    """An fsync and what shows that it is needed.

    Attributes:
        site: The functions that lead to it.
        kind: What it syncs.
        protects: What would be lost.
        trace: Name of the trace that goes wrong without it.
    """

    site: str
    kind: str
    protects: str
    trace: str

    def skips(self, event: Synced) -> bool:
        """Whether this is the fsync."""
        return (event.site, kind_of(event.path, STORE)) == (self.site, self.kind)


BYTES, NAME = "LocalBlobStore._sync_bytes", "LocalBlobStore._sync_name"
FOLDERS = "Folders._name < Folders._make < Folders.made < LocalBlobStore._create"
FOUND = "Folders.confirm < LocalBlobStore.confirm_durable"
FOUND_FOLDERS = (
    "Folders._name < Folders._find_named < Folders.confirm < LocalBlobStore.confirm_durable"
)
ABOVE = "Folders._name_root < Folders.made < LocalBlobStore._create"
FOUND_ABOVE = "Folders._name_root < Folders.confirm < LocalBlobStore.confirm_durable"
CHECK = "Folders.check_syncs < LocalBlobStore._unfinished"
SOURCE = "durable.sync_path < durable._synced_source"
REPLACE = "durable._sync_name < durable._replace_in < durable.replace_durably"
EXPORTED, BASELINE = "export._name_directory", "FilePlace.adopt"
OUTSIDE, ROOT = "beside or above the store", "the store's folder"

NEEDS = [
    Need(BYTES, "bytes of FORMAT", "whose store it is", "create"),
    Need(BYTES, "bytes of a file in log/", "the record of a commit", "create"),
    Need(BYTES, "bytes of a file in manifests/", "manifest, schema, digests", "first put"),
    Need(BYTES, "bytes of a file in packs/", "the change of a version", "put of a delta"),
    Need(BYTES, "bytes of a file in anchors/", "a full form", "put with an anchor"),
    Need(NAME, "log/", "the record of an acknowledged commit", "create"),
    Need(NAME, "a folder in manifests/", "what an acknowledged record names", "first put"),
    Need(NAME, "a folder in packs/", "the same", "put of a delta"),
    Need(NAME, "a folder in anchors/", "the same", "put with an anchor"),
    Need(FOLDERS, ROOT, "log/, manifests/, packs/, anchors/ and all in them", "create"),
    Need(FOLDERS, "manifests/", "the folder of a claim and all in it", "first put"),
    Need(FOLDERS, "packs/", "the same", "put of a delta"),
    Need(FOLDERS, "anchors/", "the folder of a full form", "put with an anchor"),
    Need(ABOVE, OUTSIDE, "the store's own folder, and those made for it", "create"),
    Need(FOUND, "log/", "a record that a killed writer had linked, once acted upon", "found"),
    Need(FOUND, "a folder in manifests/", "an object that landed without answer", "lost answers"),
    Need(FOUND, "a folder in packs/", "the same", "lost answers of a delta"),
    Need(FOUND, "a folder in anchors/", "the same", "lost answers"),
    Need(FOUND_FOLDERS, ROOT, "a log/ that a user moved back", "moved log"),
    Need(FOUND_ABOVE, OUTSIDE, "a store that a user moved", "moved store"),
    Need("durable.sync_path < export._write", OUTSIDE, "a written file", "export of a delta"),
    Need("durable.sync_path < export._copy", OUTSIDE, "a copied file", "export of a full form"),
    Need(
        f"{SOURCE} < durable.replace_durably < {EXPORTED}",
        OUTSIDE,
        "names of the exported files",
        "export of a delta",
    ),
    Need(f"{REPLACE} < {EXPORTED}", OUTSIDE, "the exported directory", "export of a delta"),
    Need(
        "durable._sync_name < durable.link_durably < export._finished",
        OUTSIDE,
        "the checked out file",
        "checkout to a file",
    ),
    Need(
        "durable._sync_name < durable._replace_in < durable.link_durably < export._finished",
        OUTSIDE,
        "the checked out file where there are no links",
        "checkout without links",
    ),
]

BEGUN = ("baseline_places._begun", OUTSIDE)
"""What it protects no state of the store shows: it has a test of its own below."""

ELSEWHERE = ("LinkedFolder.unlink", "LinkedFolder.link_to", "LinkedFolder.sync", "FilePatches.sync",
             "file_writes.write_parts", "LinkedFolder.acquire")  # fmt: skip
"""Of directories outside the store: tests/crash/test_host_file_states.py has their table."""

_BY_DESIGN = "asks whether folders can be synced here at all, before anything depends on it"
_PROVEN = "a baseline is proven by digest before it is used; syncing it saves a checkout"
HARMLESS = {
    (CHECK, "log/"): _BY_DESIGN,
    (CHECK, "probe/"): _BY_DESIGN,
    (CHECK, "a folder in receipts/"): _BY_DESIGN,
    (CHECK, ROOT): _BY_DESIGN,
    (NAME, ROOT): "FORMAT: its maker confirms the folder before the log rests on it",
    (FOUND, ROOT): "FORMAT: making log/ durable syncs the same folder; kept for other stores",
    (FOUND_FOLDERS, "manifests/"): "whoever put an object there has synced the folder's name",
    (f"{SOURCE} < durable.replace_durably < {BASELINE}", OUTSIDE): _PROVEN,
    (f"{REPLACE} < {BASELINE}", OUTSIDE): _PROVEN,
    (f"{SOURCE} < durable.link_durably < export._finished", OUTSIDE): (
        "the writer of the file has synced it; whoever names a file does not rely on that"
    ),
}


def found_by_reader(base: Path, skips: Skips) -> Trace | None:
    """A writer is killed between link and fsync of its last record; a reader acts on it."""
    cut = _between_link_and_fsync_of_record(2)
    return record_killed(
        "found",
        STORIES["first put"],
        base,
        cut,
        then_read=True,
        skips=skips,
    )


def lost_answers(story: str) -> Recorder:
    """Every object lands, and its writer is told of an error."""
    return lambda base, skips: record_lost(
        f"lost answers of {story}", STORIES[story], base, _is_link_of_an_object, skips=skips
    )


RECORDERS: dict[str, Recorder] = {
    "found": found_by_reader,
    "lost answers": lost_answers("put with an anchor"),
    "lost answers of a delta": lost_answers("put of a delta"),
    "moved log": lambda base, skips: record_moved(
        "moved log", base, versions(1), f"{STORE}/log", skips=skips
    ),
    "moved store": lambda base, skips: record_moved(
        "moved store", base, versions(1), "outer", skips=skips
    ),
    "checkout without links": lambda base, skips: record(
        "no links", STORIES["checkout to a file"], base, lacks=frozenset({Lack.LINKS}), skips=skips
    ),
}


def recorded(name: str, base: Path, skips: Skips = no_fsync) -> Trace:
    """A trace by its name."""
    base.mkdir()
    if name in RECORDERS:
        trace = RECORDERS[name](base, skips)
        assert trace is not None
        return trace
    return record(name, STORIES[name], base, skips=skips)


def _between_link_and_fsync_of_record(number: int) -> AtCall:
    linked: list[Call] = []

    def is_it(call: Call) -> bool:
        if call.name == "link_open_file" and f"{STORE}/log/0" in call.path:
            linked.append(call)
        return len(linked) == number and (call.name, call.path) == ("fsync", f"{STORE}/log")

    return is_it


def _is_link_of_an_object(call: Call) -> bool:
    return call.name == "link_open_file" and any(
        f"/{folder}/" in call.path for folder in ("manifests", "packs", "anchors")
    )


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: the model stands for the disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: f"{need.site} of {need.kind}")
def test_without_this_fsync_a_power_cut_breaks_a_promise(need: Need, fast_path: Path) -> None:
    skipped: list[Synced] = []

    def skips(event: Synced) -> bool:
        if need.skips(event):
            skipped.append(event)
            return True
        return False

    mutant = recorded(need.trace, fast_path / "mutant", skips)
    assert skipped
    assert next((crash.wrong for crash in crashes(mutant, PLENTY) if crash.wrong), ())
    totals.add("mutations_caught", 1)


def test_with_all_of_them_none_is_broken_and_each_is_in_a_table(fast_path: Path) -> None:
    made: set[tuple[str, str]] = set()
    for index, name in enumerate((*STORIES, *RECORDERS)):
        trace = recorded(name, fast_path / str(index))
        assert not next((crash.wrong for crash in crashes(trace, PLENTY) if crash.wrong), ())
        made |= trace.sites()
    needed = {(need.site, need.kind) for need in NEEDS}
    assert made - set(HARMLESS) - {BEGUN} == needed
    assert not (needed | {BEGUN}) & set(HARMLESS)
    assert BEGUN in made


@pytest.mark.parametrize("name", [*STORIES, *RECORDERS])
def test_without_all_the_harmless_ones_together_none_is_broken(name: str, fast_path: Path) -> None:
    def skips(event: Synced) -> bool:
        return (event.site, kind_of(event.path, STORE)) in HARMLESS

    trace = recorded(name, fast_path / "without", skips)
    assert not next((crash.wrong for crash in crashes(trace, PLENTY) if crash.wrong), ())


def test_without_the_sync_of_its_head_a_begun_baseline_could_be_anything(fast_path: Path) -> None:
    """A file without the magic is a user's and is never replaced, so a trainer would be stuck."""

    def unknown(trace: Trace) -> bool:
        return any(
            not data.startswith(MAGIC)
            for crash in crashes(trace, SPREAD)
            for path, number in crash.state.items()
            if Path(path).name in {"baseline", "baseline.new"}
            and (data := trace.contents.bytes_of(number))
        )

    def skips(event: Synced) -> bool:
        return (event.site, kind_of(event.path, STORE)) == BEGUN

    assert not unknown(recorded(BASELINE_STORY, fast_path / "whole"))
    assert unknown(recorded(BASELINE_STORY, fast_path / "without", skips))
    totals.add("mutations_caught", 1)


def test_every_fsync_in_the_source_is_in_a_table() -> None:
    """A new call of an fsync, in whatever function, needs a story that misses it."""
    known = " ".join((BEGUN[0], *(need.site for need in NEEDS), *(site for site, _ in HARMLESS)))
    passed_through = {"Folders.sync", *ELSEWHERE}
    found = [
        f"{path.relative_to(PRODUCT)}: {function}"
        for path in sorted(PRODUCT.rglob("*.py"))
        if "testing" not in path.relative_to(PRODUCT).parts
        for function in _functions_that_sync(path)
        if function not in passed_through and function not in known
    ]
    assert not found


def _functions_that_sync(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = [(path.stem, tree.body)]
    scopes += [(node.name, node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
    for scope, body in scopes:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
                if any(_is_sync(call.func) for call in calls):
                    yield f"{scope}.{node.name}"


def _is_sync(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id == "sync_path"
    return isinstance(called, ast.Attribute) and called.attr in {"fsync", "fdatasync", "sync"}
