"""`weightstore host` as a process: it serves until it is ended, and says what it did."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from weightstore.cli.commands_host import _ending_signals
from weightstore.cli.exit_codes import ExitCode
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run
from weightstore.testing.open_files import all_files_closed
from weightstore.testing.store_lab import LAB_SETTINGS

WAIT_S = 60.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        weights = np.zeros(5000, np.float32)
        store.put_step(0, {"w": weights})
        weights[:50] = 1
        store.put_step(1, {"w": weights})
    return tmp_path / "store"


@contextmanager
def hosting(place: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, once its socket is there."""
    command = [sys.executable, "-m", "weightstore", "host", str(place), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], WAIT_S)[0], "it says nothing"
    return process.stdout.readline().decode()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_ended(run: Run, place: Path, ending: signal.Signals) -> None:
    socket = place.with_name("agent")
    with hosting(place, "--socket", str(socket), "--memory", "64 MiB") as process:
        assert line_of(process) == f"serving {place} at {socket}, up to 64.0 MiB\n"
        live = np.zeros(5000, np.float32)
        with WeightStore.open(place, settings=LAB_SETTINGS) as store:
            receiver = store.receiver(
                {"w": live.view(np.uint32)},
                settings=ReceiverSettings(agent_socket=socket, agent_answer_s=WAIT_S),
            )
            receiver.refit(1)
            report = receiver.refit(2)
            assert (report.way.value, report.reason, report.size_bytes.wire) == ("change", "", 0)
            assert np.count_nonzero(live) == 50
        found = run("host", place, "--socket", socket, "--stats", "--json").json
        assert (found["decoded_piece_count"], found["served_piece_count"]) == (1, 1)
        assert "1 piece of 1 pack" in run("host", place, "--socket", socket, "--stats").out
        assert run("host", place, "--socket", socket).code == ExitCode.CONFLICT
        process.send_signal(ending)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (0, b"")
    assert "1 piece of 1 pack" in out.decode()
    assert not socket.exists()


def test_as_json_it_says_one_document_at_its_end(place: Path) -> None:
    socket = place.with_name("agent")
    with hosting(place, "--socket", str(socket), "--json") as process:
        store = WeightStore.open(place, settings=LAB_SETTINGS)
        for _ in range(int(WAIT_S / 0.05)):
            if socket.exists():
                break
            select.select([], [], [], 0.05)
        assert socket.exists()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
        store.close()
    assert json.loads(out)["decoded_pack_count"] == 0


_AT_THE_NTH_STEP = """
import os, signal, sys, threading
from weightstore.cli.commands_host import _ending_signals

seen = nth = 0

def profile(*_):
    global seen
    seen += 1
    if seen == nth:
        signal.raise_signal(signal.SIGTERM)
"""


_ENDS_IN_THE_MIDDLE = (
    _AT_THE_NTH_STEP
    + """
for nth in range(20):
    seen = 0
    with _ending_signals() as wait_for_one:
        # Where the wait has fewer steps than that, the signal comes while it blocks.
        late = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
        late.start()
        sys.setprofile(profile)
        wait_for_one()
        sys.setprofile(None)
        late.join()
print("ended each time", seen)
"""
)


_ENDS_BEFORE = (
    _AT_THE_NTH_STEP
    + """
def begin_and_wait():
    signal.alarm(20)
    sys.setprofile(profile)
    with _ending_signals() as wait_for_one:
        if seen >= nth:
            wait_for_one()
        os._exit(0 if seen >= nth else 9)

ended = []
while 9 not in ended:
    nth += 1
    child = os.fork()
    if child == 0:
        begin_and_wait()
    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(sorted(set(ended)))
"""
)


def said_by(script: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_signal_ends_it_at_whichever_step_of_the_wait_it_comes() -> None:
    assert said_by(_ENDS_IN_THE_MIDDLE).startswith("ended each time")


def test_a_signal_that_comes_while_it_sets_up_ends_it_too() -> None:
    """By the signal's own action, or by the wait; 9 says that there were no more steps."""
    assert said_by(_ENDS_BEFORE) == f"[{-signal.SIGTERM}, 0, 9]\n"


def test_what_cannot_be_set_up_leaves_nothing_open() -> None:
    with (
        all_files_closed(),
        ThreadPoolExecutor(1) as pool,
        pytest.raises(ValueError, match="main thread"),
    ):
        pool.submit(lambda: _ending_signals().__enter__()).result()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--socket", "agent", "--memory", "lots"), ExitCode.USAGE),
        (("--socket", "agent", "--memory", "0"), ExitCode.USAGE),
        (("--socket", "a" * 200), ExitCode.REFUSED),
        (("--socket", "agent", "--stats"), ExitCode.UNAVAILABLE),
        (("--socket", "nowhere/agent"), ExitCode.UNAVAILABLE),
        ((), ExitCode.USAGE),
    ],
)
def test_what_cannot_be_is_said(
    run: Run,
    place: Path,
    words: tuple[str, ...],
    code: ExitCode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place.parent)
    assert run("host", place, *words).code == code


def test_a_file_at_the_path_stays(run: Run, place: Path) -> None:
    path = place.with_name("file")
    path.write_text("mine")
    assert run("host", place, "--socket", path).code == ExitCode.REFUSED
    assert path.read_text() == "mine"
