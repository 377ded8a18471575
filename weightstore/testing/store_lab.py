"""Stores to test the facade on: on a memory store, and with a trainer in another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import WeightStoreError
from weightstore.history.log import Log
from weightstore.history.store_format import create_store
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.store import WeightStore
from weightstore.store.reading import Components
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock

REPLY_TIMEOUT_S = 120

LAB_SETTINGS = Settings(
    # Most tests change most elements of small tensors: neither a warning nor a reason for a
    # full form.
    warn_changed_ratio=1.0,
    full_after_chain_ratio=1e6,
)
OTHER_RUN = "run"


def store_on(
    blobs: BlobStore,
    *,
    seed: int | str = 0,
    settings: Settings | None = None,
    cast: Mapping[str, str] | None = None,
) -> WeightStore:
    """A handle on a store in any blobs, made if it is not there; on virtual time.

    Args:
        blobs: The store below.
        seed: Names differ between seeds: a "restarted process" takes a new one.
        settings: As of `WeightStore.open`.
        cast: As of `WeightStore.open`.
    """
    used = settings or LAB_SETTINGS
    clock, entropy = VirtualClock(), SeededEntropy(seed)
    log = Log(blobs, used.limits)
    store_id = create_store(blobs, log, clock=clock, entropy=entropy, settings=used)
    return WeightStore(Components(blobs, clock, entropy), store_id, settings=used, cast=cast or {})


def tree(directory: Path) -> dict[str, bytes]:
    """Path to contents of every file below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def other_weights(step: int) -> dict[str, NDArray[np.float32]]:
    """What the trainer in another process puts as a step."""
    return {"w": np.arange(8, dtype=np.float32) * (step + 1)}


class OtherTrainer:
    """A trainer in a process of its own, which puts steps when it is told to.

    Args:
        store: Directory of the store.
        take_over: Fence whoever owns it.
    """

    def __init__(self, store: Path, *, take_over: bool = False) -> None:
        words = [str(store), *(["--take-over"] if take_over else [])]
        self._process = subprocess.Popen(  # noqa: S603 -- our own module
            [sys.executable, "-m", __name__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.attached = self._reply()

    @property
    def process_id(self) -> int:
        """Of the other process."""
        return self._process.pid

    def put(self, step: int) -> str:
        """`version N`, or the name of the error."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        return self._reply()

    def kill(self) -> None:
        """End the process as SIGKILL does: it can tidy up nothing."""
        self._process.kill()
        self._process.wait(REPLY_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._process.kill()
        self._process.communicate(timeout=REPLY_TIMEOUT_S)

    def _reply(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _train(store: Path, *, take_over: bool) -> None:
    """Answer each step on standard input with one line on standard output."""
    try:
        with (
            WeightStore.open(store, settings=LAB_SETTINGS) as opened,
            opened.trainer(OTHER_RUN, take_over=take_over) as session,
        ):
            sys.stdout.write("attached\n")
            sys.stdout.flush()
            for line in sys.stdin:
                try:
                    reply = (
                        f"version {session.put_step(int(line), other_weights(int(line))).result()}"
                    )
                except WeightStoreError as error:
                    reply = type(error).__name__
                sys.stdout.write(reply + "\n")
                sys.stdout.flush()
    except WeightStoreError as error:
        sys.stdout.write(f"{type(error).__name__}: {error.message}\n")


if __name__ == "__main__":
    _train(Path(sys.argv[1]), take_over="--take-over" in sys.argv)
