"""One call of `put_step`, as a value, and the steps that it may be given."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

from weightstore.errors import InputRefusedError
from weightstore.format.records import MAX_INTEGER
from weightstore.ids import Step
from weightstore.trainer.binding import Missing
from weightstore.trainer.inputs import Inputs


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PutRequest:
    """One call of `put_step`.

    Attributes:
        step: The trainer's count.
        open_inputs: Wraps what was given.
        anchor: Also store the full form.
        missing: What tensors that are not given mean.
        new_schema: Allow another schema, as a full version.
    """

    step: Step
    open_inputs: Callable[[], Inputs]
    anchor: bool = False
    missing: Missing = "refuse"
    new_schema: bool = False


def checked_step(step: int, what: str = "") -> Step:
    """A step as a caller gave it; what mypy has checked for, others may not have.

    Args:
        step: Any integer type.
        what: Stands before the value in the message.

    Raises:
        InputRefusedError: it is no number that a version can have.
    """
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number <= MAX_INTEGER:
        raise InputRefusedError(
            f"{what}{step!r} is no step", do=f"Give a whole number from 0 to {MAX_INTEGER}."
        )
    return Step(number)
