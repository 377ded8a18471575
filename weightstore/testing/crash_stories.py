"""What processes do to a store on a disk that is traced: one story for every durable operation.

Each story may be run again by another process, wherever the one before was cut, and ends
in the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from weightstore.codec.codec import PieceCodec
from weightstore.codec.kernels import numpy_kernels
from weightstore.errors import TagNotFoundError, WeightStoreError
from weightstore.format.records import Record
from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.checkout import checkout
from weightstore.history.export import export_checkpoint, write_safetensors_file
from weightstore.history.log import Log
from weightstore.history.store_format import create_store
from weightstore.ids import Slot, parse_run_id
from weightstore.settings import Limits
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.probe import probe_conditional_put
from weightstore.testing.crash_check import FilesMade, StoreMade
from weightstore.testing.history_check import Acknowledged, Read, bits_sha256_of
from weightstore.testing.store_lab import store_on
from weightstore.testing.trainer_lab import TrainerLab, Weights, bits_of, changed, lab_settings
from weightstore.trainer.importing import import_checkpoint
from weightstore.trainer.pending import PendingVersion

SETTINGS = lab_settings(thread_count=1, full_after_chain_ratio=1e6, anchor_file_size_bytes=100)
STORE = "outer/store"
RUN = "run"


def tiny_weights() -> Weights:
    """Three tensors, so that states stay small: wide, of two units, and without a dim."""
    rng = np.random.default_rng(7)
    return {
        "layer.weight": rng.integers(0, 1 << 16, (5, 12), dtype=np.uint16),
        "layer.norm": rng.standard_normal(2).astype(np.float32),
        "scale": np.array(1.5, np.float32),
    }


PutStep: TypeAlias = Callable[..., PendingVersion]

STATES = [tiny_weights()]
for _seed in range(1, 6):
    STATES.append(changed(STATES[-1], _seed, ratio=0.2))


class Stage:
    """Where a story takes place: one directory, and processes that come and go.

    Args:
        base: The directory; the store lies two folders below.
        tell: Told what somebody relies on from then on.
        name: Of the actors; another name makes other nonces.
    """

    def __init__(self, base: Path, tell: Callable[[object], None], name: str = "first") -> None:
        self.base = base
        self.place = STORE
        self.tell = tell
        self.name = name
        self._process_count = 0

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self.base / self.place

    def process(self, *, create: bool = False) -> TrainerLab:
        """A process of its own, which knows nothing yet."""
        self._process_count += 1
        blobs = LocalBlobStore(self.root, create=create)
        return TrainerLab(blobs, f"{self.name}/{self._process_count}", SETTINGS)

    def seed(self) -> str:
        """For the nonces of one more process."""
        self._process_count += 1
        return f"{self.name}/{self._process_count}"

    def tell_record(self, lab: TrainerLab, slot: int) -> Record:
        """The writer of the record at a slot is told that it is committed."""
        record = lab.log.stored_at(Slot(slot)).record
        self.tell(Acknowledged.of_record(record))
        return record


@dataclass(frozen=True, slots=True)
class Story:
    """One operation.

    Attributes:
        prepare: What was there, durably, long before.
        run: What is traced; run again it ends in the same place.
    """

    prepare: Callable[[Stage], None]
    run: Callable[[Stage], None]


def create(stage: Stage) -> None:
    """Make a store as `WeightStore.open(create=True)` does, the probe of the disk included."""
    lab = stage.process(create=True)
    probe_conditional_put(lab.blobs, lab.entropy)
    store_id = create_store(
        lab.blobs, lab.log, clock=lab.clock, entropy=lab.entropy, settings=SETTINGS
    )
    stage.tell(StoreMade(store_id))
    stage.tell_record(lab, 0)


def put(step: int, *, anchor: bool = False) -> Callable[[Stage], None]:
    """Claim the store, put a step, and close the claim."""

    def run(stage: Stage) -> None:
        lab = stage.process()
        with lab.trainer(RUN, take_over=True) as trainer:
            claim = lab.log.tail().now.claim
            assert claim is not None
            stage.tell_record(lab, claim.slot)
            put_one(stage, trainer.put_step, step, anchor=anchor)
        closed = lab.log.tail().now.last_slots["claim"]
        stage.tell_record(lab, closed)

    return run


def create_and_put(stage: Stage) -> None:
    """Make a store and put its first step."""
    create(stage)
    put(0)(stage)


def puts_of_one_session(stage: Stage) -> None:
    """Put four steps under one claim, the third with its full form."""
    lab = stage.process()
    with lab.trainer(RUN, take_over=True) as trainer:
        for step in (0, 1):
            put_one(stage, trainer.put_step, step, anchor=False)
        put_one(stage, trainer.put_step, 2, anchor=True)
        put_one(stage, trainer.put_step, 3, anchor=False)


def put_one(stage: Stage, put_step: PutStep, step: int, *, anchor: bool) -> None:
    """Put one step and rely on it."""
    version = put_step(step, STATES[step], anchor=anchor).result()
    bits = bits_sha256_of(bits_of(STATES[step]))
    stage.tell(Acknowledged(version=version, run=RUN, step=step, bits_sha256=bits))


def put_with_baseline_file(stage: Stage) -> None:
    """Put two steps with the baseline in a file, which a later process finds."""
    for step in (1, 2):
        lab = stage.process()
        path = stage.base / "baseline"
        with lab.trainer(RUN, take_over=True, baseline_path=path) as trainer:
            put_one(stage, trainer.put_step, step, anchor=False)


def import_copy(stage: Stage) -> None:
    """Import a checkpoint that lies beside the store."""
    lab = stage.process()
    record = import_checkpoint(
        lab.blobs,
        lab.log,
        path=stage.base / "source",
        run=parse_run_id(RUN),
        step=0,
        clock=lab.clock,
        entropy=lab.entropy,
        settings=SETTINGS,
        codec=PieceCodec(numpy_kernels(), limits=SETTINGS.limits),
        take_over=True,
    ).record
    bits = bits_sha256_of(bits_of(STATES[0]))
    stage.tell(Acknowledged.of_record(record, bits_sha256=bits))


def tag(stage: Stage) -> None:
    """Set a tag, move it, and remove another."""
    store = store_on(LocalBlobStore(stage.root), seed=stage.seed(), settings=SETTINGS)
    with store:
        store.tag("best", 1)
        _tell_newest(stage, "tag")
        store.tag("best", 2)
        with suppress(TagNotFoundError):
            store.untag("old")
        _tell_newest(stage, "tag")


def retire(stage: Stage) -> None:
    """Let everything but the newest version go, and sweep."""
    store = store_on(LocalBlobStore(stage.root), seed=stage.seed(), settings=SETTINGS)
    with store:
        store.retire(keep_newest=1)
    _tell_newest(stage, "retire")


def _tell_newest(stage: Stage, kind: str) -> None:
    """Tell the newest record of a kind; looked up past the traced disk's readers."""
    log = Log(LocalBlobStore(stage.root), Limits())
    records = [step.stored.record for step in log.steps(EMPTY_PREFIX)]
    stage.tell(Acknowledged.of_record([one for one in records if one.kind == kind][-1]))


def read(stage: Stage) -> None:
    """Check the newest version out, and rely on it; nothing if there is none."""
    try:
        lab = stage.process()
        prefix = lab.log.tail()
        newest = prefix.now.newest
        bits = None if newest is None else lab.bits(newest.version)
    except WeightStoreError:
        return
    if newest is not None and bits is not None:
        stage.tell(
            Read(
                reader=stage.seed(),
                order=0,
                version=newest.version,
                digest=newest.digest,
                bits_sha256=bits_sha256_of(bits),
                next_slot=prefix.next_slot,
            )
        )


def export(version: int) -> Callable[[Stage], None]:
    """Write a version as a directory, unless it is there."""

    def run(stage: Stage) -> None:
        lab = stage.process()
        target = stage.base / "export"
        if not (target.is_dir() and any(target.iterdir())):
            plan = lab.plan(version)
            export_checkpoint(lab.blobs, plan, target, entropy=lab.entropy, settings=SETTINGS)
        files = sorted(path for path in target.iterdir() if path.is_file())
        made = tuple((path.name, path.read_bytes()) for path in files)
        stage.tell(FilesMade("export", made))

    return run


def write_file(stage: Stage) -> None:
    """Write a version into one file, unless it is there."""
    lab = stage.process()
    target = stage.base / "weights.safetensors"
    if not target.exists():
        tensors = checkout(lab.blobs, lab.plan(2), settings=SETTINGS)
        write_safetensors_file(tensors, target, lab.entropy)
    stage.tell(FilesMade(target.name, (("", target.read_bytes()),)))


def nothing(_stage: Stage) -> None:
    """An empty directory."""


def made(stage: Stage) -> None:
    """An empty store."""
    create(stage)


def source(stage: Stage) -> None:
    """An empty store, and a checkpoint beside it."""
    create(stage)
    other = Stage(stage.base, lambda _: None, "source")
    other.place = "elsewhere"
    create(other)
    put(0, anchor=True)(other)
    lab = other.process()
    target = stage.base / "source"
    export_checkpoint(lab.blobs, lab.plan(1), target, entropy=lab.entropy, settings=SETTINGS)
    (target / "config.json").write_bytes(b"{}")


def versions(count: int, *, tags: tuple[str, ...] = ()) -> Callable[[Stage], None]:
    """A store with versions, the first with a full form, and these tags on version 1."""

    def prepare(stage: Stage) -> None:
        create(stage)
        for step in range(count):
            put(step)(stage)
        store = store_on(LocalBlobStore(stage.root), seed=stage.seed(), settings=SETTINGS)
        with store:
            for name in tags:
                store.tag(name, 1)

    return prepare


def full_later(stage: Stage) -> None:
    """Three versions, of which the last has a full form, so that the others can go."""
    create(stage)
    put(0)(stage)
    put(1)(stage)
    put(2, anchor=True)(stage)


STORIES: dict[str, Story] = {
    "create": Story(nothing, create),
    "first put": Story(made, put(0)),
    "put of a delta": Story(versions(1), put(1)),
    "put with an anchor": Story(versions(1), put(1, anchor=True)),
    "put with a baseline file": Story(versions(1), put_with_baseline_file),
    "puts of one session": Story(made, puts_of_one_session),
    "import by copy": Story(source, import_copy),
    "tag": Story(versions(2, tags=("old",)), tag),
    "retire and sweep": Story(full_later, retire),
    "export of a delta": Story(versions(2), export(2)),
    "export of a full form": Story(versions(1), export(1)),
    "checkout to a file": Story(versions(2), write_file),
    "create and put": Story(nothing, create_and_put),
}
