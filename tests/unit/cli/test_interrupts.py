"""Ctrl-C and a closed pipe end a command quietly, with a code and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from weightstore.cli import main
from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore


def test_an_interrupt_says_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    WeightStore.open(tmp_path, create=True).close()

    def interrupted(*_words: object, **_more: object) -> WeightStore:
        raise KeyboardInterrupt

    monkeypatch.setattr(WeightStore, "open", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["log", str(tmp_path)])
    assert ended.value.code == ExitCode.INTERRUPTED
    streams = capsys.readouterr()
    assert "interrupted; what was committed stays" in streams.err
    assert "Traceback" not in streams.err


# The children wait in short sleeps: an interrupt that comes after the interpreter has looked for
# one, but before a wait has begun, is seen when that wait is over.
_WAITS = """
import signal, sys, time
from weightstore.cli import main
from weightstore.store import WeightStore

# A job in the background of a shell inherits interrupts that are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

def log(self):
    print("ready", file=sys.stderr, flush=True)
    for _ in range(600):
        time.sleep(0.05)
    raise AssertionError("the interrupt did not come")

WeightStore.log = log
main(["log", sys.argv[1]])
"""


def test_a_real_interrupt_ends_with_its_code(tmp_path: Path) -> None:
    WeightStore.open(tmp_path, create=True).close()
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS, tmp_path],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        told = process.stderr.read()
    assert process.returncode == ExitCode.INTERRUPTED
    assert "interrupted; what was committed stays" in told
    assert "Traceback" not in told


_LOADS = """
import importlib.abc, runpy, signal, sys, time

signal.signal(signal.SIGINT, signal.default_int_handler)
blocked, entry = sys.argv[1:]

class Blocking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == blocked:
            print("ready", file=sys.stderr, flush=True)
            for _ in range(600):
                time.sleep(0.05)
            raise AssertionError("the interrupt did not come")

sys.meta_path.insert(0, Blocking())
if entry == "module":
    sys.argv[1:] = ["log", "nowhere"]
    runpy.run_module("weightstore", run_name="__main__", alter_sys=True)
else:
    from weightstore.cli import main
    sys.exit(main(["log", "nowhere"]))
"""


@pytest.mark.parametrize("entry", ["module", "script"])
@pytest.mark.parametrize(
    "loading",
    ["weightstore.cli.app", "typer", "rich", "weightstore.store", "numpy", "pydantic", "zstandard"],
)
def test_an_interrupt_while_the_command_still_loads_is_one_line(loading: str, entry: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _LOADS, loading, entry],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        process.wait(timeout=60)
        said, told = process.stdout.read(), process.stderr.read()
    assert process.returncode == ExitCode.INTERRUPTED
    assert told == "interrupted; nothing was begun\n"
    assert said == ""


def test_whoever_ignores_interrupts_goes_on_ignoring_them() -> None:
    seen: list[object] = []

    def handler(number: int, _frame: object) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(SystemExit):
            main(["--help"])
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == []


def test_a_command_in_a_thread_leaves_signals_alone() -> None:
    ended: list[object] = []

    def work() -> None:
        try:
            main(["--help"])
        except SystemExit as end:
            ended.append(end.code)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert ended == [ExitCode.OK]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("words", [("log",), ("log", "--json"), ("show",)])
def test_a_reader_that_went_away_causes_no_traceback(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    WeightStore.open(tmp_path, create=True).close()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "weightstore", words[0], tmp_path, *words[1:]],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode == ExitCode.BROKEN_PIPE
