"""What a loss of power may leave of the index: whatever it is, the log answers as without one.

Each commit's states are tried in a process of its own, since a page that LMDB trusts and that
is wrong may end the process that reads it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from weightstore.settings import MIB
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_index import LmdbIndexFile
from weightstore.testing import totals
from weightstore.testing.index_crash_states import META_COUNT, PAGE_SIZE_BYTES, SECTOR_SIZE_BYTES
from weightstore.testing.index_power_loss import PHASES, Order

TIMEOUT_S = 110
FEW, MANY = 8, 300
UNION_COUNT_MIN = 2500
"""How many distinct states of all commits are tried in the long run at least."""
NAMES = [phase.name for phase in PHASES]
_PUT = """
import sys
from pathlib import Path
from weightstore.storage.index_file import Expected
from weightstore.storage.lmdb_index import LmdbIndexFile

file = LmdbIndexFile(Path(sys.argv[1]), size_bytes_max=1 << 24)
expected = Expected(b"state", None)
for number in range(3):
    many = {b"r%d" % one: bytes([number]) * 1000 for one in range(20)}
    assert file.put_many({b"state": b"%d" % number, **many}, expected=expected)
    expected = Expected(b"state", b"%d" % number)
    print(f"put {number}", flush=True)
"""
_TRACED = (
    "write,writev,pwrite64,pwritev,pwritev2,fsync,fdatasync,msync,utimensat,truncate,ftruncate"
)
_CALL = re.compile(r"\d+ +(\w+)\((.*)\) += (-?\d+)")


@dataclass(frozen=True)
class Tried:
    """What the process that tried the states has said.

    Attributes:
        states: Number and name, in order; of a process that died, the last one ended it.
        used_count: Of so many the index was used as it was.
        wrong: What was found.
        exit_code: 0, or how it ended.
        errors: What it wrote beside.
    """

    states: list[str]
    used_count: int
    wrong: list[str]
    exit_code: int
    errors: str

    @property
    def is_clean(self) -> bool:
        """Whether nothing was wrong, to the end."""
        return self.exit_code == 0 and not self.wrong


@dataclass(frozen=True)
class Call:
    """A system call on the data file."""

    name: str
    text: str
    result: int


def tried(name: str, order: Order, torn_count: int) -> Tried:
    """The states of a commit, tried in another process."""
    module = "weightstore.testing.index_power_loss"
    words = [sys.executable, "-m", module, str(NAMES.index(name)), order, str(torn_count)]
    ended = subprocess.run(words, timeout=TIMEOUT_S, check=False, capture_output=True, text=True)
    lines = ended.stdout.splitlines()
    assert lines[-1] == "end" or ended.returncode
    return Tried(
        states=[line for line in lines if line.startswith("state ")],
        used_count=lines.count("used"),
        wrong=[line for line in lines if line.startswith("wrong ")],
        exit_code=ended.returncode,
        errors=ended.stderr,
    )


def check(name: str, torn_count: int) -> set[int]:
    """Try the states of a commit; their numbers."""
    found = tried(name, Order.SYNCED, torn_count)
    assert found.is_clean, (found.exit_code, found.wrong[:5], found.states[-1:], found.errors)
    # As it was sealed after the commit it is used, and in most of these states it is not.
    assert found.used_count >= 1
    numbers = {int(state.split()[1]) for state in found.states}
    assert len(numbers) == len(found.states)
    return numbers


@pytest.mark.parametrize("name", NAMES)
def test_a_log_answers_as_without_an_index_after_a_loss_of_power(name: str) -> None:
    assert len(check(name, FEW)) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_log_answers_alike_in_many_more_torn_states(name: str, of_this_run: Path) -> None:
    """These are counted: the quick ones are among them, and two commits share some."""
    numbers = check(name, MANY)
    assert len(numbers) >= 60
    union = totals.union_when_complete(of_this_run, name, numbers, NAMES)
    if union is not None:
        assert len(union) >= UNION_COUNT_MIN
        totals.add("crash_states", len(union))


@pytest.mark.parametrize("name", NAMES)
def test_without_the_sync_before_the_meta_page_damage_would_be_sealed(name: str) -> None:
    """The check finds what it is there to find: damage, wrong answers, or a dead process."""
    found = tried(name, Order.UNSYNCED, 0)
    assert not found.is_clean
    assert found.exit_code or any("damage" in what for what in found.wrong)


@pytest.fixture(scope="module")
def puts(tmp_path_factory: pytest.TempPathFactory) -> list[list[Call]]:
    """What each put of a traced process does to the data file, in order."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode:
        pytest.skip("processes may not be traced here")
    folder = tmp_path_factory.mktemp("traced")
    words = ["strace", "-f", "-y", "-s", "16", "-o", str(folder / "calls")]
    words += ["-e", f"trace={_TRACED}", sys.executable, "-c", _PUT, str(folder / "index")]
    subprocess.run(words, check=True, capture_output=True, timeout=TIMEOUT_S)
    found: list[list[Call]] = [[]]
    for line in (folder / "calls").read_text(encoding="utf-8").splitlines():
        call = _CALL.match(line)
        if call is None:
            continue
        name, text, result = call.groups()
        if name == "write" and '"put ' in text:
            found.append([])
        elif "data.mdb" in text or name == "msync":
            found[-1].append(Call(name, text, int(result)))
    assert found.pop() == []
    return found


def test_pages_are_synced_before_the_meta_page_and_the_seal_comes_last(
    puts: list[list[Call]],
) -> None:
    """In each put, also in the one that makes the file: the states above are what it may leave."""
    assert len(puts) == 3
    for calls in puts:
        assert all(call.result >= 0 for call in calls)
        names = [call.name for call in calls]
        assert "msync" not in names
        *data, sync, meta, seal = [call for call in calls if "truncate" not in call.name]
        assert data
        assert all("write" in call.name for call in data)
        assert sync.name in {"fsync", "fdatasync"}
        assert meta.name == "pwrite64"
        assert int(meta.text.rpartition(", ")[2]) < META_COUNT * PAGE_SIZE_BYTES
        assert meta.result < SECTOR_SIZE_BYTES, "one sector, which the disk writes whole"
        # Its descriptor is another one, which syncs each write.
        assert meta.text.partition("<")[0] not in {call.text.partition("<")[0] for call in data}
        assert (seal.name, names[-1]) == ("utimensat", "utimensat")


def test_the_meta_page_is_written_through_a_descriptor_that_syncs(tmp_path: Path) -> None:
    """The flags of each descriptor of a data file, as the kernel says them."""
    file = LmdbIndexFile(tmp_path / "index", size_bytes_max=MIB)
    file.put_many({b"state": b"1"}, expected=Expected(b"state", None))
    data = (tmp_path / "index" / "data.mdb").resolve()
    flags = []
    for link in Path("/proc/self/fd").iterdir():
        if link.is_symlink() and link.resolve() == data:
            info = Path(f"/proc/self/fdinfo/{link.name}").read_text(encoding="ascii")
            flags.append(int(info.partition("flags:")[2].split()[0], 8))
    file.close()
    assert sorted(bool(each & os.O_DSYNC) for each in flags) == [False, True]
