"""The released package `modelexpress` as a peer: its own functions, called as it calls them.

It is optional: `tools/bench/setup` installs the pinned release into a folder of its own, so
that neither its pins nor its dependencies touch the environment that the product is tested
in. The folder comes last on the path: what both need (NumPy, torch, zstandard) is the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from tools.bench.weights import Weights

FOLDER = Path(sys.prefix) / "bench-peers"
NAME = "modelexpress 0.7.0"
NOT_INSTALLED = "peer not installed: run tools/bench/setup"
SHARD = "delta.safetensors"

Bytes = NDArray[np.uint8]


class PeerReader:
    """A receiver's copy of a checkpoint: the peer's decode, apply and Adler-32 check.

    Its file lies in `folder`; one in memory keeps the disk out of the figures.
    """

    def __init__(self, peer: ModelExpress, before: Weights, folder: Path) -> None:
        self._path = folder / "model.safetensors"
        arrays = {name: each.units.reshape(each.spec.shape) for name, each in before.items()}
        # The bits of bf16 under the name of another 16-bit type: bytes are all that counts here.
        safetensors.numpy.save_file(arrays, self._path)
        self._before = self._path.read_bytes()
        self._receiver = peer.receiver(self._path, folder)

    def reset(self) -> None:
        """Put the bytes from before back."""
        with self._path.open("r+b") as file:
            file.write(self._before)

    def apply(self, shard: bytes, names: list[str]) -> None:
        """Decode a shard into the file, and compare the checksums."""
        self._receiver._apply_shards(  # noqa: SLF001 -- its one way to apply without S3
            {SHARD: (shard, names)},
            index_metadata={"checksum_format": "adler32", "compression_format": "zstd"},
        )

    def holds(self, weights: Weights) -> bool:
        """Whether the file has these bits."""
        found = safetensors.numpy.load_file(self._path)
        return all(
            np.array_equal(found[name].reshape(-1), each.units) for name, each in weights.items()
        )


class ModelExpress:
    """The peer's functions. Use `load`."""

    def __init__(self, utils: Any, receiver: Any) -> None:  # noqa: ANN401 -- untyped modules
        self._utils = utils
        self._receiver = receiver

    def encode(self, old: Bytes, new: Bytes) -> Bytes | None:
        """`compute_delta` and `compress_delta` of one tensor; None if nothing changed."""
        delta, _changed = self._utils.compute_delta(new, old)
        if delta is None:
            return None
        compressed: Bytes = self._utils.compress_delta(delta)
        return compressed

    def shard(self, before: Weights, after: Weights) -> tuple[bytes, list[str]]:
        """A delta as the peer's trainer uploads it, and the names of its tensors."""
        deltas: dict[str, Bytes] = {}
        checksums: dict[str, str] = {}
        for name, each in after.items():
            new = each.units.view(np.uint8)
            found = self.encode(before[name].units.view(np.uint8), new)
            if found is not None:
                checksum = self._utils.checksum_factory("adler32")
                checksum.update(new)
                deltas[name] = found
                checksums[name] = checksum.hexdigest()
        return safetensors.numpy.save(deltas, metadata=checksums), list(deltas)

    def receiver(self, checkpoint: Path, folder: Path) -> Any:  # noqa: ANN401 -- an untyped class
        """Make its receiver on a checkpoint, without its object storage."""
        config = self._receiver.ObjectStorageGeneratorConfig(
            storage_type=self._receiver.ObjectStorageType.S3,
            initial_base_version_id="1",
            seed_checkpoint_path=checkpoint,
            refit_checkpoint_dir=folder / "cache",
        )
        made = self._receiver._LocalCheckpoint(  # noqa: SLF001 -- see PeerReader.apply
            model_name="bench", config=config, s3=None
        )
        made._set_local_checkpoint(checkpoint)  # noqa: SLF001 -- see PeerReader.apply
        return made


def load(*, worker_count: int = 1) -> ModelExpress | None:
    """Import the peer, or None where it is not installed.

    Args:
        worker_count: Threads that it applies deltas with.
    """
    os.environ["MX_REFIT_DELTA_WORKERS"] = str(worker_count)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    if importlib.util.find_spec("modelexpress_rl") is None:
        return None
    return ModelExpress(
        importlib.import_module("modelexpress_rl.utils"),
        importlib.import_module("modelexpress_rl.inference.receiver"),
    )
