"""What a caller may give to `put_step`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weightstore.errors import InputRefusedError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.trainer.put_request import checked_step, parse_put


def test_any_integer_type_is_a_step() -> None:
    assert [checked_step(int(np.int64(7))), checked_step(MAX_INTEGER)] == [7, MAX_INTEGER]


@pytest.mark.parametrize("step", [-1, MAX_INTEGER + 1, "7", 1.5, True, None])
def test_anything_else_is_refused_by_name(step: int) -> None:
    with pytest.raises(InputRefusedError, match=r"rewind_to=.* is no step"):
        checked_step(step, "rewind_to")


def test_arguments_are_parsed_into_what_the_request_says() -> None:
    weights = {"w": np.zeros(3, np.float32)}
    given = parse_put(
        int(np.int64(7)),
        weights,
        anchor=np.bool_(True),  # type: ignore[arg-type]  # comparing NumPy numbers gives those
        missing="unchanged",
        new_schema=False,
    )
    assert given.tensors is weights
    opened: list[str] = []
    request = given.request(lambda: opened.append("opened"))  # type: ignore[arg-type, return-value]  # never called
    assert (type(request.step), request.step) == (int, 7)
    assert request.anchor is True
    assert (request.missing, request.new_schema) == ("unchanged", False)
    assert not opened


@pytest.mark.parametrize(
    ("slip", "words"),
    [
        ({"step": -1}, "is no step"),
        ({"tensors": "weights"}, "no source of tensors"),
        ({"anchor": "no"}, "anchor='no' is no flag"),
        ({"missing": "bogus"}, "missing='bogus' is no choice"),
        ({"new_schema": 1}, "new_schema=1 is no flag"),
    ],
)
def test_a_slip_is_named(slip: dict[str, Any], words: str) -> None:
    good: dict[str, Any] = {
        "step": 1, "tensors": {}, "anchor": False, "missing": "refuse", "new_schema": False,
    }  # fmt: skip
    parse_put(**good)
    with pytest.raises(InputRefusedError, match=words):
        parse_put(**(good | slip))
