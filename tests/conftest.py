"""Hypothesis profiles: `push` by default, `--hypothesis-profile night` for a long search."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

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
