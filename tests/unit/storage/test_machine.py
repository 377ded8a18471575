"""What a claim says about the process that made it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weightstore.errors import StoreClosedError
from weightstore.storage import machine


def test_the_boot_id_is_the_same_in_every_process() -> None:
    code = "from weightstore.storage import machine; print(machine.boot_id())"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == machine.boot_id() != ""


def test_a_kernel_that_tells_no_boot_id_gives_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_BOOT_ID", tmp_path / "missing")
    assert machine.boot_id() == ""


def test_host_and_process_are_those_of_the_system() -> None:
    assert machine.host_name() == os.uname().nodename
    assert machine.process_id() == os.getpid()


def test_what_another_process_made_is_refused_with_who_made_it() -> None:
    own = os.getpid()
    machine.refuse_fork(own, "this thing", "Make another one.")
    with pytest.raises(StoreClosedError, match="this thing belongs to process") as refused:
        machine.refuse_fork(own + 1, "this thing", "Make another one.")
    assert refused.value.do == "Make another one."
    assert refused.value.facts == {"owner_process": own + 1, "process": own}
