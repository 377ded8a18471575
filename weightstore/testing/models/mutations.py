"""The mutation table: each safety step that is left out, and the model that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from weightstore.format.rules import Rule
from weightstore.testing.models.attempts import AttemptsModel
from weightstore.testing.models.claims import ClaimsModel
from weightstore.testing.models.compacting import CompactingModel
from weightstore.testing.models.explore import Model
from weightstore.testing.models.ranks import RanksModel
from weightstore.testing.models.retiring import RetiringModel
from weightstore.testing.models.world import Safeguard, Variant, World


class ModelClass(Protocol):
    """A model that can be built with something left out."""

    name: str

    def __call__(self, variant: Variant, /) -> Model[World]:
        """The model under a variant."""
        ...


@dataclass(frozen=True, slots=True)
class Mutation:
    """A rule of `validate` or a step of an actor that is left out of one model."""

    removed: Rule | Safeguard
    model: ModelClass

    @property
    def name(self) -> str:
        """A stable name for tables and tests."""
        return f"{self.model.name}-{self.removed.name.lower()}"

    @property
    def what(self) -> str:
        """What is left out, in words."""
        if isinstance(self.removed, Rule):
            return f"validate without the rule `{self.removed.value}`"
        return f"without: {self.removed.value}"

    def build(self) -> Model[World]:
        """The model with the step left out."""
        if isinstance(self.removed, Rule):
            return self.model(Variant(rules=frozenset({self.removed})))
        return self.model(Variant(safeguards=frozenset({self.removed})))


MODELS: tuple[ModelClass, ...] = (
    ClaimsModel,
    RanksModel,
    RetiringModel,
    CompactingModel,
    AttemptsModel,
)

_CAUGHT_BY: tuple[tuple[ModelClass, tuple[Rule | Safeguard, ...]], ...] = (
    (
        ClaimsModel,
        (
            Rule.CLAIM_BUSY,
            Rule.CLAIM_LAST_STEP,
            Rule.CLAIM_REWIND,
            Rule.EPOCH,
            Rule.OWNER_CLAIM,
            Rule.OWNER_RUN,
            Rule.OWNER_SESSION,
            Rule.NEXT_VERSION,
            Rule.STEP,
            Safeguard.READ_BACK,
            Safeguard.OWN_COMMIT,
            Safeguard.UNKNOWN_OUTCOME,
            Safeguard.CONDITION,
            Safeguard.JUDGE_AGAIN,
            Safeguard.OWN_EPOCH,
            Safeguard.RUN_HISTORY,
        ),
    ),
    (
        RanksModel,
        (
            Rule.ATTEMPT,
            Rule.NEXT_VERSION,
            Safeguard.VERDICT_FROM_LOG,
            Safeguard.ALL_RECEIPTS,
            Safeguard.PACKS_FIRST,
            Safeguard.LAUNCH_KEYS,
            Safeguard.BEFORE_TABLES,
        ),
    ),
    (
        RetiringModel,
        (
            Rule.KEPT,
            Rule.RETIRE_SUBSET,
            Rule.RETIRE_LOSS,
            Safeguard.PLAN_ANEW,
            Safeguard.KEEP_TAGGED,
            Safeguard.KEEP_CHAINS,
            Safeguard.RETIRE_FIRST,
            Safeguard.NAMED_OBJECTS,
            Safeguard.ONE_STATE,
            Safeguard.READ_AGAIN,
        ),
    ),
    (
        CompactingModel,
        (
            Rule.INTENT_OPEN,
            Safeguard.OPEN_INTENTS,
            Safeguard.ALT_ONLY,
            Safeguard.FRESH_ID,
            Safeguard.READ_ANCHOR,
        ),
    ),
    (
        AttemptsModel,
        (
            Rule.BASE,
            Safeguard.NAMED_OBJECTS,
            Safeguard.EPOCH_AND_VERSION,
            Safeguard.LATE_BASELINE,
            Safeguard.PREDECESSOR_NAMES,
        ),
    ),
)
MUTATIONS: tuple[Mutation, ...] = tuple(
    Mutation(removed, model) for model, steps in _CAUGHT_BY for removed in steps
)
