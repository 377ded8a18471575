"""What a caller may give as a step."""

from __future__ import annotations

import numpy as np
import pytest

from weightstore.errors import InputRefusedError
from weightstore.format.records import MAX_INTEGER
from weightstore.trainer.put_request import checked_step


def test_any_integer_type_is_a_step() -> None:
    assert [checked_step(int(np.int64(7))), checked_step(MAX_INTEGER)] == [7, MAX_INTEGER]


@pytest.mark.parametrize("step", [-1, MAX_INTEGER + 1, "7", 1.5, True, None])
def test_anything_else_is_refused_by_name(step: int) -> None:
    with pytest.raises(InputRefusedError, match=r"rewind_to=.* is no step"):
        checked_step(step, "rewind_to")
