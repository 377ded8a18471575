"""An engine of real processes: ranks are killed and stopped, and no mixture is ever served."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from weightstore import WeightStore
from weightstore.layout.schema import Schema
from weightstore.testing import totals
from weightstore.testing.rank_lab import split
from weightstore.testing.rank_process import RankOptions, share_sha256

TIMEOUT_S = 90
TRY_COUNT = 20
VERSION_COUNT = 16
PARTS = ["stage", "close", "apply", "open"]


@dataclass
class Engine:
    """The processes of an engine, what each served, and what it should have.

    Attributes:
        options: Of a rank that does not die.
        expected: By rank, hash by version.
        processes: That are alive.
    """

    options: RankOptions
    expected: list[dict[int, str]]
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, rank: int) -> None:
        log = f"{self.options.log}-{rank}"
        Path(f"{log}-die").unlink(missing_ok=True)
        options = replace(self.options, rank=rank, log=log, die_file=f"{log}-die")
        self.processes[rank] = subprocess.Popen(
            [sys.executable, "-m", "weightstore.testing.rank_process", options.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def doom(self, rank: int, part: str, when: str) -> None:
        """Let a rank kill itself when it comes to a part."""
        Path(f"{self.options.log}-{rank}-die").write_text(f"{part} {when}", encoding="utf-8")

    def ask(self, version: int) -> None:
        stream = self.processes[0].stdin
        assert stream is not None
        stream.write(f"{version}\n")
        stream.flush()

    def answer(self) -> dict[str, object] | None:
        """What rank 0 answers; None if it has died."""
        stream = self.processes[0].stdout
        assert stream is not None
        assert select.select([stream], [], [], TIMEOUT_S)[0], "rank 0 does not answer"
        line = stream.readline()
        found: dict[str, object] | None = json.loads(line) if line else None
        return found

    def wait_dead(self, rank: int) -> None:
        process = self.processes.pop(rank)
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
        self._close(process)

    def refit(self, version: int) -> dict[str, object]:
        """Refit until it succeeds: an error says that a rank was lost."""
        for _ in range(TRY_COUNT):
            self.ask(version)
            found = self.answer()
            assert found is not None
            if "target" in found:
                assert found["target"] == version
                return found
            assert found["error"] == "WS-6007", found
        raise AssertionError("no refit succeeds")

    def served(self, rank: int) -> list[tuple[int, str, float, float]]:
        path = Path(f"{self.options.log}-{rank}")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found = []
        for line in lines:
            try:
                version, sha, start, end = json.loads(line)
            except ValueError:  # a kill cut the line, or the next one was put behind it
                continue
            found.append((version, sha, start, end))
        return found

    def wait_served(self, version: int) -> None:
        """Until every rank has served a version."""
        deadline = time.monotonic() + TIMEOUT_S
        for rank in range(self.options.rank_count):
            while all(each[0] != version for each in self.served(rank)[-5:]):
                assert time.monotonic() < deadline, f"rank {rank} does not serve {version}"
                with pytest.raises(subprocess.TimeoutExpired):
                    self.processes[rank].wait(0.02)

    def check(self) -> int:
        """Every block saw its version's bytes, and no two ranks served two versions at once."""
        blocks = []
        for rank in range(self.options.rank_count):
            for version, sha, start, end in self.served(rank):
                assert sha == self.expected[rank][version], (rank, version)
                blocks.append((start, end, version, rank))
        blocks.sort()
        until: dict[int, float] = {}
        for start, end, version, rank in blocks:
            late = [other for other, upto in until.items() if other != version and upto > start]
            assert not late, f"rank {rank} served {version} while {late} was served"
            until[version] = max(end, until.get(version, end))
        return len(blocks)

    def end(self) -> None:
        """Let every rank end by itself, and look at how each did once all have."""
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.close()
        codes: dict[int, int] = {}
        while self.processes:
            rank, process = self.processes.popitem()
            try:
                codes[rank] = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[rank] = process.wait(TIMEOUT_S)
            self._close(process)
        assert codes == dict.fromkeys(range(self.options.rank_count), 0)

    @staticmethod
    def _close(process: subprocess.Popen[str]) -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def weights_of(version: int) -> dict[str, np.ndarray]:
    """Float32, with a tied name, a vector and a scalar; every version moves a few."""
    generator = np.random.default_rng(0)
    weights = {
        "embed": generator.standard_normal((64, 96)).astype(np.float32),
        "norm": generator.standard_normal(96).astype(np.float32),
        "scale": np.array(0.5, np.float32),
    }
    for number in range(2, version + 1):
        moving = np.random.default_rng(number)
        for each in weights.values():
            flat = each.reshape(-1)
            flat[moving.integers(0, flat.size, max(1, flat.size // 20))] += np.float32(number)
    weights["head"] = weights["embed"]
    return weights


def expected_shares(schema: Schema, options: RankOptions) -> list[dict[int, str]]:
    shares = split(schema, options.rank_count, options.how)
    found: list[dict[int, str]] = [{} for _ in shares]
    for version in range(1, VERSION_COUNT + 1):
        weights = weights_of(version)
        for rank, share in enumerate(shares):
            arrays = {}
            for name, box in share.items():
                part = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
                if box.unit_count:
                    arrays[name] = np.ascontiguousarray(weights[name][part]).view(np.uint32)
            found[rank][version] = share_sha256(arrays)
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Schema]:
    place = tmp_path_factory.mktemp("engine") / "store"
    with WeightStore.open(place, create=True) as opened:
        for version in range(1, VERSION_COUNT + 1):
            assert opened.put_step(version, weights_of(version), anchor=version == 1) == version
        receiver = opened.receiver(
            {
                "embed": np.zeros(64 * 96, np.uint32),
                "norm": np.zeros(96, np.uint32),
                "scale": np.zeros(1, np.uint32),
            }
        )
        return place, receiver.placement.schema


@pytest.fixture
def engine(
    store: tuple[Path, Schema], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    rank_count, how = request.param
    options = RankOptions(
        store=str(store[0]),
        channel=str(tmp_path / "channel"),
        log=str(tmp_path / "served"),
        rank=0,
        rank_count=rank_count,
        how=how,
        die_file="",
    )
    found = Engine(options, expected_shares(store[1], options))
    try:
        for rank in range(rank_count):
            found.start(rank)
        yield found
    finally:
        found.end()


def deaths(victims: list[int]) -> Iterator[tuple[int, str, str]]:
    """Who dies, at which part, and when."""
    for number, part in enumerate(PARTS):
        whens = ["before", "inside", "after"] if part == "apply" else ["before", "after"]
        for when in whens:
            yield victims[number % len(victims)], part, when


def play_deaths(engine: Engine, victims: list[int]) -> int:
    engine.refit(1)
    version = 1
    for victim, part, when in deaths(victims):
        version += 1
        engine.doom(victim, part, when)
        engine.ask(version)
        engine.wait_dead(victim)
        engine.start(victim)
        if victim != 0:
            found = engine.answer()
            assert found is not None
            # After the last part the leader may still hear of the death before it has all answers.
            if (part, when) != ("open", "after"):
                assert found.get("error") == "WS-6007", found
        engine.refit(version)
        engine.wait_served(version)
        totals.add("sigkills", 1)
    return engine.check()


@pytest.mark.crash
@pytest.mark.parametrize("engine", [(2, "rows")], indirect=True, ids=["2-rows"])
def test_a_rank_is_killed_at_each_part_and_no_mixture_is_served(engine: Engine) -> None:
    assert play_deaths(engine, [1]) > 20


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize(
    "engine", [(2, "columns"), (4, "rows")], indirect=True, ids=["2-columns", "4-rows"]
)
def test_leaders_and_ranks_are_killed_at_each_part(engine: Engine) -> None:
    assert play_deaths(engine, [0, engine.options.rank_count - 1]) > 20


@pytest.mark.crash
@pytest.mark.parametrize("engine", [(2, "copies")], indirect=True, ids=["2-copies"])
def test_a_rank_that_is_stopped_is_gone_and_comes_back(engine: Engine) -> None:
    engine.refit(1)
    engine.processes[1].send_signal(signal.SIGSTOP)
    engine.ask(2)
    found = engine.answer()
    assert found is not None
    assert found["error"] == "WS-6007"
    engine.processes[1].send_signal(signal.SIGCONT)
    engine.refit(2)
    engine.wait_served(2)
    engine.refit(3)
    engine.wait_served(3)
    assert engine.check() > 4
