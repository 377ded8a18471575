"""One call of `put_step`, as a value, and what it may be given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from weightstore import arguments
from weightstore.format.records import MAX_INTEGER
from weightstore.ids import Step
from weightstore.trainer.binding import Missing
from weightstore.trainer.inputs import Inputs, TensorSource, check_source


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


def checked_step(step: int, what: str = "step") -> Step:
    """A step as a caller gave it; what mypy has checked for, others may not have.

    Args:
        step: Any integer type.
        what: Name of the argument.

    Raises:
        InputRefusedError: it is no number that a version can have.
    """
    return Step(arguments.whole(step, what, least=0, most=MAX_INTEGER, kind="step"))


def check_put(
    step: int, tensors: TensorSource, *, anchor: bool, missing: Missing, new_schema: bool
) -> None:
    """Check what `put_step` was given, as far as its tensors need not be looked at.

    Raises:
        InputRefusedError: an argument is of a wrong type or value.
    """
    checked_step(step)
    check_source(tensors)
    arguments.flag(anchor, "anchor")
    arguments.choice(missing, "missing", get_args(Missing))
    arguments.flag(new_schema, "new_schema")
