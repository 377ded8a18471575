"""A step is gone for one run alone, and only a check of the test itself shows that it is missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weightstore.codec import decoding
from weightstore.history import manifests
from weightstore.history.commit import _Delivery
from weightstore.receiver.gate import ServingGate
from weightstore.receiver.live_storage import HostStorage
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.serve_policy import ServePolicy
from weightstore.testing import removed_steps
from weightstore.testing.removed_steps import (
    OPTION,
    STEPS,
    pytest_addoption,
    pytest_configure,
    why_not_missed,
)

ROOT = Path(__file__).parents[3]
TEST = f"{ROOT}/tests/unit/test_x.py:3"
PRODUCT = f"{ROOT}/weightstore/history/log.py:3"
SEEN: dict[str, tuple[Any, str]] = {
    "read-back-of-records": (_Delivery, "run"),
    "pack-sha256": (manifests, "hashlib"),
    "table-digest": (manifests, "state_digest"),
    "piece-hash": (decoding, "hash_streams"),
    "digest-difference-at-staging": (decoding.Decoder, "check_change"),
    "scan-of-the-adopted": (LiveWeights, "_damaged"),
    "compare-on-apply": (HostStorage, "scatter"),
    "absolute-redo": (HostStorage, "scatter"),
    "closed-gate": (ServingGate, "close"),
    "staleness-bound": (ServePolicy, "_inactive"),
}
"""Where some steps are."""


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_there_again_after_its_block(name: str) -> None:
    owner, attribute = SEEN.get(name, (manifests, "fetch_object"))
    before = getattr(owner, attribute)
    with STEPS[name].remove():
        assert name not in SEEN or getattr(owner, attribute) is not before
    assert getattr(owner, attribute) is before


def test_every_row_is_of_another_step_and_names_a_test_that_is_written() -> None:
    assert len({step.step for step in STEPS.values()}) == len(STEPS)
    for step in STEPS.values():
        file, *_, function = step.test_function.split("::")
        assert step.test.startswith(step.test_function)
        assert step.test_function.count("[") == 0
        texts = [ROOT / file, ROOT / "weightstore/testing/contract.py"]
        assert any(f"def {function}(" in text.read_text(encoding="utf-8") for text in texts)
        assert " | " not in step.step + step.breaks


@pytest.mark.parametrize(
    "message",
    [
        "AssertionError: assert (2, ['x', 'x']) == (1, ['x'])",
        "AssertionError",
        "AssertionError: Regex pattern did not match.",
        "assert 1 == 4",
        "Failed: DID NOT RAISE CorruptObjectError",
    ],
)
def test_a_check_of_the_test_that_fails_shows_that_it_misses_the_step(message: str) -> None:
    output = f"F\nE   {message}\n{TEST}: {message}\n1 failed in 0.05s\n"
    assert why_not_missed(output) == ""
    assert why_not_missed(output.replace("1 failed in", "1 failed, 2 warnings in")) == ""


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (f"{TEST}: AttributeError: no 'x'\n1 failed in 0.05s\n", "AttributeError: no 'x'"),
        (f"{TEST}: KeyError: 'assert 1'\n1 failed in 0.05s\n", "KeyError"),
        (f"{TEST}: Failed: Timeout (>1.0s)\n1 failed in 0.05s\n", "Timeout"),
        (f"{PRODUCT}: AssertionError: x\n1 failed in 0.05s\n", "log.py failed, which is no test"),
        ("1 passed in 0.05s\n", "not one failure"),
        (f"{TEST}: assert 0\n1 passed, 1 error in 0.05s\n", "not one failure"),
        (f"{TEST}: assert 0\n{TEST}: assert 0\n2 failed in 0.05s\n", "not one failure"),
        (f"{TEST}: assert 0\n1 failed, 1 passed in 0.05s\n", "not one failure"),
        ("ERROR: not found: x\nno tests ran in 0.05s\n", "not one failure"),
    ],
)
def test_any_other_end_may_have_any_cause(output: str, why: str) -> None:
    assert why in why_not_missed(output)


def test_an_assertion_in_the_test_kit_is_one_of_the_test() -> None:
    output = f"{removed_steps.__file__}:9: assert 0\n1 failed in 0.05s\n"
    assert why_not_missed(output) == ""


class FakeConfig:
    """What a plugin asks a run for."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.cleanups: list[Any] = []

    def getoption(self, option: str) -> str | None:
        assert option == OPTION
        return self.name

    def add_cleanup(self, cleanup: Any) -> None:  # noqa: ANN401 -- as pytest takes it
        self.cleanups.append(cleanup)


def test_a_run_lacks_the_step_that_it_is_told_and_no_other_until_it_ends() -> None:
    close = ServingGate.close
    untold: Any = FakeConfig(None)
    pytest_configure(untold)
    assert not untold.cleanups
    told: Any = FakeConfig("closed-gate")
    pytest_configure(told)
    try:
        assert ServingGate.close is not close
    finally:
        for cleanup in told.cleanups:
            cleanup()
    assert ServingGate.close is close


def test_a_step_that_is_not_in_the_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = pytest.Parser(_ispytest=True)
    pytest_addoption(parser)
    with pytest.raises(pytest.UsageError):
        parser.parse([OPTION, "gravity"])
    assert parser.parse([OPTION, "closed-gate"]).removed_step == "closed-gate"
    capsys.readouterr()
