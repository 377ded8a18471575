"""Triton is used where it is installed and has run, and nothing else is lost by trying."""

from __future__ import annotations

import logging

import pytest

from weightstore.codec.triton_choice import triton_where_it_runs

LOGGER = logging.getLogger("weightstore.test")


def chosen(device: str, error: Exception | None = None) -> tuple[str, int]:
    """What is chosen, and how often Triton was tried."""
    tries: list[str] = []

    def tried() -> str:
        tries.append(device)
        if error is not None:
            raise error
        return "triton"

    found = triton_where_it_runs(device, tried=tried, portable=lambda: "torch", logger=LOGGER)
    return found, len(tries)


def test_triton_runs_on_cuda_alone() -> None:
    pytest.importorskip("triton", reason="needs the triton extra")
    assert chosen("cuda:1") == ("triton", 1)
    assert chosen("cpu") == ("torch", 0)


def test_without_triton_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert chosen("cuda:0") == ("torch", 0)


@pytest.mark.parametrize("error", [RuntimeError("no driver"), OSError("no compiler"), KeyError()])
def test_whatever_triton_lacks_is_told_and_costs_nothing(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton", reason="needs the triton extra")
    assert chosen("cuda:0", error) == ("torch", 1)
    assert "do not run on cuda:0" in caplog.text
