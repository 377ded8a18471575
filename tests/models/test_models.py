"""The protocol holds in every reachable state of every model, and each safety step is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from weightstore.format import kept as kept_sets
from weightstore.format.rules import Rule, is_kept
from weightstore.testing import totals
from weightstore.testing.models import __main__ as command
from weightstore.testing.models.attempts import AttemptsModel
from weightstore.testing.models.claims import ClaimsModel
from weightstore.testing.models.compacting import CompactingModel
from weightstore.testing.models.explore import Counterexample, Exploration, Model, explore
from weightstore.testing.models.logtree import LogTree, Plan
from weightstore.testing.models.mutations import MODELS, MUTATIONS, ModelClass, Mutation
from weightstore.testing.models.ranks import RanksModel
from weightstore.testing.models.retiring import RetiringModel
from weightstore.testing.models.world import END, PRODUCT, UNKNOWN, Safeguard, World

# Rules that bind a record to its place or its form. Every actor of the models builds its
# records on the prefix that it read, so none can break them; the unit tests of the rules do.
RULES_OF_FORM = {
    Rule.SLOT,
    Rule.PARENT,
    Rule.NOW,
    Rule.INIT,
    Rule.CLAIM_RUN,
    Rule.CLAIM_CLOSE,
    Rule.INTENT_ID,
    Rule.INTENT_COUNT,
    Rule.ACTIVATE_LINK,
    Rule.ACTIVATE_COUNT,
    Rule.RETIRE_FORM,
    Rule.FEATURES,
    Rule.FORMAT_ORDER,
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_reachable_state_keeps_the_promises(model: ModelClass) -> None:
    seen = explore(model(PRODUCT))
    assert seen.counterexample is None
    assert seen.state_count > 100_000


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_removed_safety_step_is_noticed(mutation: Mutation) -> None:
    found = explore(mutation.build()).counterexample
    assert found is not None, f"{mutation.model.name} does not need it: {mutation.what}"
    assert len(found.trace) <= 20
    totals.add("mutations_caught", 1)


def test_the_mutation_table_leaves_nothing_out() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 12
    removed = {mutation.removed for mutation in MUTATIONS}
    assert set(Safeguard) <= removed
    assert {rule for rule in Rule if rule not in removed} == RULES_OF_FORM


def test_the_protocol_page_states_every_rule_and_every_duty() -> None:
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
    assert [rule for rule in Rule if f"| `{rule.value}` |" not in page] == []
    assert [step for step in Safeguard if f"| {step.value} |" not in page] == []
    assert [model.name for model in MODELS if f"| `{model.name}` |" not in page] == []


# --- The models are not empty: what each is about does happen ----------------------------


@dataclass(frozen=True)
class _Goal:
    """A model in which a wished-for state counts as broken, so that the search finds it."""

    model: ClaimsModel | RanksModel | RetiringModel | CompactingModel | AttemptsModel
    is_reached: Callable[[LogTree, World], bool]

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def bounds(self) -> str:
        return self.model.bounds

    def beginnings(self) -> Iterable[tuple[str, World]]:
        return self.model.beginnings()

    def moves(self, state: World, /) -> Iterator[tuple[str, World]]:
        return self.model.moves(state)

    def broken(self, state: World, /) -> str | None:
        return "reached" if self.is_reached(self.model._tree, state) else None

    def stuck(self, state: World, /) -> str | None:
        return self.model.stuck(state)


def _versions(tree: LogTree, world: World) -> list[Plan]:
    return [one for one in tree.valid(world.node) if one.kind == "version"]


def _zombie_is_late(tree: LogTree, world: World) -> bool:
    """B has committed while a request of A is still on its way, and A has said nothing."""
    waits = world.actors[0].is_waiting
    return waits and any(one.who == 1 for one in _versions(tree, world))


def _unknown_landed(tree: LogTree, world: World) -> bool:
    """A reported a commit as unknown, and it landed later."""
    commits = tree.commits(world.node)
    reports = world.actors[0].reports
    return any(said.outcome == UNKNOWN and said.commit in commits for said in reports)


def _second_attempt(tree: LogTree, world: World) -> bool:
    return any(one.attempt == 2 for one in _versions(tree, world))


def _reader_was_overtaken(tree: LogTree, world: World) -> bool:
    """The reader began on version 2, which was retired and swept under it."""
    reader = world.actors[3]
    return reader.op == "again" and not is_kept(tree.now(world.node), 2)


def _tag_kept_a_chain(tree: LogTree, world: World) -> bool:
    kept = tree.now(world.node).kept
    is_over = world.actors[1].op == END and world.actors[2].op == END
    return is_over and kept == kept_sets.of_versions([1, 2, 3]) and "tag" in _kinds(tree, world)


def _kinds(tree: LogTree, world: World) -> set[str]:
    return {one.kind for one in tree.valid(world.node)}


def _base_gone_after_alt(tree: LogTree, world: World) -> bool:
    """Version 2 lives on its anchor alone."""
    is_gone = not any(what == (0, 1) for what in world.objects)
    return is_gone and is_kept(tree.now(world.node), 2)


def _anchor_swept(tree: LogTree, world: World) -> bool:
    """Both compactors wrote; the first one's voided anchor is gone, the second one's used."""
    written = {what[1] for what in world.objects if what[0] == 1}
    return written == {1} and {"void", "alt"} <= _kinds(tree, world)


def _attempt_swept(tree: LogTree, world: World) -> bool:
    """The objects of a voided attempt are gone, and the version of the next one is there."""
    return _second_attempt(tree, world) and not any(
        what[1:4] == (1, 2, 1) for what in world.objects
    )


GOALS: list[_Goal] = [
    _Goal(ClaimsModel(PRODUCT), _zombie_is_late),
    _Goal(ClaimsModel(PRODUCT), _unknown_landed),
    _Goal(RanksModel(PRODUCT), _second_attempt),
    _Goal(RetiringModel(PRODUCT), _reader_was_overtaken),
    _Goal(RetiringModel(PRODUCT), _tag_kept_a_chain),
    _Goal(CompactingModel(PRODUCT), _base_gone_after_alt),
    _Goal(CompactingModel(PRODUCT), _anchor_swept),
    _Goal(AttemptsModel(PRODUCT), _attempt_swept),
]


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.is_reached.__name__)
def test_what_a_model_is_about_happens_in_it(goal: _Goal) -> None:
    model: Model[World] = goal
    found = explore(model).counterexample
    assert found is not None
    assert found.broken == "reached"


# --- The search itself ------------------------------------------------------------------


class _Counter:
    """Counts to a bound by ones and twos."""

    name = "counter"
    bounds = "10"

    def __init__(self, *, forbidden: int | None = None, last: int = 10) -> None:
        self._forbidden = forbidden
        self._last = last

    def beginnings(self) -> Iterable[tuple[str, int]]:
        return [("zero", 0)]

    def moves(self, state: int, /) -> Iterator[tuple[str, int]]:
        for step in (1, 2):
            if state + step <= 10:
                yield f"+{step}", state + step

    def broken(self, state: int, /) -> str | None:
        return "forbidden" if state == self._forbidden else None

    def stuck(self, state: int, /) -> str | None:
        return None if state == self._last else f"ends at {state}"


def test_the_search_sees_every_state_once() -> None:
    seen = explore(_Counter())
    assert (seen.state_count, seen.move_count, seen.depth) == (11, 19, 5)
    assert seen.counterexample is None


def test_the_search_finds_the_shortest_way() -> None:
    found = explore(_Counter(forbidden=5)).counterexample
    assert found == Counterexample("forbidden", ("zero", "+1", "+2", "+2"))


def test_a_state_that_cannot_go_on_and_should_is_found() -> None:
    found = explore(_Counter(last=11)).counterexample
    assert found is not None
    assert found.broken == "ends at 10"


def test_the_search_gives_up_at_its_bound_and_claims_nothing() -> None:
    with pytest.raises(RuntimeError, match="more than 5 states"):
        explore(_Counter(), state_count_max=5)


# --- The command ------------------------------------------------------------------------


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [one for one in MUTATIONS if one.removed is Safeguard.READ_BACK]
    monkeypatch.setattr(command, "MODELS", ())
    monkeypatch.setattr(command, "MUTATIONS", quick)


@pytest.mark.usefixtures("_small")
def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1 mutations caught" in shown
    assert "A: answer to its claim is lost" in shown


@pytest.mark.usefixtures("_small")
def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["mutations"]
    assert rows[0]["model"] == "claims"
    assert rows[0]["broken"]


@pytest.mark.usefixtures("_small")
def test_the_command_fails_when_a_mutation_goes_unnoticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = Exploration(state_count=1, move_count=0, depth=0, counterexample=None)
    monkeypatch.setattr(command, "explore", lambda _: nothing)
    assert command.main([]) == 1
    assert "NOT CAUGHT" in capsys.readouterr().out
