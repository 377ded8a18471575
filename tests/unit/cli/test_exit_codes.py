"""Exit codes follow the branches of the error tree, all of them."""

from __future__ import annotations

import pytest

from weightstore import errors
from weightstore.cli.exit_codes import ExitCode, exit_code_of
from weightstore.errors import WeightStoreError

BRANCHES = {
    "1": ExitCode.CONFLICT,
    "2": ExitCode.FENCED,
    "3": ExitCode.UNKNOWN_OUTCOME,
    "4": ExitCode.CORRUPT,
    "5": ExitCode.REFUSED,
    "6": ExitCode.UNAVAILABLE,
    "7": ExitCode.NOT_FOUND,
}
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, WeightStoreError)
    and kind is not WeightStoreError
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_has_the_code_of_its_branch(kind: type[WeightStoreError]) -> None:
    assert exit_code_of(kind("it failed")) is BRANCHES[kind.code.removeprefix("WS-")[0]]


def test_an_error_of_no_branch_is_a_failure() -> None:
    assert exit_code_of(WeightStoreError("it failed")) is ExitCode.FAILED


def test_codes_are_different_and_never_those_of_the_shell() -> None:
    assert len(set(ExitCode)) == len(ExitCode.__members__)
    assert not {int(code) for code in ExitCode} & {126, 127}
