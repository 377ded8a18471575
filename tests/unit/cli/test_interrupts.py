"""Ctrl-C and a closed pipe end a command quietly, with a code and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from weightstore.cli import main
from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore


def test_an_interrupt_says_what_it_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    WeightStore.open(tmp_path, create=True).close()

    def interrupted(*_words: object) -> WeightStore:
        raise KeyboardInterrupt

    monkeypatch.setattr(WeightStore, "open", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["log", str(tmp_path)])
    assert ended.value.code == ExitCode.INTERRUPTED
    streams = capsys.readouterr()
    assert "interrupted; what was committed stays" in streams.err
    assert "Traceback" not in streams.err


_WAITS = """
import sys
from weightstore.cli import main
from weightstore.store import WeightStore

def log(self):
    print("ready", file=sys.stderr, flush=True)
    while True:
        sys.stdin.readline()

WeightStore.log = log
main(["log", sys.argv[1]])
"""


def test_a_real_interrupt_ends_with_its_code(tmp_path: Path) -> None:
    WeightStore.open(tmp_path, create=True).close()
    with subprocess.Popen(
        [sys.executable, "-c", _WAITS, tmp_path],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "interrupted; what was committed stays" in told
    assert "Traceback" not in told


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
    assert ended.returncode == ExitCode.FAILED
