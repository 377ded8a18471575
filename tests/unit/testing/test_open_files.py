"""What is left open is found, whatever the garbage collector does meanwhile."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from weightstore.testing.open_files import all_files_closed


def test_a_file_that_is_closed_is_none() -> None:
    with all_files_closed(), Path(os.devnull).open("rb"):
        pass
    assert gc.isenabled()


def test_a_file_that_is_left_open_is_found() -> None:
    with pytest.raises(AssertionError, match="descriptors are left"), all_files_closed():
        file = os.open(os.devnull, os.O_RDONLY)
    os.close(file)
    assert gc.isenabled()


def test_the_collector_does_not_help() -> None:
    with pytest.raises(AssertionError, match="descriptors are left"), all_files_closed():
        leave_a_file_in_a_cycle()
    with pytest.warns(ResourceWarning):
        gc.collect()


def test_what_others_have_left_is_closed_before() -> None:
    leave_a_file_in_a_cycle()
    with pytest.warns(ResourceWarning), all_files_closed():
        gc.collect()


def leave_a_file_in_a_cycle() -> None:
    holder: list[object] = [Path(os.devnull).open("rb")]  # noqa: SIM115 -- left on purpose
    holder.append(holder)
