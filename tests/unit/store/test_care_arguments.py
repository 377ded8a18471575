"""Wrong types and values for what needs no opened store: a typed error, nothing changed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet

import weightstore
from weightstore.errors import InputRefusedError
from weightstore.settings import Limits, Settings
from weightstore.store import Severity
from weightstore.testing.facade_calls import make_stage
from weightstore.testing.store_lab import LAB_SETTINGS, tree

CALLS: dict[str, Callable[..., object]] = {
    "examine": weightstore.examine,
    "plan_migration": weightstore.plan_migration,
    "migrate_store": weightstore.migrate_store,
}
NO_PATHS: tuple[Any, ...] = (
    *(None, 3, b"/x", "", "a\0b", Path("a\0b"), "\ud800", ["x"], "s3://bucket/store"),
)


def many(call: str, name: str, values: tuple[Any, ...]) -> list[ParameterSet]:
    """A case for each wrong value of one parameter."""
    return [
        pytest.param(call, name, value, id=f"{call}-{name}-{number}")
        for number, value in enumerate(values)
    ]


CASES = [
    *many("examine", "location", NO_PATHS),
    *many("examine", "deep", (None, 1, "yes")),
    *many("examine", "settings", (5, "x", {}, Limits(), Settings, 0, False)),
    *many("examine", "progress", (None, 5)),
    *many("plan_migration", "location", NO_PATHS),
    *many("plan_migration", "steps_folder", (3, b"/x", "", "a\0b", ["x"])),
    *many("migrate_store", "location", NO_PATHS),
    *many("migrate_store", "steps_folder", (3, b"/x", "", "a\0b", ["x"])),
    *many("migrate_store", "clock", (5, "x", 0, False, object())),
    *many("migrate_store", "entropy", (5, "x", 0, False, object())),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("stage") / "base"
    make_stage(base)
    return base


@pytest.mark.parametrize(("call", "name", "value"), CASES)
def test_a_wrong_argument_is_refused_before_anything_changes(
    made: Path, call: str, name: str, value: object
) -> None:
    before = tree(made)
    given = {"location": made / "store", name: value}
    with contextlib.chdir(made / "here"), pytest.raises(InputRefusedError) as caught:
        CALLS[call](**given)
    assert tree(made) == before
    assert list((made / "here").iterdir()) == []
    assert caught.value.do
    assert len(caught.value.message) < 1000


def test_every_parameter_of_every_call_is_tried() -> None:
    tried = {(case.values[0], case.values[1]) for case in CASES}
    assert tried == {
        (name, parameter)
        for name, call in CALLS.items()
        for parameter in inspect.signature(call).parameters
    }


def test_what_numpy_calls_a_flag_is_one(made: Path) -> None:
    deep = np.True_
    report = weightstore.examine(
        str(made / "store"),
        deep=deep,  # type: ignore[arg-type] # any flag will do
        settings=LAB_SETTINGS,
    )
    assert report.is_deep
    assert report.worst in {Severity.OK, Severity.NOTE}
