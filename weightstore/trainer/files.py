"""Tensors of safetensors files as input of a put, read range by range from the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from weightstore.errors import InputRefusedError
from weightstore.format.safetensors_header import StoredTensor
from weightstore.history.import_plan import plan_import
from weightstore.layout.tensors import Units
from weightstore.settings import Limits
from weightstore.trainer.inputs import InputTensor


def open_files(path: Path, limits: Limits) -> Iterator[tuple[str, InputTensor]]:
    """The tensors of a safetensors file, or of a checkpoint directory.

    Files are read when their tensors are, so they must stay as they are until then.

    Raises:
        InputRefusedError: no such file, no safetensors in it, or a damaged one.
    """
    for file in plan_import(path, limits).files:
        for tensor in file.header.tensors if file.header else ():
            yield tensor.spec.name, InputTensor(tensor.spec, _reader(file.source, tensor))


def _reader(source: Path, tensor: StoredTensor) -> Callable[[int, int], Units]:
    dtype = tensor.spec.dtype.unit_dtype

    def read(first: int, count: int) -> Units:
        # Not mapped: a file that is cut short meanwhile must be an error, not a signal.
        units = np.empty(count, dtype=dtype)
        with source.open("rb", buffering=0) as stream:
            stream.seek(tensor.file_offset + first * dtype.itemsize)
            view = units.data.cast("B")
            done = 0
            while done < view.nbytes:
                size = stream.readinto(view[done:])
                if not size:
                    raise _changed(source, tensor)
                done += size
        return units

    return read


def _changed(source: Path, tensor: StoredTensor) -> InputRefusedError:
    return InputRefusedError(
        f"{source} ends before tensor {tensor.spec.name!r} does: it was changed meanwhile",
        do="Put again once the file is complete.",
        facts={"path": str(source), "tensor": tensor.spec.name},
    )
