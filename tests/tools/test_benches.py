"""The benches run at small sizes, their results are reports, and the page is made of them."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tools.bench import modelexpress_peer, published_formats, refit_cases
from tools.bench.bench import Bench, Findings, Options, run
from tools.bench.benchmarks_page import page
from tools.bench.machine import this_machine
from tools.bench.report import Missing, Report, Row, Side, against, alone, at_least, at_most, number
from tools.bench.run_all import BENCHES, PAGE, RESULTS, stored_reports
from tools.bench.weights import normal_weights

ROOT = Path(__file__).parents[2]
CODEC = "codec"
"""Runs in a process of its own: it may add the peer's folder to the path."""


def report(*rows: Row, missing: tuple[Missing, ...] = ()) -> Report:
    return Report(
        bench="example",
        summary="An example.",
        size="full",
        load=0.5,
        machine=this_machine(),
        rows=rows,
        missing=missing,
    )


def bench_in_process(name: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "bench" / f"{name}.py"), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True)


class TestSmallRuns:
    @pytest.mark.parametrize("name", [name for name in BENCHES if name != CODEC])
    def test_a_bench_writes_a_report_with_rows(self, name: str, tmp_path: Path) -> None:
        bench = importlib.import_module(f"tools.bench.{name}").BENCH
        path = tmp_path / "report.json"
        assert run(bench, ["--size", "small", "--turns", "1", "--json", str(path)]) == 0
        found = Report.read(path)
        assert (found.bench, found.size) == (name, "small")
        assert any(row.target for row in found.rows)
        assert {each.reason for each in found.missing} <= {modelexpress_peer.NOT_INSTALLED}

    def test_the_codec_bench_runs_as_a_script_with_or_without_the_peer(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "report.json"
        done = bench_in_process(CODEC, ["--size", "small", "--turns", "1", "--json", str(path)])
        assert done.returncode == 0, done.stderr
        found = Report.read(path)
        with_peer = [row for row in found.rows if row.peer_name == "modelexpress 0.7.0"]
        assert len(with_peer) + len(found.missing) == 4
        assert all("tools/bench/setup" in each.reason for each in found.missing)

    def test_run_all_keeps_results_and_writes_nothing_else(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "tools.bench.run_all", "startup", "--size", "small"]
        before = PAGE.read_bytes() if PAGE.exists() else b""
        subprocess.run([*command, "--folder", str(tmp_path)], check=True, cwd=ROOT)
        assert [each.bench for each in stored_reports(tmp_path)] == ["startup"]
        assert (PAGE.read_bytes() if PAGE.exists() else b"") == before

    def test_every_bench_is_among_those_that_run_all_runs(self) -> None:
        found = {
            path.stem
            for path in (ROOT / "tools" / "bench").glob("*.py")
            if "\nBENCH = Bench(" in path.read_text(encoding="utf-8")
        }
        assert found == set(BENCHES)


class TestReports:
    def test_ratios_are_taken_turn_by_turn(self) -> None:
        row = against("it", "ms", [2.0, 9.0, 4.0], "peer", [1.0, 3.0, 4.0])
        assert row.ratio is not None
        assert (row.ratio.median, row.ratio.least, row.ratio.most) == (2.0, 1.0, 3.0)

    @pytest.mark.parametrize(
        ("row", "is_missed"),
        [
            (alone("it", "ms", [3.0], target=at_most(3, of=Side.MEASURED)), False),
            (alone("it", "ms", [3.1], target=at_most(3, of=Side.MEASURED)), True),
            (against("it", "GB/s", [5.0], "peer", [1.0], target=at_least(5)), False),
            (against("it", "GB/s", [4.9], "peer", [1.0], target=at_least(5)), True),
            (alone("it", "ms", [1e9]), False),
        ],
    )
    def test_a_target_speaks_of_the_median(self, row: Row, is_missed: bool) -> None:  # noqa: FBT001
        assert row.is_missed == is_missed

    def test_json_comes_back_as_it_was_and_nothing_else_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        written = report(against("it", "GB/s", [4.9], "peer", [1.0], target=at_least(5)))
        written.write(path)
        assert Report.read(path) == written
        path.write_text(path.read_text(encoding="utf-8").replace('"load"', '"lead"'))
        with pytest.raises(ValidationError):
            Report.read(path)

    @pytest.mark.parametrize(
        ("value", "text"),
        [(12_345.6, "12,346"), (12.34, "12.3"), (1.2344, "1.234"), (0.1234, "0.123"), (3.0, "3")],
    )
    def test_numbers_have_three_or_four_digits(self, value: float, text: str) -> None:
        assert number(value) == text


class TestCheck:
    @staticmethod
    def bench(*rows: Row, missing: bool = False) -> Bench:
        def measure(_options: Options, findings: Findings) -> None:
            findings.add(*rows)
            if missing:
                findings.leave_out("peer row", "peer not installed: run tools/bench/setup")

        return Bench("example", "An example.", measure)

    def test_a_missed_target_is_exit_code_1(self, capsys: pytest.CaptureFixture[str]) -> None:
        bench = self.bench(alone("speed", "GB/s", [1.0], target=at_least(2, of=Side.MEASURED)))
        assert run(bench, []) == 0
        assert run(bench, ["--check"]) == 1
        assert "speed: at least 2 GB/s, found 1" in capsys.readouterr().err

    def test_a_missing_peer_is_exit_code_1_and_says_what_to_do(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bench = self.bench(missing=True)
        assert run(bench, []) == 0
        assert run(bench, ["--check"]) == 1
        assert "run tools/bench/setup" in capsys.readouterr().err


class TestPage:
    def test_the_page_in_docs_is_made_of_the_stored_results(self) -> None:
        reports = stored_reports(RESULTS)
        assert [each.bench for each in reports] == list(BENCHES)
        assert {each.size for each in reports} == {"full"}
        assert PAGE.read_text(encoding="utf-8") == page(reports)

    def test_misses_are_named_first_with_their_notes(self) -> None:
        row = alone("speed", "GB/s", [1.0], target=at_least(2, of=Side.MEASURED), note="why")
        left_out = Missing(name="peer row", reason="not installed")
        text = page([report(row, missing=(left_out,))])
        missed = text.partition("## Missed targets")[2].partition("## example")[0]
        assert "- speed: at least 2 GB/s, found 1 GB/s. Note: why." in missed
        assert "- peer row: not installed." in missed


class TestPublishedFormats:
    @pytest.mark.parametrize("gap", [0, 1, 65_534, 65_535, 65_536, 131_070, 200_000])
    def test_both_come_back_bit_for_bit_over_any_gap(self, gap: int) -> None:
        old = np.random.default_rng(gap).integers(0, 1 << 16, gap + 3, np.uint16)
        new = old.copy()
        new[gap] ^= 1
        new[gap + 2] ^= 0x8000
        target = old.copy()
        published_formats.apply_u16_xor(published_formats.encode_u16_xor(old, new), target)
        assert np.array_equal(target, new)
        target = old.copy()
        published_formats.apply_byte_xor(published_formats.encode_byte_xor(old, new), target)
        assert np.array_equal(target, new)


def test_a_receiver_that_does_not_hold_the_version_ends_the_bench() -> None:
    weights = normal_weights({"w": (4, 8)})
    arrays = {"w": weights["w"].units.copy()}
    refit_cases.end_unless_same(arrays, weights, "it")
    refit_cases.end_unless_same({"w": arrays["w"][8:16]}, weights, "it", slice(8, 16))
    arrays["w"][3] ^= 1
    with pytest.raises(SystemExit, match="it does not hold version 2"):
        refit_cases.end_unless_same(arrays, weights, "it")


def test_a_machine_names_the_kernel_by_major_and_minor_and_no_build() -> None:
    assert re.fullmatch(r"\w+ \d+\.\d+ \w+", this_machine().system)
