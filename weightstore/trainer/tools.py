"""What the parts of a trainer work with, as one value."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log
from weightstore.history.workers import Workers
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.trainer.benches import Benches
from weightstore.trainer.scan import Scan

if TYPE_CHECKING:
    from weightstore.trainer.device_baseline import DeviceBaseline


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Tools:
    """Components of one trainer process.

    Attributes:
        blobs: The store.
        log: Its log.
        writer: Puts records for this launch.
        clock: For timings and deadlines.
        entropy: For the names of packs.
        settings: How much is done at once, and when full forms are written.
        codec: Kernels and limits of pieces.
        workers: Threads for pieces.
        uploader: The thread that packs are uploaded in.
        benches: What each job works with.
        device: Compares large tensors where they are; None compares all on the host.
    """

    blobs: BlobStore
    log: Log
    writer: LogWriter
    clock: Clock
    entropy: Entropy
    settings: Settings
    codec: PieceCodec
    workers: Workers
    uploader: Executor
    benches: Benches
    device: DeviceBaseline | None = None

    @property
    def limits(self) -> Limits:
        """The hard bounds."""
        return self.settings.limits

    @property
    def scan(self) -> Scan:
        """Reads whole tensors."""
        return Scan(self.workers, self.benches, self.limits)
