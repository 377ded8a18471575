"""One rank of an engine as a real process: `python -m weightstore.testing.rank_process JSON`.

It serves in a thread all the time and writes down what it served when. It kills itself where it
was told to. Rank 0 refits on a line of its input and answers with a line.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np

from weightstore.clock import SystemClock, SystemEntropy
from weightstore.errors import NotReadyError, WeightStoreError
from weightstore.history.log import Log
from weightstore.layout.boxes import Box
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, Units
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.placement import Placement
from weightstore.receiver.ranks.attach import make_rank
from weightstore.receiver.ranks.channel import BlobChannel
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.messages import Part, decode_answer
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.settings import Settings
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.rank_lab import split
from weightstore.testing.receiver_lab import Bits, Fuse, FusedStorage

PAUSE_S = 0.002
INSIDE = "inside"


@dataclass(frozen=True)
class RankOptions:
    """What a process is told.

    Attributes:
        store: Directory of the store.
        channel: Directory of the channel.
        log: File for what is served.
        rank: Which.
        rank_count: Of how many.
        how: As of `split`.
        die_file: Says where it kills itself, if it is there: a part of a round, and `before` or
            `after` its answer is there, or `inside` a write.
        answer_timeout_s: Of the leader.
    """

    store: str
    channel: str
    log: str
    rank: int
    rank_count: int
    how: str
    die_file: str
    answer_timeout_s: float = 5.0

    def to_json(self) -> str:
        """As an argument."""
        return json.dumps(asdict(self))


def die() -> None:
    """As `kill -9` from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


def death_of(options: RankOptions) -> tuple[str, str]:
    """Where the process shall die: part, and when; two empty texts for nowhere."""
    try:
        part, when = Path(options.die_file).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return "", ""
    return part, when


class DyingChannel(BlobChannel):
    """Kills the process before or after it answers to a part of a round."""

    def __init__(self, options: RankOptions) -> None:
        super().__init__(LocalBlobStore(Path(options.channel), create=True))
        self._options = options

    def put(self, key: str, data: bytes, /) -> None:
        """Put, and perhaps die."""
        part, when = death_of(self._options)
        is_here = bool(part) and self._is_part(key, data, part)
        if is_here and when == "before":
            die()
        super().put(key, data)
        if is_here and when == "after":
            die()

    def _is_part(self, key: str, data: bytes, part: str) -> bool:
        if not key.startswith("rounds/") or key.endswith("order") or "-lost-" in key:
            return False
        return decode_answer(data, what=key)[0].part is Part(part)


@dataclass
class DeadlyFuse(Fuse):
    """Kills the process between two writes of live memory.

    Attributes:
        options: Of the process.
    """

    options: RankOptions | None = None

    def burns(self) -> bool:
        """Die at the second write after it was told to."""
        if self.options is not None and death_of(self.options)[1] == INSIDE:
            self.count += 1
            if self.count > 1:
                die()
        return False


def arrays_of(schema: Schema, options: RankOptions) -> tuple[Bits, dict[str, Box]]:
    """Zeros for the rank's share, and its boxes."""
    share = split(schema, options.rank_count, options.how)[options.rank]
    arrays: Bits = {}
    boxes: dict[str, Box] = {}
    for name, box in share.items():
        spec = schema.tensors[schema.index_of(name)]
        if box != Box.whole(spec.unit_shape):
            boxes[name] = box
        if box.unit_count or name not in boxes:
            arrays[name] = np.zeros(box.unit_count, spec.dtype.unit_dtype)
    return arrays, boxes


def share_sha256(arrays: Bits) -> str:
    """One hash over everything that a rank holds."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def make_engine(options: RankOptions) -> tuple[EngineRank, Bits]:
    """The rank and its weights."""
    settings = Settings(thread_count=1)
    blobs = LocalBlobStore(Path(options.store))
    source = VersionSource(blobs, Log(blobs, settings.limits), settings)
    schema = source.schema(source.find("latest"))
    arrays, boxes = arrays_of(schema, options)
    given: dict[str, Units | HostTensor] = dict(arrays)
    fuse = DeadlyFuse(options=options)
    place = partial(place_arrays, targets=given, boxes=boxes)

    def fused(wanted: Schema) -> Placement:
        found = place(wanted)
        return replace(found, storages=tuple(FusedStorage(each, fuse) for each in found.storages))

    clock, entropy = SystemClock(), SystemEntropy()
    used = EngineSettings(
        answer_timeout_s=options.answer_timeout_s,
        stage_timeout_s=options.answer_timeout_s,
        receiver=ReceiverSettings(block_timeout_s=1.0, launch_size_bytes=4096),
    )
    channel = DyingChannel(options)
    receiver = Receiver(source, fused, clock=clock, settings=used.receiver)
    engine = make_rank(
        receiver,
        source,
        channel,
        rank=options.rank,
        rank_count=options.rank_count,
        settings=used,
        clock=clock,
        entropy=entropy,
    )
    return engine, arrays


def serve(engine: EngineRank, arrays: Bits, log: TextIO, stop: threading.Event) -> None:
    """Serve without end, and write down each block: version, hash, beginning, end."""
    clock = SystemClock()
    while not stop.is_set():
        try:
            with engine.serving() as version:
                start_s = clock.monotonic_s()
                found = share_sha256(arrays)
                end_s = clock.monotonic_s()
        except NotReadyError:
            stop.wait(PAUSE_S)
            continue
        log.write(json.dumps([version, found, start_s, end_s]) + "\n")
        log.flush()
        stop.wait(PAUSE_S)


def lead(engine: EngineRank) -> None:
    """Refit on each line; a selector in, a result out."""
    for line in sys.stdin:
        try:
            report = engine.leader.refit(int(line))
            found: dict[str, object] = {
                "target": report.target,
                "ways": [rank.way for rank in report.ranks],
                "is_redo": report.is_redo,
            }
        except WeightStoreError as error:
            found = {"error": error.code, "message": error.message}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run one rank until its input ends."""
    options = RankOptions(**json.loads(sys.argv[1]))
    engine, arrays = make_engine(options)
    stop = threading.Event()
    with Path(options.log).open("a", encoding="utf-8") as log, ThreadPoolExecutor(2) as pool:
        works = [pool.submit(serve, engine, arrays, log, stop)]
        try:
            if options.rank == 0:
                lead(engine)
            else:
                works.append(pool.submit(engine.serve_rounds, stop))
                sys.stdin.read()
        finally:
            stop.set()
        # What has ended a thread early ends the process with an error.
        for work in works:
            work.result()


if __name__ == "__main__":
    main()
