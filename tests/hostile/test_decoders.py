"""Whatever parses stored bytes refuses with a typed error, or decodes what the bytes say (P10)."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weightstore
from weightstore.errors import CorruptObjectError
from weightstore.settings import MIB
from weightstore.testing import totals
from weightstore.testing.fuzz import campaign
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.decoders import GROUPS, all_decoders, decoders_of
from weightstore.testing.fuzz.mutating import Form

PACKAGE = Path(weightstore.__file__).parent
PLACES = (
    "format",
    "codec",
    "storage",
    "layout",
    "ids.py",
    "receiver/host_agent",
    "receiver/host_files",
    "receiver/ranks",
)
DECODER_NAME = re.compile(r"(decode|decompress|parse|read|from_bytes)(_\w+)?\Z")
NO_DECODERS = {
    "storage.blobs:BlobStore.read_into": "hands bytes on as they are",
    "storage.local:LocalBlobStore.read_into": "hands bytes on as they are",
    "storage.memory:MemoryBlobStore.read_into": "hands bytes on as they are",
    "storage.linked_folder:LinkedFolder.read_file": "hands bytes on as they are",
    "storage.linked_folder:FilePatches.read": "hands bytes on as they are",
    "receiver.host_files.file_layout:read_file_header": "reads what `format` parses",
    "storage.folders:read_error": "makes an error of an error of the system",
}

DEFAULT_COUNT = 400
LONG_COUNT = 6_000
LONG_SEEDS = (1, 2)
PEAK_BYTES_MAX = 16 * MIB


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    return all_decoders(tmp_path_factory.mktemp("decoders"))


def public_functions(path: Path) -> Iterator[str]:
    """Functions and methods of a module that others may call."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef)
            )


def stated_decoders() -> set[str]:
    """Everything in the lower layers whose name says that it decodes."""
    found = set()
    for place in PLACES:
        for path in sorted((PACKAGE / place).rglob("*.py")) or [PACKAGE / place]:
            module = path.relative_to(PACKAGE).as_posix().removesuffix(".py").replace("/", ".")
            found |= {
                f"{module}:{name}"
                for name in public_functions(path)
                if DECODER_NAME.match(name.rpartition(".")[2])
            }
    return found


def test_the_table_holds_every_decoder(table: dict[str, Decoder]) -> None:
    stated = stated_decoders()
    assert len(stated) > 20
    covered = {name for decoder in table.values() for name in decoder.covers}
    assert stated - covered == set(NO_DECODERS)


def test_each_decoder_reaches_what_it_says_it_covers(table: dict[str, Decoder]) -> None:
    for decoder in table.values():
        called: set[str] = set()

        def note(frame: FrameType, event: str, _: object, called: set[str] = called) -> None:
            module = frame.f_globals.get("__name__", "")
            if event == "call" and module.startswith("weightstore."):
                name = module.removeprefix("weightstore.")
                called.add(f"{name}:{frame.f_code.co_qualname}")

        sys.setprofile(note)
        try:
            for data in decoder.seeds:
                decoder.decode(data)
        finally:
            sys.setprofile(None)
        assert set(decoder.covers) <= called, decoder.name


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_inputs_are_refused_or_decode_to_what_they_say(group: str, tmp_path: Path) -> None:
    input_count = 0
    for decoder in decoders_of(group, tmp_path):
        outcome = campaign.run(decoder, 0, int(DEFAULT_COUNT * decoder.share))
        assert bool(outcome.refused_count) is not decoder.is_hint, decoder.name
        input_count += outcome.input_count
    totals.add("fuzzed_inputs", input_count)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    number=st.integers(0, 50),
    head=st.binary(max_size=9),
    tail=st.binary(max_size=9),
)
@pytest.mark.parametrize("group", GROUPS)
def test_any_bytes_around_damaged_inputs_are_judged_too(
    table: dict[str, Decoder], group: str, seed: int, number: int, head: bytes, tail: bytes
) -> None:
    decoders = list(table.values())
    for decoder in decoders[GROUPS.index(group) :: len(GROUPS)]:
        damaged = campaign.damaged_input(decoder, seed, number)
        campaign.judge(decoder, head + damaged + tail)
        campaign.judge(decoder, head + tail)


def test_no_input_makes_a_decoder_take_much_memory(table: dict[str, Decoder]) -> None:
    tracemalloc.start()
    try:
        for decoder in table.values():
            campaign.run(decoder, 3, 0)
            for data in campaign.damaged(decoder, 3, int(60 * decoder.share)):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                campaign.judge(decoder, data)
                taken = tracemalloc.get_traced_memory()[1] - before
                assert taken < PEAK_BYTES_MAX, f"{decoder.name}: {campaign.shown(data)}"
    finally:
        tracemalloc.stop()


def fuzz_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weightstore.testing.fuzz", *arguments],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_without_memory_to_spare_decodes_all_the_same() -> None:
    done = fuzz_process("--group", "json", "--group", "binary", "--count", "30", "--seed", "5")
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes: dict[str, list[int]] = json.loads(done.stdout)
    assert all(sum(counts) > 0 for counts in outcomes.values())


def test_the_bound_on_memory_binds() -> None:
    code = (
        "from weightstore.testing.fuzz.__main__ import bound_memory\n"
        "bound_memory(1 << 25)\n"
        "bytes(1 << 24)\n"
        "print('so far')\n"
        "bytes(1 << 26)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == "so far\n"
    assert "MemoryError" in done.stderr


@pytest.mark.slow
def test_hundreds_of_thousands_of_inputs_in_little_memory() -> None:
    def run(seed: int) -> subprocess.CompletedProcess[str]:
        return fuzz_process("--count", str(LONG_COUNT), "--seed", str(seed))

    with ThreadPoolExecutor(len(LONG_SEEDS)) as pool:
        done = list(pool.map(run, LONG_SEEDS))
    input_count = 0
    for one in done:
        assert one.returncode == 0, one.stderr[-3000:]
        outcomes: dict[str, list[int]] = json.loads(one.stdout)
        assert all(decoded for decoded, _ in outcomes.values()), outcomes
        input_count += sum(sum(counts) for counts in outcomes.values())
    assert input_count >= 200_000
    totals.add("fuzzed_inputs", input_count)


def decoder_of(decode: object) -> Decoder:
    assert callable(decode)
    return Decoder("test", (b'{"a":1}', b"[2]"), decode, Form.JSON, ())


def test_an_error_without_a_type_is_reported_with_its_input() -> None:
    def decode(data: bytes) -> None:
        json.loads(data)["a"]

    with pytest.raises(AssertionError, match=r"test: \w+: .* for \d+ bytes beginning with"):
        campaign.run(decoder_of(lambda data: None if data == b"[2]" else decode(data)), 0, 100)


def test_a_value_that_is_not_what_the_bytes_say_is_reported() -> None:
    good = {b'{"a":1}', b"[2]"}

    def decode(data: bytes) -> None:
        assert data in good

    with pytest.raises(AssertionError, match="AssertionError"):
        campaign.run(decoder_of(decode), 0, 100)


def test_a_good_input_that_is_refused_is_reported() -> None:
    def decode(data: bytes) -> None:
        raise CorruptObjectError(f"{len(data)} bytes")

    with pytest.raises(CorruptObjectError):
        campaign.run(decoder_of(decode), 0, 1)


def test_a_decoder_that_hangs_is_reported() -> None:
    class Slow:
        now_s = 0.0

        def monotonic_s(self) -> float:
            self.now_s += campaign.INPUT_TIME_S_MAX + 1
            return self.now_s

        def unix_ms(self) -> int:
            return 0

        def sleep(self, duration_s: float, /) -> None:
            raise NotImplementedError

    with pytest.raises(AssertionError, match=r"s for \d+ bytes"):
        campaign.run(decoder_of(len), 0, 3, clock=Slow())


def test_the_same_seed_gives_the_same_inputs(table: dict[str, Decoder]) -> None:
    for decoder in table.values():
        inputs = list(campaign.damaged(decoder, 7, 20))
        assert inputs == list(campaign.damaged(decoder, 7, 20))
        assert len(set(inputs)) > 5
