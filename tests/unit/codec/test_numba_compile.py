"""Compiled kernels: they release the GIL, and no cache can stop them."""

from __future__ import annotations

import errno
import importlib.util
import linecache
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import caching
from numba.core.dispatcher import Dispatcher

from weightstore.codec import (
    numba_bits,
    numba_cast,
    numba_compile,
    numba_detect,
    numba_lanes,
    numba_live,
    numba_sample,
    numba_streams,
)
from weightstore.codec.numba_compile import compiled

MODULES = [numba_cast, numba_detect, numba_lanes, numba_live, numba_sample, numba_streams]
SOURCE = """
from weightstore.codec.numba_compile import compiled

@compiled
def total(words):
    result = 0
    for word in words:
        result += word
    return result
"""


def dispatchers() -> dict[str, Any]:
    return {
        f"{module.__name__}.{name}": value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher)
    }


def load(path: Path, name: str) -> ModuleType:
    # Python's own caches go by time and size too; they are not what is tested here.
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
    linecache.clearcache()
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def test_every_kernel_releases_the_gil() -> None:
    found = dispatchers()
    assert len(found) >= 15
    assert [name for name, kernel in found.items() if not kernel.targetoptions.get("nogil")] == []


def test_a_kernel_without_a_place_for_its_cache_is_compiled_anyway() -> None:
    names: dict[str, Any] = {}
    exec(compile(SOURCE, "<no file>", "exec"), names)
    assert names["total"](np.arange(10)) == 45


@pytest.fixture(autouse=True)
def cache_beside_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")


def cached(folder: Path) -> list[Path]:
    return sorted((folder / "__pycache__").glob("*.nbc"))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"garbage"], ids=["empty", "zeros", "text"])
def test_a_torn_cache_file_is_as_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "kernel_in_a_file.py"
    path.write_text(SOURCE)
    assert load(path, "first").total(np.arange(10)) == 45
    (file,) = cached(tmp_path)
    file.write_bytes(content)
    assert load(path, "second").total(np.arange(10)) == 45
    # It was mended, too.
    mended = load(path, "third").total
    assert mended(np.arange(10)) == 45
    assert sum(mended.stats.cache_hits.values()) == 1


def test_code_for_other_arguments_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "kernel_for_two.py"
    path.write_text(SOURCE)
    whole, halves = np.arange(10), np.arange(10) / 2
    load(path, "whole").total(whole)
    (first,) = cached(tmp_path)
    load(path, "halves").total(halves)
    (second,) = (file for file in cached(tmp_path) if file != first)
    second.write_bytes(first.read_bytes())
    assert load(path, "again").total(halves) == 22.5


def test_processes_that_compile_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "kernel_in_a_race.py"
    path.write_text(SOURCE)
    program = (
        "import importlib.util, sys, numpy as np\n"
        f"spec = importlib.util.spec_from_file_location('race', {str(path)!r})\n"
        "race = importlib.util.module_from_spec(spec)\n"
        "sys.modules['race'] = race\n"
        "spec.loader.exec_module(race)\n"
        "words = np.arange(10).astype(sys.argv[1])\n"
        "sys.exit(race.total(words) != 45)"
    )
    dtypes = ["u1", "u2", "i4", "f8"]
    for _ in range(2):
        running = [subprocess.Popen([sys.executable, "-c", program, dtype]) for dtype in dtypes]
        assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert len(cached(tmp_path)) == len(dtypes)


def test_a_cache_of_other_source_is_not_used(tmp_path: Path) -> None:
    # Same size, same time: what numba itself looks at does not tell the two apart.
    path = tmp_path / "kernel_that_changes.py"
    for name, start in (("one", 1), ("two", 2)):
        path.write_text(SOURCE.replace("result = 0", f"result = {start}"))
        os.utime(path, (1_000_000_000, 1_000_000_000))
        assert load(path, name).total(np.arange(10)) == 45 + start


def test_a_cache_is_used_when_nothing_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kernel_that_stays.py"
    path.write_text(SOURCE)
    load(path, "same").total(np.arange(10))
    again = load(path, "same").total
    assert again(np.arange(10)) == 45
    assert sum(again.stats.cache_hits.values()) == 1
    # A constant of a shared module is part of what the machine code was made of.
    monkeypatch.setattr(numba_compile, "SHARED_MODULES", (numba_compile,))
    other = load(path, "same").total
    assert other(np.arange(10)) == 45
    assert sum(other.stats.cache_hits.values()) == 0


def test_a_full_disk_does_not_stop_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", save)
    path = tmp_path / "kernel_on_a_full_disk.py"
    path.write_text(SOURCE)
    assert load(path, "full").total(np.arange(10)) == 45
    assert cached(tmp_path) == []


def test_kernels_compile_to_what_the_vector_instructions_say() -> None:
    @compiled
    def count_and_place(word: np.uint64) -> tuple[np.uint64, np.uint64]:
        return numba_bits.bit_count(word), numba_bits.lowest_bit(word)

    for word in (0, 1, 2, 3, 1 << 63, (1 << 64) - 1):
        lowest = (word & -word).bit_length() - 1 if word else 64
        found = [int(result) for result in count_and_place(np.uint64(word))]
        assert found == [word.bit_count(), lowest]


def test_errors_of_a_kernel_itself_are_not_swallowed() -> None:
    @compiled
    def refuse(word: int) -> int:
        if word:
            raise ValueError("no")
        return word

    assert refuse(0) == 0
    with pytest.raises(ValueError, match="no"):
        refuse(1)
