"""A store in memory with three real versions."""

from __future__ import annotations

import pytest

from weightstore.testing.real_versions import ThreeVersions, three_versions


@pytest.fixture
def chain() -> ThreeVersions:
    return three_versions()
