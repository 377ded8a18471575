"""Whether Triton's kernels are used: only where one has run. Imports neither torch nor Triton."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import TypeVar

KernelsT = TypeVar("KernelsT")


def triton_where_it_runs(
    device: str,
    *,
    tried: Callable[[], KernelsT],
    portable: Callable[[], KernelsT],
    logger: logging.Logger,
) -> KernelsT:
    """Triton's kernels for a CUDA device where Triton runs, else the portable ones.

    Args:
        device: Its name, as torch says it.
        tried: Makes Triton's kernels and runs one of them, since Triton being installed says
            nothing of the driver and the C compiler that it needs.
        portable: Makes the kernels that run everywhere.
        logger: Is told why Triton is left out.
    """
    if device.startswith("cuda") and importlib.util.find_spec("triton") is not None:
        try:
            return tried()
        except Exception as error:  # noqa: BLE001 -- whatever it lacks, the others give the same bits
            logger.warning(
                "Triton's kernels do not run on %s, so torch's operations are used: %s",
                device,
                error,
            )
    return portable()
