"""`weightstore follow`: what it prints, how it ends, and that it goes on where it was."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run
from weightstore.testing.store_lab import tree
from weightstore.testing.trainer_lab import changed, small_weights

WAIT_S = 60.0

# A job in the background of a shell inherits interrupts that are ignored.
_INTERRUPTIBLE = """
import signal, sys
from weightstore.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main(sys.argv[1:])
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[WeightStore]:
    with WeightStore.open(tmp_path / "store", create=True) as opened:
        opened.put_step(1, small_weights())
        yield opened


def expected(store: WeightStore, tmp_path: Path, version: int) -> dict[str, bytes]:
    store.export(version, tmp_path / f"export-{version}")
    return tree(tmp_path / f"export-{version}")


def test_once_brings_a_directory_to_the_newest_version(
    run: Run, store: WeightStore, tmp_path: Path
) -> None:
    words = ("follow", tmp_path / "store", tmp_path / "live", "--once")
    ran = run(*words)
    assert (ran.code, ran.err) == (ExitCode.OK, "")
    assert ran.out.startswith("version 1  full  ")
    store.put_step(2, changed(small_weights(), 1))
    ran = run(*words)
    assert ran.code == ExitCode.OK
    found, line = ran.out.splitlines()
    assert found == "version 1 is there: nothing was cut, every byte was looked at"
    assert line.startswith("version 2  change  ")
    assert re.search(r"the link was away for \d+\.\d{3} s$", line)
    assert tree((tmp_path / "live").resolve()) == expected(store, tmp_path, 2)


def test_json_is_a_document_a_line(run: Run, store: WeightStore, tmp_path: Path) -> None:
    words = ("follow", tmp_path / "store", tmp_path / "live", "--once", "--json")
    run(*words)
    store.put_step(2, changed(small_weights(), 1))
    (tmp_path / ".live.weightstore/state").write_bytes(b"")
    found, report = map(json.loads, run(*words).out.splitlines())
    assert (found["found"], found["written_again"], bool(found["reason"])) == (None, False, True)
    assert (report["version"], report["way"], report["base"]) == (2, "full", None)
    assert report["reason"] == found["reason"]
    assert report["total_s"] > 0
    assert report["directory"] == str(tmp_path / "live")


def test_what_cannot_be_followed_ends_with_its_code(
    run: Run, store: WeightStore, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    assert run("follow", tmp_path / "store", tmp_path / "mine").code == ExitCode.REFUSED
    assert run("follow", tmp_path / "no", tmp_path / "live", "--once").code == ExitCode.NOT_FOUND
    active = run("follow", tmp_path / "store", tmp_path / "live", "--once", "--mode", "active")
    assert active.code == ExitCode.NOT_FOUND
    assert run("follow", tmp_path / "store", tmp_path / "x", "--poll", "0").code == ExitCode.USAGE
    with store.host_files(tmp_path / "live"):
        ran = run("follow", tmp_path / "store", tmp_path / "live")
        assert ran.code == ExitCode.CONFLICT
        assert "follows into" in ran.err


def test_the_active_version_is_followed(run: Run, store: WeightStore, tmp_path: Path) -> None:
    store.put_step(2, changed(small_weights(), 1))
    store.activate(1)
    words = ("follow", tmp_path / "store", tmp_path / "live", "--once", "--mode", "active")
    assert run(*words).out.startswith("version 1  full")


def test_it_goes_on_until_it_is_interrupted_and_leaves_a_whole_version(
    store: WeightStore, tmp_path: Path
) -> None:
    words = ["follow", str(tmp_path / "store"), str(tmp_path / "live"), "--poll", "0.05"]
    with subprocess.Popen(
        [sys.executable, "-u", "-c", _INTERRUPTIBLE, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        ends = threading.Timer(WAIT_S, process.kill)
        ends.start()
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("version 1  full")
        store.put_step(2, changed(small_weights(), 1))
        assert process.stdout.readline().startswith("version 2  change")
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(WAIT_S) == ExitCode.INTERRUPTED
        ends.cancel()
    assert "interrupted" in said
    assert "Traceback" not in said
    assert tree((tmp_path / "live").resolve()) == expected(store, tmp_path, 2)
