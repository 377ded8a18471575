"""Processes that claim, put, tag, retire and sweep in any order, against a dictionary.

The same machine runs on memory, on a local disk, and on a store that loses requests and
answers: what is told must be the same on all three.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from weightstore.errors import (
    FencedError,
    StepConflictError,
    StepOrderError,
    StoreOwnedError,
    TagNotFoundError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.format.kept import iterate, of_versions
from weightstore.format.rules import EMPTY_PREFIX, Valid
from weightstore.history.log import Log
from weightstore.history.retire import Keep, retire
from weightstore.history.sweep import sweep
from weightstore.history.tags import list_tags, put_tag, remove_tag
from weightstore.history.versions import find_version, list_versions
from weightstore.ids import TagName
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Fault, LossyBlobs, writes_in_turn
from weightstore.testing.toy_store import ToyStore, ToyTrainer

RUNS = ("base", "grpo")
TAGS = ("best", "last")
TEXTS = (b"one", b"two")
# The newest claim first, and most often.
OWNER_INDICES = st.sampled_from([0, 0, 0, 1, 2])
FAULTS = (None, Fault.LOST_ANSWER, Fault.REPEATED, None, Fault.LOST_REQUEST, Fault.DELAYED)


@dataclass
class Owner:
    """What the model knows of one claim."""

    trainer: ToyTrainer
    run: str
    last_step: int | None


@dataclass
class Version:
    """What the model knows of one version."""

    run: str
    step: int
    text: bytes
    is_full: bool


@dataclass
class Model:
    """The store as a dictionary."""

    versions: dict[int, Version] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    tags: dict[str, int] = field(default_factory=dict)
    owner: Owner | None = None

    def newest_of(self, run: str, step: int | None = None) -> int | None:
        """The newest version of a run, or of one step of it."""
        found = [
            number
            for number, version in self.versions.items()
            if version.run == run and step in {None, version.step}
        ]
        return max(found, default=None)

    def with_chains(self, numbers: set[int]) -> set[int]:
        found = set()
        for number in numbers:
            below = number
            while below not in found:
                found.add(below)
                if self.versions[below].is_full:
                    break
                below -= 1
        return found


class LogMachine(RuleBasedStateMachine):
    """Up to a handful of processes on one store."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.process_count = 0
        self.processes: list[ToyStore] = []
        self.owners: list[Owner] = []

    def open_blobs(self) -> BlobStore:
        """The store as a new process sees it."""
        raise NotImplementedError

    @initialize(full=st.lists(st.booleans(), min_size=5, max_size=5))
    def create(self, full: list[bool]) -> None:
        """The store is made by three processes, and one of them puts versions 1 to 5."""
        for _ in range(3):
            self.start_process()
        ids = {process.create() for process in self.processes}
        assert len(ids) == 1
        self.claim(0, "base", None, take_over=False)
        for is_full in full:
            self.put(0, 1, b"one", full=is_full)

    @rule()
    def start_process(self) -> None:
        """A process is started, in place of the oldest."""
        self.process_count += 1
        self.processes = [
            *self.processes[-2:],
            ToyStore(self.open_blobs(), f"process {self.process_count}"),
        ]

    @rule(
        index=st.integers(0, 2),
        run=st.sampled_from(RUNS),
        take_over=st.booleans(),
        rewind_to=st.none() | st.integers(0, 6),
    )
    def claim(self, index: int, run: str, rewind_to: int | None, *, take_over: bool) -> None:
        process = self.processes[index]
        if self.model.owner is not None and not take_over:
            with pytest.raises(StoreOwnedError) as caught:
                process.trainer(run, rewind_to=rewind_to)
            assert caught.value.facts["run"] == self.model.owner.run
            return
        trainer = process.trainer(run, take_over=take_over, rewind_to=rewind_to)
        newest = self.model.newest_of(run)
        last_step = self.model.versions[newest].step if newest else None
        if rewind_to is not None and last_step is not None:
            last_step = min(last_step, rewind_to)
        assert trainer.claim.last_step == last_step
        self.model.owner = Owner(trainer, run, last_step)
        self.owners = [self.model.owner, *self.owners[:2]]

    @rule(
        index=OWNER_INDICES,
        ahead=st.sampled_from([1, 1, 2, 0, -1, -2]),
        text=st.sampled_from(TEXTS),
        full=st.booleans(),
    )
    def put(self, index: int, ahead: int, text: bytes, *, full: bool) -> None:
        model, owner = self.model, self.owners[index % len(self.owners)]
        step = max(0, (owner.last_step or 0) + ahead)
        if owner is not model.owner:
            with pytest.raises(FencedError):
                owner.trainer.put(step, text, full=full)
            return
        if owner.last_step is None or step > owner.last_step:
            number = len(model.versions) + 1
            assert owner.trainer.put(step, text, full=full).version == number
            model.versions[number] = Version(owner.run, step, text, full or number == 1)
            model.kept.add(number)
            owner.last_step = step
            return
        known = model.newest_of(owner.run, step)
        if known is None:
            with pytest.raises(StepOrderError):
                owner.trainer.put(step, text, full=full)
        elif model.versions[known].text == text:
            assert owner.trainer.put(step, text, full=full).version == known
        else:
            with pytest.raises(StepConflictError):
                owner.trainer.put(step, text, full=full)

    @rule(index=OWNER_INDICES)
    def close(self, index: int) -> None:
        owner = self.owners[index % len(self.owners)]
        owner.trainer.close()
        if owner is self.model.owner:
            self.model.owner = None

    @rule(index=OWNER_INDICES)
    def leave_an_attempt_behind(self, index: int) -> None:
        owner = self.owners[index % len(self.owners)]
        owner.trainer.draft(owner.trainer.store.log.tail(), 99, b"left behind", full=True)

    @rule(index=st.integers(0, 2), name=st.sampled_from(TAGS), version=st.integers(1, 8))
    def tag(self, index: int, name: str, version: int) -> None:
        writer = self.processes[index].writer()
        if version in self.model.kept:
            put_tag(writer, TagName(name), version, owner="machine")
            self.model.tags[name] = version
            return
        kind = VersionGoneError if version in self.model.versions else VersionNotFoundError
        with pytest.raises(kind):
            put_tag(writer, TagName(name), version, owner="machine")

    @rule(index=st.integers(0, 2), name=st.sampled_from(TAGS))
    def untag(self, index: int, name: str) -> None:
        writer = self.processes[index].writer()
        if self.model.tags.pop(name, None) is None:
            with pytest.raises(TagNotFoundError):
                remove_tag(writer, TagName(name), owner="machine")
        else:
            remove_tag(writer, TagName(name), owner="machine")

    @precondition(lambda self: self.model.versions)
    @rule(
        index=st.integers(0, 2),
        newest_count=st.integers(0, 3),
        version=st.none() | st.integers(1, 8),
    )
    def retire(self, index: int, newest_count: int, version: int | None) -> None:
        model, process = self.model, self.processes[index]
        named = {version} & model.kept if version else set()
        keep = Keep(newest_count=newest_count, versions=of_versions(named))
        retire(
            process.writer(),
            process.blobs,
            keep,
            chain_of=process.chain_of,
            objects_of=process.objects_of,
        )
        newest = sorted(model.kept)[-newest_count:] if newest_count else []
        musts = {max(model.versions), *model.tags.values()}
        model.kept = model.with_chains({*newest, *named, *musts})

    @rule(index=st.integers(0, 2))
    def sweep(self, index: int) -> None:
        process = self.processes[index]
        sweep(process.blobs, process.log, objects_of=process.objects_of)

    @invariant()
    def every_reader_sees_the_model(self) -> None:
        if not self.processes:
            return
        fresh = ToyStore(self.open_blobs(), "reader")
        log, prefix = fresh.log, fresh.log.tail()
        assert prefix == Log(fresh.blobs, Limits()).follow(EMPTY_PREFIX)
        assert all(process.log.tail() == prefix for process in self.processes)
        model = self.model
        assert set(iterate(prefix.now.kept)) == model.kept
        assert {tag.name: tag.version for tag in list_tags(log, prefix)} == model.tags
        assert (prefix.now.claim is None) == (model.owner is None)
        listed = {int(each.record.version): each.record for each in list_versions(log, prefix)}
        assert list(listed) == sorted(model.versions, reverse=True)
        for number, version in model.versions.items():
            record = listed[number]
            assert (record.run, record.step) == (version.run, version.step)
            if number in model.kept:
                assert find_version(log, prefix, number) == record
                assert fresh.read(record) == version.text
            else:
                with pytest.raises(VersionGoneError):
                    find_version(log, prefix, number)

    def teardown(self) -> None:
        """A last look: nothing invalid was ever put, and steps name their newest version."""
        if not self.processes:
            return
        fresh = ToyStore(self.open_blobs(), "last")
        steps = list(fresh.log.steps(EMPTY_PREFIX))
        assert all(isinstance(step.verdict, Valid) for step in steps)
        prefix = fresh.log.tail()
        for version in self.model.versions.values():
            newest = self.model.newest_of(version.run, version.step)
            if newest in self.model.kept:
                selector = f"{version.run}@{version.step}"
                assert find_version(fresh.log, prefix, selector).version == newest


class MemoryMachine(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.blobs = MemoryBlobStore()

    def open_blobs(self) -> BlobStore:
        return self.blobs


class LossyMachine(MemoryMachine):
    def open_blobs(self) -> BlobStore:
        return LossyBlobs(self.blobs, writes_in_turn(*FAULTS))


class LocalMachine(LogMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def open_blobs(self) -> BlobStore:
        return LocalBlobStore(Path(self.folder.name))

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


@pytest.mark.parametrize(
    ("machine", "example_count"), [(MemoryMachine, 25), (LossyMachine, 25), (LocalMachine, 3)]
)
def test_any_order_of_operations_leaves_what_the_model_says(
    machine: type[LogMachine], example_count: int
) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=example_count, stateful_step_count=30),
    )


def step_at_random(machine: LogMachine, rng: random.Random) -> None:
    """One operation; puts are as frequent as all others together."""
    index = rng.randrange(3)
    match rng.choice(["put"] * 7 + list("ctturslo")):
        case "put":
            ahead = rng.choice([1, 1, 1, 2, 0, -1])
            machine.put(
                rng.choice([0, 0, 0, 1, 2]), ahead, rng.choice(TEXTS), full=rng.random() < 0.2
            )
        case "c":
            rewind_to = rng.choice([None, None, rng.randrange(12)])
            machine.claim(index, rng.choice(RUNS), rewind_to, take_over=rng.random() < 0.7)
        case "t":
            machine.tag(index, rng.choice(TAGS), rng.randrange(1, len(machine.model.versions) + 2))
        case "u":
            machine.untag(index, rng.choice(TAGS))
        case "r":
            version = rng.randrange(1, len(machine.model.versions) + 1)
            machine.retire(index, rng.randrange(8), rng.choice([None, version]))
        case "s":
            machine.sweep(index)
        case "l":
            machine.leave_an_attempt_behind(0)
        case _:
            machine.close(0) if rng.random() < 0.5 else machine.start_process()


@pytest.mark.parametrize(
    ("machine", "seed_count"), [(MemoryMachine, 12), (LossyMachine, 12), (LocalMachine, 1)]
)
def test_long_walks_leave_what_the_model_says(machine: type[LogMachine], seed_count: int) -> None:
    rewound = 0
    for seed in range(seed_count):
        rng = random.Random(seed)
        walked = machine()
        walked.create([rng.random() < 0.5 for _ in range(5)])
        for number in range(120):
            step_at_random(walked, rng)
            if number % 8 == 0:
                walked.every_reader_sees_the_model()
        walked.every_reader_sees_the_model()
        walked.teardown()
        versions = walked.model.versions.values()
        rewound += len(versions) - len({(each.run, each.step) for each in versions})
    assert rewound > seed_count, "the walks must meet steps that were put anew"
