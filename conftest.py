"""Leaves out modules that need an extra when examples are collected where it is missing.

An import error of any other module must stay one: a test file that cannot be imported and is
skipped looks like one that has passed.
"""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = (
    []
    if find_spec("triton")
    else [
        "weightstore/receiver/triton_kernels.py",
        "weightstore/testing/triton_compile.py",
        "weightstore/trainer/triton_detect.py",
    ]
)
