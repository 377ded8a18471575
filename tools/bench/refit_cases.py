"""What the bench of refits does in processes of its own, and what it counts in live memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from tools.bench.bench import Task
from tools.bench.peak_memory import PeakMemory
from tools.bench.turns import seconds
from tools.bench.weights import Weights, move, normal_weights
from weightstore import Settings, WeightStore
from weightstore.clock import SystemClock, SystemEntropy
from weightstore.codec.blocked import WINDOW_SIZE_BYTES, BlockedChange
from weightstore.codec.lanes import Units
from weightstore.history.log import Log
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.receiver.live_storage import ScatterCounts
from weightstore.receiver.placement import Placement
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.torch_live import place_tensors
from weightstore.receiver.version_source import VersionSource
from weightstore.settings import Limits
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.wrapped_storage import WrappedStorage

ONE_ELEMENT = -1.0
"""In place of a share: a single element changes."""
MANY_PIECES, FEW_PIECES = "many", "few"
PIECE_UNIT_COUNT = 2_560
"""A GiB of bf16 in pieces of this is 209,728 pieces."""
TENSOR_COUNT = 64
RANK_COUNT = 8
RANKS_TENSOR_COUNT = 16
AGENT_WAIT_S = 60.0


@dataclass(slots=True)
class Moved:
    """What one pause moves.

    Attributes:
        size_bytes: Of the change, tables of windows and all.
        table_bytes: Of those tables.
        changed_count: Units that are written.
        launch_count: Writes that live memory sees.
        launch_size_bytes: As the receiver was told.
        storages: Numbers of the memories that are written.
    """

    launch_size_bytes: int
    size_bytes: int = 0
    table_bytes: int = 0
    changed_count: int = 0
    launch_count: int = 0
    storages: set[int] = field(default_factory=set)

    @property
    def allowed_launch_count(self) -> int:
        """Chunks, and one for each memory."""
        return -(-self.size_bytes // self.launch_size_bytes) + len(self.storages)


@dataclass(frozen=True)
class CountingStorage(WrappedStorage):
    """A live memory that counts what is scattered over it."""

    number: int
    moved: Moved

    def scatter(self, change: BlockedChange, /, *, redo: bool) -> ScatterCounts:
        """Of the memory."""
        self.moved.size_bytes += change.size_bytes
        self.moved.table_bytes += WINDOW_SIZE_BYTES * change.block_starts.size + 8
        self.moved.changed_count += change.count
        self.moved.launch_count += 1
        self.moved.storages.add(self.number)
        return self.inner.scatter(change, redo=redo)


def moved_in_pause(folder: Path, tensors: Mapping[str, torch.Tensor]) -> Moved:
    """Move live tensors from version 1 to 2, and count; they hold version 2 afterwards."""
    settings = ReceiverSettings()
    moved = Moved(settings.launch_size_bytes)

    def place(schema: Schema) -> Placement:
        found = place_tensors(schema, tensors, {})
        storages = tuple(
            CountingStorage(each, number, moved) for number, each in enumerate(found.storages)
        )
        return replace(found, storages=storages)

    used = Settings(use_index=False)
    blobs = LocalBlobStore(folder)
    source = VersionSource(blobs, Log(blobs, used.limits), used)
    receiver = Receiver(source, place, clock=SystemClock(), settings=settings)
    receiver.adopt(1)
    receiver.refit(2)
    return moved


def put_versions(store: Path, weights: Weights, ratios: Sequence[float]) -> None:
    """Put weights, and a step for each share of changed elements; `weights` are moved.

    Args:
        store: A directory, new.
        weights: What is put.
        ratios: 0 changes nothing, `ONE_ELEMENT` a single one.
    """
    rng = np.random.default_rng(1)
    with (
        WeightStore.open(store, create=True) as opened,
        opened.trainer(run="bench") as trainer,
    ):
        trainer.put_step(0, weights).result()
        for step, ratio in enumerate(ratios, start=1):
            if ratio == ONE_ELEMENT:
                next(iter(weights.values())).units[0] ^= 1
            elif ratio:
                for each in weights.values():
                    move(each.units, rng, ratio=ratio)
            trainer.put_step(step, weights).result()


def watch_memory(store: Path, weights: Weights) -> Task:
    """Bring weights that are live from version 1 to 2; how high memory rises meanwhile."""
    warm_up(store.with_name("warm"))
    arrays = {name: each.units for name, each in weights.items()}
    with WeightStore.open(store) as opened:
        receiver = opened.receiver(arrays)
        receiver.adopt(1)
        peak = PeakMemory()
        receiver.stage(2)
        report = receiver.apply()
        extra_bytes = peak.extra_bytes()
        receiver.verify()
    return {
        "extra_bytes": extra_bytes,
        # An offset of two bytes, and two bytes of bits before and after.
        "staged_bytes": 6 * report.applied_count,
    }


def warm_up(store: Path) -> None:
    """Import and compile what a receiver needs, with a model that weighs nothing."""
    weights = normal_weights({"weight": (512, 512)})
    arrays = {name: each.units.copy() for name, each in weights.items()}
    put_versions(store, weights, [0.01, 0.0])
    with WeightStore.open(store) as opened:
        receiver = opened.receiver(arrays)
        receiver.adopt(1)
        receiver.refit(2)
        receiver.refit(3)


def compare_pieces(folder: Path, turn_count: int, *, is_small: bool) -> Task:
    """Time the pause of one change in many small pieces and in few, in turns."""
    shape = (32, 8_192) if is_small else (1_024, 8_192)
    names = [f"layers.{number:02}" for number in range(2 if is_small else TENSOR_COUNT)]
    receivers: dict[str, Receiver] = {}
    stage_s, counts = {}, {}
    pauses_s: dict[str, list[float]] = {MANY_PIECES: [], FEW_PIECES: []}
    arrays: dict[str, dict[str, Units]] = {}
    after: dict[str, Weights] = {}
    for kind in (MANY_PIECES, FEW_PIECES):
        limits = Limits(piece_element_count=PIECE_UNIT_COUNT) if kind == MANY_PIECES else Limits()
        weights = normal_weights(dict.fromkeys(names, shape))
        arrays[kind] = {name: each.units.copy() for name, each in weights.items()}
        put_versions(folder / kind, weights, [])
        counts[kind] = put_in_pieces(folder / kind, weights, limits)
        after[kind] = weights
        store = WeightStore.open(folder / kind)
        receivers[kind] = store.receiver(arrays[kind])
        receivers[kind].adopt(1)
        stage_s[kind] = seconds(lambda kind=kind: receivers[kind].stage(2))  # type: ignore[misc]
        receivers[kind].apply()
    for _ in range(turn_count):
        for kind, receiver in receivers.items():
            # There and back again, always from what is staged: each is a pause of its own.
            pauses_s[kind].append(receiver.rollback().pause_s)
    for kind, receiver in receivers.items():
        if turn_count % 2:
            receiver.rollback()
        end_unless_same(arrays[kind], after[kind], f"the receiver of {kind} pieces")
    return {"pauses_s": pauses_s, "stage_s": stage_s, "piece_counts": counts}


def put_in_pieces(store: Path, weights: Weights, limits: Limits) -> int:
    """Put a step of 1 % cut into pieces as the limits say; how many."""
    rng = np.random.default_rng(1)
    with (
        WeightStore.open(store, settings=Settings(limits=limits)) as opened,
        opened.trainer(run="bench", resume=weights) as trainer,
    ):
        for each in weights.values():
            move(each.units, rng)
        return trainer.put_step(1, weights).report().piece_count


def compare_ranks(folder: Path, *, is_small: bool) -> Task:
    """Stage and apply one step on eight ranks of one host, each for itself and by an agent.

    The ranks are threads of this process, and so is the agent; each holds an eighth of the rows
    of every tensor.
    """
    shape = (64, 8_192) if is_small else (2_048, 4_096)
    names = [f"layers.{number:02}" for number in range(2 if is_small else RANKS_TENSOR_COUNT)]
    weights = normal_weights(dict.fromkeys(names, shape))
    put_versions(folder / "store", weights, [0.01])
    clock, entropy, used = SystemClock(), SystemEntropy(), Settings(thread_count=1)
    seconds_of: dict[str, float] = {}
    with WeightStore.open(folder / "store", settings=used) as store:
        place = folder / "agent"
        seconds_of["alone"] = run_ranks(store, shape, names, weights, None)
        with HostAgent(
            LocalBlobStore(folder / "store"),
            store.store_id,
            place,
            settings=Settings(),
            clock=clock,
            entropy=entropy,
        ) as agent:
            seconds_of["agent"] = run_ranks(store, shape, names, weights, place)
            stats = agent.stats()
        piece_count = store.describe(2).piece_count
    return {
        "seconds": seconds_of,
        "decoded_count": stats.decoded_piece_count,
        "served_count": stats.served_piece_count,
        "piece_count": piece_count,
    }


def run_ranks(
    store: WeightStore,
    shape: tuple[int, ...],
    names: Sequence[str],
    after: Weights,
    agent: Path | None,
) -> float:
    """Move eight ranks from version 1 to 2; seconds from the first stage to the last apply."""
    before = normal_weights(dict.fromkeys(names, shape))
    row_count, column_count = shape[0] // RANK_COUNT, shape[1]
    ranks: list[tuple[Receiver, dict[str, Units]]] = []
    for rank in range(RANK_COUNT):
        rows = slice(rank * row_count * column_count, (rank + 1) * row_count * column_count)
        arrays = {name: before[name].units[rows].copy() for name in names}
        box = Box((rank * row_count, 0), (row_count, column_count))
        settings = ReceiverSettings(
            agent_socket=agent, agent_wait_s=AGENT_WAIT_S, agent_answer_s=AGENT_WAIT_S
        )
        receiver = store.receiver(arrays, boxes=dict.fromkeys(names, box), settings=settings)
        receiver.adopt(1)
        ranks.append((receiver, arrays))
    with ThreadPoolExecutor(RANK_COUNT) as threads:
        taken_s = seconds(lambda: list(threads.map(lambda each: each[0].refit(2), ranks)))
    for rank, (_, arrays) in enumerate(ranks):
        rows = slice(rank * row_count * column_count, (rank + 1) * row_count * column_count)
        end_unless_same(arrays, after, f"rank {rank}", rows)
    return taken_s


def end_unless_same(
    arrays: Mapping[str, Units], weights: Weights, whose: str, rows: slice = slice(None)
) -> None:
    """End the bench if live arrays are not some units of version 2, bit for bit."""
    if not all(np.array_equal(arrays[name], weights[name].units[rows]) for name in weights):
        raise SystemExit(f"{whose} does not hold version 2")
