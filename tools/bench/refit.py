"""Refits of live weights: pause and total beside a full load and a peer, memory, many pieces.

python tools/bench/refit.py --json FILE
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

import safetensors.torch
import torch

from tools.bench import modelexpress_peer
from tools.bench.bandwidth import memory_folder
from tools.bench.bench import Bench, Findings, Options, Task, run
from tools.bench.live_model import Live, tensors_of
from tools.bench.modelexpress_peer import PeerReader
from tools.bench.put_checkout import decoder_shapes
from tools.bench.refit_cases import (
    FEW_PIECES,
    MANY_PIECES,
    Moved,
    compare_pieces,
    compare_ranks,
    moved_in_pause,
    put_versions,
    watch_memory,
)
from tools.bench.report import Row, Side, against, alone, at_least, at_most
from tools.bench.turns import Timed, in_turns, rates, seconds
from tools.bench.weights import Weights, normal_weights, size_bytes_of
from weightstore import Settings, WeightStore
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.reports import Phase, RefitReport

TURN_COUNT = 9
LAYER_COUNT = 12
STEPS = {"1 %": 0.01, "3 %": 0.03}
"""The first is the one that targets speak of."""
TARGET_STEP = "1 %"
PEER_FACTOR = 6
STAGE_GB_S = 8
BYTES_PER_CHANGE = 6
PIECE_RATIO = 1.25
"""So much longer the pause may take with 200,000 pieces than with a few: chance, no growth."""
EMPTY_MIB = 1
"""A delta without a change reads its manifest and digest table, and nothing of the model."""
STAGED_FACTOR = 4
MS = 1000
MIB = 1024 * 1024

FULL_LOAD = "full load_state_dict"
REFIT, FULL, PEER = "refit", "full", "peer"
MEMORY_KINDS = {
    "empty delta": 0.0,
    "one changed element": -1.0,
    "1 % changed": 0.01,
    "3 % changed": 0.03,
}


def shapes_of(*, is_small: bool) -> dict[str, tuple[int, ...]]:
    """A model of 1 GiB of bf16, or a tiny one."""
    if is_small:
        return {"layers.0.weight": (256, 1024), "layers.0.norm": (1024,)}
    return decoder_shapes(LAYER_COUNT)


class Refitting:
    """A receiver between two versions: refit, back again, stage and apply, back again."""

    def __init__(self, store: WeightStore, live: Live) -> None:
        self._live = live
        self._receiver: Receiver = store.receiver(live.parameters)
        self._receiver.adopt(1)
        self.times: dict[str, list[float]] = defaultdict(list)
        self.reports: list[RefitReport] = []

    def once(self) -> float:
        """Refit by one call, and again in two; seconds of the first."""
        receiver = self._receiver
        taken_s = seconds(lambda: self.reports.append(receiver.refit(2)))
        receiver.rollback()
        stage_s = seconds(lambda: receiver.stage(2))
        applied: list[RefitReport] = []
        apply_s = seconds(lambda: applied.append(receiver.apply()))
        stage_s -= applied[0].seconds[Phase.SCAN]
        self.times["stage"].append(stage_s)
        self.times["in place"].append(stage_s + apply_s)
        receiver.rollback()
        return taken_s

    def check(self, before: Weights, after: Weights) -> None:
        """End the bench if a refit does not give the version's bits, or the way back others."""
        self._receiver.refit(2)
        is_there = self._live.holds(after)
        self._receiver.rollback()
        if not (is_there and self._live.holds(before)):
            raise SystemExit("a refit did not bring the version bit for bit")


class Loading:
    """A full load of a safetensors file in memory into another model of the same shape."""

    def __init__(self, weights: Weights, live: Live, folder: Path) -> None:
        self._path = folder / "after.safetensors"
        tensors = {name.replace(".", "/"): each for name, each in tensors_of(weights).items()}
        safetensors.torch.save_file(tensors, self._path)
        self._model = live.model
        self.pauses_s: list[float] = []

    def once(self) -> float:
        """Map the file and load the state dict; seconds of both."""
        held: dict[str, torch.Tensor] = {}
        open_s = seconds(lambda: held.update(safetensors.torch.load_file(self._path)))
        self.pauses_s.append(seconds(lambda: self._model.load_state_dict(held)))
        return open_s + self.pauses_s[-1]


def measure(options: Options, findings: Findings) -> None:
    """Measure steps of both sizes, then memory and pieces."""
    for name in STEPS:
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            measure_step(name, Path(folder), options, findings)
    measure_memory(options, findings)
    measure_pieces(options, findings)
    measure_ranks(options, findings)


def measure_step(name: str, folder: Path, options: Options, findings: Findings) -> None:
    """Time one step by refit, by a full load, and by the peer, in turns."""
    shapes = shapes_of(is_small=options.is_small)
    before, after = normal_weights(shapes), normal_weights(shapes)
    put_versions(folder / "store", after, [STEPS[name]])
    loading = Loading(after, Live(before), folder)
    with WeightStore.open(folder / "store", settings=Settings(thread_count=1)) as store:
        live = Live(before)
        refitting = Refitting(store, live)
        refitting.check(before, after)
        work: dict[str, Timed] = {REFIT: refitting.once, FULL: loading.once}
        peer = modelexpress_peer.load()
        if peer is not None:
            work[PEER] = _peer_apply(PeerReader(peer, before, folder), peer.shard(before, after))
        taken = in_turns(work, options.turns(TURN_COUNT))
    moved = moved_in_pause(folder / "store", live.parameters)
    findings.add(*step_rows(name, taken, refitting, loading, size_bytes_of(before)))
    findings.add(*moved_rows(name, moved))
    if peer is None:
        findings.leave_out(
            f"{name}: stage + apply, against the peer", modelexpress_peer.NOT_INSTALLED
        )
        return
    findings.add(*peer_rows(name, taken, refitting, size_bytes_of(before)))


def _peer_apply(reader: PeerReader, delta: tuple[bytes, list[str]]) -> Timed:
    def once() -> float:
        reader.reset()
        return seconds(partial(reader.apply, *delta))

    return once


def step_rows(
    name: str,
    taken: dict[str, list[float]],
    refitting: Refitting,
    loading: Loading,
    size_bytes: int,
) -> list[Row]:
    """Rows of one step without the peer. The first turn of each warms up and does not count."""
    reports = refitting.reports[-len(taken[REFIT]) :]
    phases = {
        phase: median([each.seconds.get(phase, 0.0) for each in reports]) * MS for phase in Phase
    }
    shown = ", ".join(f"{phase.value} {ms:.1f}" for phase, ms in phases.items() if ms)
    stage_s = refitting.times["stage"][-len(reports) :]
    in_place_s = refitting.times["in place"][-len(reports) :]
    return [
        against(
            f"{name}: pause of a refit",
            "ms",
            [each.pause_s * MS for each in reports],
            FULL_LOAD,
            [each * MS for each in loading.pauses_s[-len(reports) :]],
            note="the peer is the call of load_state_dict alone; torch may use every core for it",
        ),
        against(
            f"{name}: refit, all of it",
            "ms",
            [each * MS for each in taken[REFIT]],
            "safetensors load_file + load_state_dict, nothing verified",
            [each * MS for each in taken[FULL]],
            note=f"one thread; medians by phase in ms: {shown}. The scan looks at an eighth of all "
            "elements",
        ),
        alone(
            f"{name}: stage, one core",
            "GB/s of tensor",
            rates(size_bytes, stage_s),
            note="without the rolling scan, which is in the row above",
        ),
        alone(
            f"{name}: stage + apply, one core",
            "GB/s of tensor",
            rates(size_bytes, in_place_s),
            target=at_least(STAGE_GB_S, of=Side.MEASURED) if name == TARGET_STEP else None,
            note="reading, SHA-256 of packs, streams, base check, staging and the pause; without "
            "the rolling scan",
        ),
    ]


def peer_rows(
    name: str, taken: dict[str, list[float]], refitting: Refitting, size_bytes: int
) -> list[Row]:
    """Rows of one step beside the peer."""
    in_place_s = refitting.times["in place"][-len(taken[REFIT]) :]
    peer = rates(size_bytes, taken[PEER])
    return [
        against(
            f"{name}: stage + apply, one core",
            "GB/s of tensor",
            rates(size_bytes, in_place_s),
            modelexpress_peer.NAME,
            peer,
            target=at_least(PEER_FACTOR) if name == TARGET_STEP else None,
            note="the peer's result is a file in memory, which an engine has still to load",
        ),
        against(
            f"{name}: refit, all of it",
            "GB/s of tensor",
            rates(size_bytes, taken[REFIT]),
            modelexpress_peer.NAME,
            peer,
        ),
    ]


def moved_rows(name: str, moved: Moved) -> list[Row]:
    """Rows of what one pause moves."""
    whole = moved.size_bytes / moved.changed_count
    return [
        alone(
            f"{name}: bytes of the change that the pause moves, per changed element",
            "B",
            [(moved.size_bytes - moved.table_bytes) / moved.changed_count],
            target=at_most(BYTES_PER_CHANGE, of=Side.MEASURED),
            note="position, bits before and bits after; with the tables of windows, 16 bytes for "
            f"each 65,536 elements of which one changes, it is {whole:.3f}",
        ),
        against(
            f"{name}: launches of a pause",
            "launches",
            [float(moved.launch_count)],
            "chunks of 64 MiB + storages",
            [float(moved.allowed_launch_count)],
            target=at_most(1),
        ),
    ]


def measure_memory(options: Options, findings: Findings) -> None:
    """Find how high memory rises in a receiver, for changes of several sizes."""
    for name, ratio in MEMORY_KINDS.items():
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            task: Task = {"store": str(Path(folder) / "store"), "ratio": ratio}
            task["is_small"] = options.is_small
            BENCH.in_child({**task, "phase": "put"}, here=options.is_small)
            found = BENCH.in_child({**task, "phase": "memory"}, here=options.is_small)
        extra, staged = found["extra_bytes"] / MIB, found["staged_bytes"] / MIB
        row = f"{name}: receiver, peak memory over the caller's"
        if ratio <= 0:
            limit = at_most(EMPTY_MIB, of=Side.MEASURED)
            findings.add(alone(row, "MiB", [max(extra, 0.0)], target=limit))
            continue
        findings.add(
            against(
                row,
                "MiB",
                [max(extra, 0.0)],
                f"{EMPTY_MIB} MiB + {STAGED_FACTOR}x the staged change",
                [EMPTY_MIB + STAGED_FACTOR * staged],
                target=at_most(1),
                note=f"the staged change has {staged:.1f} MiB",
            )
        )


def measure_pieces(options: Options, findings: Findings) -> None:
    """Hold the pause of a change in 200,000 pieces against that of the same change in few."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        task: Task = {"phase": "pieces", "folder": folder, "is_small": options.is_small}
        task["turn_count"] = options.turns(TURN_COUNT)
        found = BENCH.in_child(task, here=options.is_small)
    counts = found["piece_counts"]
    findings.add(
        against(
            f"1 % in {counts[MANY_PIECES]:,} pieces: pause",
            "ms",
            [each * MS for each in found["pauses_s"][MANY_PIECES]],
            f"the same change in {counts[FEW_PIECES]} pieces",
            [each * MS for each in found["pauses_s"][FEW_PIECES]],
            target=at_most(PIECE_RATIO),
        ),
        against(
            f"1 % in {counts[MANY_PIECES]:,} pieces: stage, two threads",
            "s",
            [found["stage_s"][MANY_PIECES]],
            f"the same change in {counts[FEW_PIECES]} pieces",
            [found["stage_s"][FEW_PIECES]],
        ),
    )


def measure_ranks(options: Options, findings: Findings) -> None:
    """Count the pieces that a host agent decodes for eight ranks of its machine."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        task: Task = {"phase": "ranks", "folder": folder, "is_small": options.is_small}
        found = BENCH.in_child(task, here=options.is_small)
    findings.add(
        against(
            "eight ranks on one host: pieces decoded by the host agent",
            "pieces",
            [float(found["decoded_count"])],
            "pieces of the step",
            [float(found["piece_count"])],
            target=at_most(1),
            note=f"the ranks were handed {found['served_count']:,} pieces",
        ),
        against(
            "eight ranks on one host: refit of all, through the host agent",
            "s",
            [found["seconds"]["agent"]],
            "each reads and decodes for itself",
            [found["seconds"]["alone"]],
            note="ranks and agent are threads of one process on the cores of this machine; each "
            "rank holds an eighth of the rows of every tensor",
        ),
    )


def do(task: Task) -> Task:
    """Do a task in a process of its own."""
    if task["phase"] == "ranks":
        return compare_ranks(Path(task["folder"]), is_small=task["is_small"])
    if task["phase"] == "pieces":
        return compare_pieces(Path(task["folder"]), task["turn_count"], is_small=task["is_small"])
    shapes = shapes_of(is_small=task["is_small"])
    if task["phase"] == "put":
        put_versions(Path(task["store"]), normal_weights(shapes), [task["ratio"]])
        return {}
    return watch_memory(Path(task["store"]), normal_weights(shapes))


BENCH = Bench(
    name="refit",
    summary=(
        "A model of 1 GiB of bf16 in the memory of one process, moved by one step in place. Store "
        "and files lie in memory too. The receiver works with one thread where nothing else is "
        "said, the peer with one worker. Of each step one refit and the way back are compared bit "
        "for bit before any is timed; what came of many pieces, of few and of eight ranks is "
        "compared after."
    ),
    measure=measure,
    child=do,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
