"""Numbers, times and tables for people."""

from __future__ import annotations

import json

import pytest

from weightstore.cli import output
from weightstore.cli.output import progress_bars, size_text, time_text
from weightstore.errors import StepOrderError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (12_900_000, "12.3 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_are_readable(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_times_are_utc() -> None:
    assert time_text(0) == "1970-01-01 00:00:00"
    assert time_text(1_700_000_000_999) == "2023-11-14 22:13:20"
    assert time_text(2**53) == f"{2**53} ms"


def test_errors_are_for_people_or_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    error = StepOrderError("step [3] is low", do="Put 4.", facts={"step": 3, "names": ("a", "b")})
    output.print_error(error, as_json=False)
    assert capsys.readouterr().err == "error WS-5005: step [3] is low\n  -> Put 4.\n"
    output.print_error(error, as_json=True)
    streams = capsys.readouterr()
    assert streams.out == ""
    assert json.loads(streams.err) == {
        "error": "StepOrderError",
        "code": "WS-5005",
        "exit_code": 3,
        "message": "step [3] is low",
        "do": "Put 4.",
        "facts": {"step": 3, "names": ["a", "b"]},
    }


def test_tables_and_facts_print_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("", ("name", "count"), [("[red]a[/]", 1), ("b", 20)])
    output.print_facts({"place": "[x]", "n": 3})
    out = capsys.readouterr().out
    assert "[red]a[/]" in out
    assert "place  [x]\nn      3\n" in out


HOSTILE = "a\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eb:smile:"
SHOWN = r"a\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eb:smile:"


def test_stored_text_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(HOSTILE, ("name",), [(HOSTILE,), ("one\ntwo",)])
    output.print_facts({"name": HOSTILE})
    output.out.print(HOSTILE, markup=False, soft_wrap=True)
    output.print_error(StepOrderError(HOSTILE, do=HOSTILE), as_json=False)
    streams = capsys.readouterr()
    assert (streams.out.count(SHOWN), streams.err.count(SHOWN)) == (4, 2)
    assert r"one\ntwo" in streams.out
    assert not set(streams.out + streams.err) & set("\x1b\x07\r\x9b\u202e")


def test_documents_for_programs_keep_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"name": HOSTILE}


def test_bars_take_any_number_of_phases_and_print_nothing_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_bars(quiet=False) as tell:
        for phase in ("full", "delta"):
            for done in (0, 50, 100):
                tell(phase, done, 100)
    streams = capsys.readouterr()
    assert streams.out + streams.err == ""
