"""One call of `put_step`, as a value, and what it may be given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

from weightstore import arguments
from weightstore.format.canonical import MAX_INTEGER
from weightstore.history.progress import Progress, no_progress
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
        progress: Told of bytes read and of a full form written.
    """

    step: Step
    open_inputs: Callable[[], Inputs]
    anchor: bool = False
    missing: Missing = "refuse"
    new_schema: bool = False
    progress: Progress = no_progress


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PutArguments:
    """What a caller gave to `put_step`, checked.

    Attributes:
        step: The trainer's count.
        tensors: The source, from which nothing was taken yet.
        anchor: Also store the full form.
        missing: What tensors that are not given mean.
        new_schema: Allow another schema, as a full version.
        progress: Told of bytes read and of a full form written.
    """

    step: Step
    tensors: TensorSource
    anchor: bool
    missing: Missing
    new_schema: bool
    progress: Progress

    def request(self, open_inputs: Callable[[], Inputs]) -> PutRequest:
        """The request for the publisher, with a way to open the source."""
        return PutRequest(
            step=self.step,
            open_inputs=open_inputs,
            anchor=self.anchor,
            missing=self.missing,
            new_schema=self.new_schema,
            progress=self.progress,
        )


def checked_step(step: int, what: str = "step") -> Step:
    """A step as a caller gave it; what mypy has checked for, others may not have.

    Args:
        step: Any integer type.
        what: Name of the argument.

    Raises:
        InputRefusedError: it is no number that a version can have.
    """
    return Step(arguments.whole(step, what, least=0, most=MAX_INTEGER, kind="step"))


def parse_put(
    step: int,
    tensors: TensorSource,
    *,
    anchor: bool,
    missing: Missing,
    new_schema: bool,
    progress: Progress = no_progress,
) -> PutArguments:
    """What `put_step` was given, checked as far as its tensors need not be looked at.

    Raises:
        InputRefusedError: an argument is of a wrong type or value.
    """
    number = checked_step(step)
    check_source(tensors)
    return PutArguments(
        step=number,
        tensors=tensors,
        anchor=arguments.flag(anchor, "anchor"),
        missing=arguments.choice(missing, "missing", get_args(Missing)),
        new_schema=arguments.flag(new_schema, "new_schema"),
        progress=arguments.function(progress, "progress"),
    )
