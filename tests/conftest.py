"""Hypothesis profiles (`push` by default, `--hypothesis-profile night` for a long search).

What hypothesis has run is added to the totals of the checkout.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from weightstore.testing import totals

# The same examples on every machine and every run: a red build is red for everybody. No
# deadline, since numba's first compilation takes longer than any sensible one.
settings.register_profile("push", derandomize=True, deadline=None, database=None)
settings.register_profile(
    "night",
    deadline=None,
    max_examples=5_000,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("push")

_counts: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    """Let Triton's kernels be interpreted, unless tests on a GPU are asked for.

    Triton decides that when it is imported, and torch's optimisers import it: so all tests of
    a process have it in one way.
    """
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Count the examples that a test has run; under xdist this is a worker."""
    _counts["hypothesis_examples"] += totals.example_count(
        getattr(item, "hypothesis_statistics", "")
    )


def pytest_sessionfinish() -> None:
    """Add what this process has counted to the totals of all."""
    for name, count in _counts.items():
        if count:
            totals.add(name, count)
