"""Triton's compiler takes every kernel, for GPUs that are not there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = pytest.mark.slow
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs the triton extra"
)


@pytest.mark.parametrize(
    ("capability", "widths", "count"),
    [
        (90, (2,), 11),
        pytest.param(90, (1, 4, 8), 33, marks=SLOW),
        pytest.param(80, (1, 2, 4, 8), 44, marks=SLOW),
    ],
)
def test_all_kernels_compile(
    tmp_path: Path, capability: int, widths: tuple[int, ...], count: int
) -> None:
    # A process that compiles is not one that interprets, and must not take an old result.
    environment = {name: value for name, value in os.environ.items() if "TRITON" not in name}
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error::UserWarning"),
            *("-m", "weightstore.testing.triton_compile"),
            *map(str, (capability, *widths)),
        ],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{count} programs\n"
