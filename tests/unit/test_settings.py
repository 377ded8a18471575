"""Settings and limits that would bound nothing, or stop everything, are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import pytest

from weightstore.errors import InputRefusedError
from weightstore.settings import Limits, Settings

WHOLE = (
    "thread_count",
    "pack_size_bytes",
    "anchor_file_size_bytes",
    "full_after_chain_count",
)
RATIOS = ("full_after_chain_ratio", "warn_changed_ratio")

_Made = TypeVar("_Made", Settings, Limits)


def made(kind: Callable[..., _Made], name: str, value: object) -> _Made:
    """With one value that its type need not allow."""
    return kind(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, math.inf, True])
def test_counts_and_sizes_are_whole_numbers_from_1(name: str, value: float) -> None:
    with pytest.raises(InputRefusedError, match=name) as caught:
        made(Settings, name, value)
    assert caught.value.facts == {"setting": name}
    assert getattr(made(Settings, name, 1), name) == 1


@pytest.mark.parametrize("name", RATIOS)
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_ratios_are_finite_and_not_below_0(name: str, value: float) -> None:
    with pytest.raises(InputRefusedError, match=name):
        made(Settings, name, value)
    assert getattr(made(Settings, name, 0.0), name) == 0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_limit_is_finite_and_above_0(value: float) -> None:
    with pytest.raises(InputRefusedError, match="commit_timeout_s"):
        Settings(commit_timeout_s=value)


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, 0.5, True])
def test_every_limit_is_a_whole_number_from_1(name: str, value: float) -> None:
    with pytest.raises(InputRefusedError, match=f"limits.{name}"):
        made(Limits, name, value)


def test_packs_are_made_no_larger_than_they_may_be_read() -> None:
    limits = Limits(pack_size_bytes=1000)
    assert Settings(pack_size_bytes=1000, limits=limits).pack_size_bytes == 1000
    with pytest.raises(InputRefusedError, match=r"limits\.pack_size_bytes, 1000"):
        Settings(pack_size_bytes=1001, limits=limits)


def test_the_index_is_switched_by_a_bool_and_placed_by_a_path() -> None:
    assert Settings().use_index
    assert Settings().cache_dir is None
    assert Settings(use_index=False, cache_dir=Path("cache")).cache_dir == Path("cache")
    with pytest.raises(InputRefusedError, match="use_index"):
        made(Settings, "use_index", 1)
    with pytest.raises(InputRefusedError, match="cache_dir"):
        made(Settings, "cache_dir", 1)


def test_changes_are_found_on_the_host_or_on_the_device() -> None:
    assert Settings().detect_on == "host"
    assert Settings(detect_on="device").detect_on == "device"
    for wrong in ("cuda", True, None):
        with pytest.raises(InputRefusedError, match=r"detect_on is .*'host' or 'device'"):
            made(Settings, "detect_on", wrong)
