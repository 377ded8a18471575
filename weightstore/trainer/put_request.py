"""One call of `put_step`, as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
