"""The order of system calls in a real put, as the kernel sees them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from weightstore.format.keys import log_key
from weightstore.ids import Slot

_PUT = """
import sys
from pathlib import Path
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.trainer_lab import TrainerLab, small_weights

lab = TrainerLab(LocalBlobStore(Path(sys.argv[1]), create=True)).create()
with lab.trainer() as trainer:
    version = trainer.put_step(0, small_weights()).result()
    print(f"acknowledged {version}", flush=True)
"""
_CALL = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
VERSION_SLOT = Slot(2)  # after `init` and the claim


@dataclass(frozen=True)
class Seen:
    """A system call: its name, what it was made on, and the lines it began and ended in."""

    name: str
    text: str
    begin: int
    end: int


def traced(store: Path) -> list[Seen]:
    """The calls of a process that puts one version.

    `-f` follows threads, so a call may end some lines after it began.
    """
    out = store.with_name("strace")
    subprocess.run(
        [
            *("strace", "-f", "-y", "-s", "4000", "-o", str(out)),
            *("-e", "trace=fsync,link,linkat,rename,renameat2,write"),
            *(sys.executable, "-c", _PUT, str(store)),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    begun: dict[str, tuple[int, str]] = {}
    seen: list[Seen] = []
    for line, text in enumerate(out.read_text(encoding="utf-8", errors="replace").splitlines()):
        found = _CALL.match(text)
        if found is None:
            continue
        thread, resumed, name, rest = found.groups()
        if resumed:
            begin, first = begun.pop(thread)
            seen.append(Seen(resumed, first + rest, begin, line))
        elif rest.endswith("<unfinished ...>"):
            begun[thread] = (line, rest)
        else:
            seen.append(Seen(name, rest, line, line))
    return seen


def can_trace() -> bool:
    """Whether processes may be traced here at all."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode == 0


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[Seen]:
    if not can_trace():
        pytest.skip("there is no strace here, or processes may not be traced")
    return traced(tmp_path_factory.mktemp("traced") / "store")


def one(calls: list[Seen], name: str, text: str) -> Seen:
    """The only call of a name with a text in it."""
    found = [call for call in calls if call.name == name and text in call.text]
    assert len(found) == 1, found
    return found[0]


def test_bytes_then_name_then_folder_then_acknowledgement(calls: list[Seen]) -> None:
    record = log_key(VERSION_SLOT).removeprefix("log/")
    link = one(calls, "linkat", f'"{record}"')
    assert link.text.endswith("= 0")
    acknowledged = one(calls, "write", "acknowledged 1")
    source = re.search(r'"/proc/self/fd/(\d+)"', link.text)
    assert source is not None
    file = f"{source[1]}<"
    bytes_synced = [
        call
        for call in calls
        if call.name == "fsync" and call.text.startswith(file) and "/log/#" in call.text
    ]
    names_synced = [call for call in calls if call.name == "fsync" and "/store/log>)" in call.text]
    written = [
        call
        for call in calls
        if call.name == "write" and call.text.startswith(file) and "/log/#" in call.text
    ]
    assert any(
        write.end < sync.begin and sync.end < link.begin
        for write in written
        for sync in bytes_synced
        if '\\"kind\\":\\"version\\"' in write.text
    )
    assert any(link.end < sync.begin and sync.end < acknowledged.begin for sync in names_synced)


def test_what_a_record_names_is_durable_before_it(calls: list[Seen]) -> None:
    link = one(calls, "linkat", f'"{log_key(VERSION_SLOT).removeprefix("log/")}"')
    for folder in ("manifests", "anchors"):
        named = [
            call for call in calls if call.name == "linkat" and f"/store/{folder}/" in call.text
        ]
        last = max(call.end for call in named if "~tmp-" not in call.text)
        synced = [
            call for call in calls if call.name == "fsync" and f"/store/{folder}/" in call.text
        ]
        assert any(last < call.begin and call.end < link.begin for call in synced)
