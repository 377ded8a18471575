"""A wait ends when what it waits for is so, or with an error."""

from __future__ import annotations

import pytest

from weightstore.testing.waiting import wait_until


def test_it_ends_when_it_is_so() -> None:
    looks = iter([False, False, True])
    wait_until(lambda: next(looks))
    assert not list(looks)


def test_it_does_not_wait_for_ever() -> None:
    with pytest.raises(AssertionError, match="in vain"):
        wait_until(lambda: False, 0.01)
