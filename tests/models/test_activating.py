"""Activation holds in every reachable state of its model, and each of its steps is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from weightstore.testing import totals
from weightstore.testing.models.activating import ActivatingModel, ActivationStep, State
from weightstore.testing.models.explore import Model, explore

BROKEN = {
    ActivationStep.POLICY: "another version is served longer than the bound",
    ActivationStep.STALENESS: "another version is served longer than the bound",
    ActivationStep.BEFORE_READ: "another version is served longer than the bound",
    ActivationStep.IN_ORDER: "a receiver goes back to an older activation",
    ActivationStep.WHOLE: "a mixture is served",
    ActivationStep.TAKE_BACK: "an object says that a version is staged that is not there",
    ActivationStep.TRUE_CLAIM: "an object says that a version is staged that is not there",
    ActivationStep.OVERTAKEN: "an activation leads back from one that came meanwhile",
    ActivationStep.ONE_RECORD: "one wish made two records",
}


@pytest.mark.slow
def test_nobody_serves_another_version_longer_than_the_bound() -> None:
    seen = explore(ActivatingModel())
    assert seen.counterexample is None
    assert seen.state_count > 100_000


@pytest.mark.parametrize("step", ActivationStep, ids=lambda step: step.name.lower())
def test_a_removed_safety_step_is_noticed(step: ActivationStep) -> None:
    found = explore(ActivatingModel(frozenset({step}))).counterexample
    assert found is not None, f"the model does not need it: {step.value}"
    assert found.broken == BROKEN[step]
    assert len(found.trace) <= 12
    totals.add("mutations_caught", 1)


def test_the_protocol_page_states_every_step_and_the_model() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert [step for step in ActivationStep if f"| {step.value} |" not in page] == []
    assert f"| `{ActivatingModel.name}` |" in page


@dataclass(frozen=True)
class _Goal:
    """The model, in which a wished-for state counts as broken, so that the search finds it."""

    name: str
    is_reached: Callable[[State], bool]
    bounds: str = ActivatingModel.bounds
    model: ActivatingModel = field(default_factory=ActivatingModel)

    def beginnings(self) -> Iterable[tuple[str, State]]:
        return self.model.beginnings()

    def moves(self, state: State, /) -> Iterator[tuple[str, State]]:
        return self.model.moves(state)

    def broken(self, state: State, /) -> str | None:
        return "reached" if self.is_reached(state) else None

    def stuck(self, state: State, /) -> str | None:
        return self.model.stuck(state)


GOALS = (
    _Goal(
        "led forth and back", lambda state: [each.version for each in state.records] == [1, 2, 1]
    ),
    _Goal("serves a later activation", lambda state: state.receiver.served_slot == 1),
    _Goal(
        "a zombie serves the old version within the bound",
        lambda state: (
            len(state.records) > 1 and state.receiver.slot == 0 and ActivatingModel()._serves(state)
        ),
    ),
    _Goal("staged and said so", lambda state: state.receiver.staged == state.receiver.said == 2),
)


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.name.replace(" ", "-"))
def test_what_the_model_is_about_happens_in_it(goal: _Goal) -> None:
    model: Model[State] = goal
    found = explore(model).counterexample
    assert found is not None
    assert found.broken == "reached"
