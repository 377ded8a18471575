"""Many processes at one local store: one linear history, each acknowledged record once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.format.records import TagRecord, VersionRecord
from weightstore.format.rules import EMPTY_PREFIX, Valid
from weightstore.history.claim import open_claim
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log
from weightstore.history.tags import list_tags
from weightstore.history.versions import find_version
from weightstore.ids import RunId, SessionId
from weightstore.settings import Limits, Settings
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.toy_store import OWNER, ToyStore, ToyTrainer

ROOT = Path(__file__).parents[2]
PROCESS_COUNT = 8
TAG_COUNT = 200 // PROCESS_COUNT

# Tells each record that was acknowledged, one commit id a line.
TAGGER = """
import sys
from pathlib import Path
from weightstore.clock import SystemClock, SystemEntropy
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log
from weightstore.history.tags import put_tag
from weightstore.ids import SessionId, TagName
from weightstore.settings import Limits, Settings
from weightstore.storage.local import LocalBlobStore

root, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
blobs, clock, entropy = LocalBlobStore(root), SystemClock(), SystemEntropy()
writer = LogWriter(
    blobs,
    Log(blobs, Limits()),
    clock=clock,
    entropy=entropy,
    settings=Settings(),
    session=SessionId(entropy.hex128()),
)
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    record = put_tag(writer, TagName(f"{name}.{number % 3}"), 1, owner=name)
    print(record.commit_id, flush=True)
"""


@contextmanager
def tagger(root: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that tags once it is told to."""
    with subprocess.Popen(
        [sys.executable, "-c", TAGGER, str(root), name, str(TAG_COUNT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def local_trainer(root: Path) -> ToyTrainer:
    """A trainer with the machine's own clock, beside real processes."""
    blobs = LocalBlobStore(root)
    store = ToyStore(blobs, "trainer")
    store.create()
    entropy = SystemEntropy()
    writer = LogWriter(
        blobs,
        store.log,
        clock=SystemClock(),
        entropy=entropy,
        settings=Settings(),
        session=SessionId(entropy.hex128()),
    )
    return ToyTrainer(store, writer, open_claim(writer, run=RunId("grpo"), owner=OWNER))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_eight_processes_put_two_hundred_tags_beside_a_trainer(tmp_path: Path) -> None:
    trainer = local_trainer(tmp_path)
    trainer.put(1, b"first", full=True)
    with ExitStack() as stack:
        taggers = [
            stack.enter_context(tagger(tmp_path, f"p{number}")) for number in range(PROCESS_COUNT)
        ]
        for process in taggers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in taggers:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for step in range(2, 22):
            trainer.put(step, str(step).encode())
        told = [process.communicate()[0].split() for process in taggers]
        assert [process.returncode for process in taggers] == [0] * PROCESS_COUNT
    log = Log(LocalBlobStore(tmp_path), Limits())
    steps = list(log.steps(EMPTY_PREFIX))
    assert all(isinstance(step.verdict, Valid) for step in steps)
    found = [step.stored.record for step in steps]
    tags = [record for record in found if isinstance(record, TagRecord)]
    acknowledged = [commit_id for each in told for commit_id in each]
    assert len(acknowledged) == PROCESS_COUNT * TAG_COUNT
    assert sorted(record.commit_id for record in tags) == sorted(acknowledged)
    for number, each in enumerate(told):
        own = [record.commit_id for record in tags if record.owner == f"p{number}"]
        assert own == each, "each process's records stand in the order in which it put them"
    made = [record for record in found if isinstance(record, VersionRecord)]
    assert [(record.version, record.step) for record in made] == [(n, n) for n in range(1, 22)]
    prefix = log.tail()
    assert prefix == Log(LocalBlobStore(tmp_path), Limits()).tail()
    assert len(list_tags(log, prefix)) == 3 * PROCESS_COUNT
    assert find_version(log, prefix, "latest").step == 21
