"""Real processes, killed by SIGKILL at every storage call of every operation.

What was acknowledged is there, bit for bit; nothing is there by halves; and a process that
does the same again ends where one that was never killed ends, also when it is killed itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import fields
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import NotAStoreError, VersionGoneError
from weightstore.storage.durable import Syscalls
from weightstore.storage.local import LocalBlobStore
from weightstore.store import WeightStore
from weightstore.testing import totals
from weightstore.testing.faults import When
from weightstore.testing.history_check import (
    Acknowledged,
    History,
    bits_sha256_of,
    check_history,
)
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened, weights_of
from weightstore.testing.kill_points import Kill
from weightstore.testing.kill_server import PREPARE, Ended, KillServer
from weightstore.testing.store_lab import tree
from weightstore.testing.trainer_lab import Bits, bits_of

pytestmark = pytest.mark.crash

NAMES = [name for name in OPERATIONS if name != "loop"]
READERS = {"checkout to file", "export of a full form", "export of a delta", "verify"}
WRITERS = [name for name in NAMES if name not in READERS]
BITS: dict[int, Bits] = {step: bits_of(weights_of(step)) for step in range(6)}
SEAM_CALLS = {field.name for field in fields(Syscalls)}
RETIRED_KEPT = {4, 5}
RECOVERY_STRIDE = 43
RANDOM_KILLS_PER_STORE = 8


@pytest.fixture(scope="module")
def server() -> Iterator[KillServer]:
    with KillServer() as running:
        yield running


class Scene:
    """One operation: what it starts from, its copies, and what must be true of them.

    Attributes:
        kill_count: How many processes have died in it.
    """

    def __init__(self, server: KillServer, folder: Path, name: str) -> None:
        self.operation = OPERATIONS[name]
        self.kill_count = 0
        self._name = name
        self._server = server
        self._start = folder / "start"
        self._numbers = count()
        prepared = server.run(PREPARE + name, self._start)
        assert prepared.exit_code == 0, prepared
        self._store_before = _stored(self._start) if name in READERS else None

    def copy(self, of: Path | None = None) -> Path:
        place = self._start.with_name(f"copy-{next(self._numbers)}")
        shutil.copytree(of or self._start, place)
        return place

    def calls(self, when: When) -> tuple[str, ...]:
        """The names of the storage calls on one side of which the operation can be killed."""
        ended = self.finish(self.copy())
        (names,) = ended.all_of("done")
        is_after = when is When.AFTER
        return tuple(str(name) for name in names if not is_after or name in SEAM_CALLS)

    def kill(self, place: Path, kill: Kill) -> Ended:
        """Let a child begin the operation; it dies, or comes to its end."""
        ended = self._server.run(self._name, place, kill)
        if not ended.was_killed:
            assert ended.exit_code == 0, ended
            return ended
        self.kill_count += 1
        assert ended.died_at
        assert not ended.all_of("error")
        acknowledged = self.operation.acknowledged
        assert (
            self._name == "create" or ended.acknowledged == acknowledged[: len(ended.acknowledged)]
        )
        self.check(place, ended)
        return ended

    def finish(self, place: Path, *before: Ended) -> Ended:
        """Let a child do the whole operation, and check where it ends."""
        ended = self._server.run(self._name, place)
        assert ended.exit_code == 0, ended
        if self._name == "create":
            assert len({one for each in (*before, ended) for one in each.acknowledged}) == 1
        else:
            assert ended.acknowledged == self.operation.acknowledged
        self.check(place, *before, ended)
        return ended

    def check(self, place: Path, *runs: Ended) -> None:
        """What has been acknowledged is there, and what is there is whole."""
        said = {one for each in runs for one in each.acknowledged}
        is_done = any(each.exit_code == 0 for each in runs)
        self._check_outside(place, {str(one[0]) for one in said})
        if self._store_before is not None:
            assert _stored(place) == self._store_before
            return
        try:
            found = WeightStore.open(place / "store", settings=SETTINGS)
        except NotAStoreError:
            assert self._name == "create"
            assert not said
            return
        puts = {one for one in said if isinstance(one[0], int)}
        self._check_log(place, puts)
        with found as store:
            seen = self._check_versions(store)
            assert {(step, version) for version, step in seen.items()} >= puts
            assert not is_done or tuple(seen[one] for one in sorted(seen)) == self.operation.steps
            if self._name == "tag":
                _check_tag(store, {one[1] for one in said})
            if self._name == "retire":
                kept = {info.version for info in store.versions() if info.kept}
                assert kept == RETIRED_KEPT or not said
                assert not is_done or store.retire(dry_run=True).deleted_count == 0

    def _check_log(self, place: Path, puts: set[tuple[int, int]]) -> None:
        acknowledged = tuple(
            Acknowledged(
                version=version, run=RUN, step=step, bits_sha256=bits_sha256_of(BITS[step])
            )
            for step, version in puts
        )
        blobs = LocalBlobStore(place / "store")
        check_history(blobs, History(acknowledged=acknowledged), limits=SETTINGS.limits)

    def _check_versions(self, store: WeightStore) -> dict[int, int]:
        """Read everything that may be read; version to step."""
        seen = {}
        for info in store.versions():
            seen[int(info.version)] = int(info.step)
            if not info.kept:
                with pytest.raises(VersionGoneError):
                    store.checkout(info.version)
                continue
            assert bits_in(store, info.version) == BITS[info.step]
        assert sorted(seen) == list(range(1, len(seen) + 1))
        assert tuple(seen[one] for one in sorted(seen)) == self.operation.steps[: len(seen)]
        return seen

    def _check_outside(self, place: Path, said: set[str]) -> None:
        """A file or directory is there whole or not at all, under its own name."""
        given, out = place / "given", place / "out"
        finished = {path.name for path in out.iterdir() if not path.name.endswith(".partial")}
        for name in finished & {"5.safetensors", "4", "5"}:
            assert _contents(out / name) == _contents(given / name)
        assert finished >= said & {"5.safetensors", "4", "5"}


def bits_in(store: WeightStore, version: int) -> Bits:
    host = store.checkout(version).host
    return {name: tensor.units.tobytes() for name, tensor in host.items()}


def _check_tag(store: WeightStore, said: set[object]) -> None:
    tags = {tag.name: int(tag.version) for tag in store.tags()}
    allowed = [{"best": 3}] if 3 in said else [{"best": 2}, {"best": 3}]
    assert tags in (allowed if said else [{}, *allowed])


def _stored(place: Path) -> dict[str, bytes]:
    """The store but for its index, which readers build too."""
    files = tree(place / "store")
    return {path: data for path, data in files.items() if not path.startswith("index/")}


def _contents(path: Path) -> dict[str, bytes]:
    return tree(path) if path.is_dir() else {"": path.read_bytes()}


def of_each_kind(names: tuple[str, ...]) -> list[int]:
    """Where the first, the second and the last call of each kind is."""
    chosen: set[int] = set()
    for name in set(names):
        places = _places(names, name)
        chosen |= {*places[:2], places[-1]}
    return sorted(chosen)


def one_of_each_kind(names: tuple[str, ...]) -> list[int]:
    """In turn the first, the last and the second call of a kind."""
    chosen = []
    for turn, name in enumerate(sorted(set(names))):
        places = _places(names, name)
        chosen.append([places[0], places[-1], places[:2][-1]][turn % 3])
    return chosen


def _places(names: tuple[str, ...], name: str) -> list[int]:
    return [index for index, one in enumerate(names) if one == name]


def kill_and_finish(scene: Scene, kill: Kill) -> Ended:
    """One kill, and the process after it."""
    place = scene.copy()
    killed = scene.kill(place, kill)
    if killed.was_killed:
        scene.finish(place, killed)
    if kill.at % 8 == 0:
        scene.finish(place, killed)  # once more: nothing new
    shutil.rmtree(place)
    return killed


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_some_storage_calls_is_healed_by_repeating(
    server: KillServer, folder: Path, name: str
) -> None:
    scene = Scene(server, folder, name)
    for when in When:
        for at in one_of_each_kind(scene.calls(when))[when is When.AFTER :: 2]:
            kill_and_finish(scene, Kill(at, when))
    assert scene.kill_count > 0
    totals.add("sigkills", scene.kill_count)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_before_any_storage_call_is_healed_by_repeating(
    server: KillServer, folder: Path, name: str
) -> None:
    scene = Scene(server, folder, name)
    died_at = set()
    for at in count():
        killed = kill_and_finish(scene, Kill(at))
        if not killed.was_killed:
            break
        died_at.add(killed.died_at)
    assert scene.kill_count == at > 0
    assert name in READERS or died_at >= {"open", "write", "fsync", "link_open_file", "unlink"}
    totals.add("sigkills", scene.kill_count)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_after_each_kind_of_storage_call_is_healed_by_repeating(
    server: KillServer, folder: Path, name: str
) -> None:
    """The first, the second and the last of each kind, right after its effect."""
    scene = Scene(server, folder, name)
    for at in of_each_kind(scene.calls(When.AFTER)):
        kill_and_finish(scene, Kill(at, When.AFTER))
    assert scene.kill_count > 0
    totals.add("sigkills", scene.kill_count)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_a_kill_in_the_recovery_is_healed_by_repeating_once_more(
    server: KillServer, folder: Path, name: str
) -> None:
    """After kills at each kind of call; each recovery dies at other calls than the one before."""
    scene = Scene(server, folder, name)
    for turn, at in enumerate(of_each_kind(scene.calls(When.AFTER))):
        left = scene.copy()
        first = scene.kill(left, Kill(at, When.AFTER))
        for again in count(turn % RECOVERY_STRIDE, RECOVERY_STRIDE):
            place = scene.copy(left)
            second = scene.kill(place, Kill(again, When.BEFORE if again % 2 else When.AFTER))
            if second.was_killed:
                scene.finish(place, first, second)
            shutil.rmtree(place)
            if not second.was_killed:
                break
        shutil.rmtree(left)
    assert scene.kill_count > 10
    totals.add("sigkills", scene.kill_count)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_a_put_loop_killed_at_random_moments_loses_nothing(
    server: KillServer, folder: Path, seed: int
) -> None:
    """Killed from outside, somewhere after a random storage call; the next process goes on."""
    rng = np.random.default_rng(seed)
    place = folder / "place"
    assert server.run(PREPARE + "loop", place).exit_code == 0
    acknowledged: set[tuple[int, int]] = set()
    for _ in range(RANDOM_KILLS_PER_STORE):
        kill = Kill(int(rng.integers(0, 600)), delay_us=int(rng.integers(0, 5_000)))
        ended = server.run("loop", place, kill)
        assert ended.was_killed, (seed, kill, ended)
        acknowledged |= {(int(step), int(version)) for step, version in ended.acknowledged}
        _check_loop(place, acknowledged, what=f"seed {seed}, {kill}")
    totals.add("sigkills", RANDOM_KILLS_PER_STORE)


def _check_loop(place: Path, acknowledged: set[tuple[int, int]], *, what: str) -> None:
    with opened(place) as store:
        steps = {int(info.version): int(info.step) for info in store.versions()}
        assert steps == {version: version for version in range(1, len(steps) + 1)}, what
        assert {(step, version) for version, step in steps.items()} >= acknowledged, what
        for version in {1, len(steps), (len(steps) + 1) // 2}:
            assert bits_in(store, version) == bits_of(weights_of(version)), what
    history = History(
        acknowledged=tuple(
            Acknowledged(version=version, run=RUN, step=step) for step, version in acknowledged
        )
    )
    check_history(LocalBlobStore(place / "store"), history, limits=SETTINGS.limits)
