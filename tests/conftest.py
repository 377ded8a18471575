"""Hypothesis profiles (`push` by default, `--hypothesis-profile night` for a long search).

What hypothesis has run is added to the totals of the checkout.
"""

from __future__ import annotations

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
