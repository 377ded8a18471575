"""Commit: two or three trainers over one store, one of them a zombie.

Trainer A claims, puts two steps and closes its claim. Trainer B starts at any moment and
does the same behind A's claim, over it, or after it. Requests are lost or delayed, answers
are lost, and everybody dies or merely pauses anywhere (every interleaving is followed, so a
pause is a move that comes late): that makes A the zombie.

Bounds: 2 trainers and in two scenarios a third; 2 timeouts or lost answers of A, 1 of each
other; 2 steps each; deaths anywhere; 15 scenarios: with and without take-over, a rewind, the
same session twice, another run, and trainers with a fault that the rules have to hold off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weightstore.format.rules import Rule
from weightstore.testing.models.logtree import Entry, LogTree, Plan
from weightstore.testing.models.world import (
    DEAD,
    END,
    FAILED,
    Actor,
    Move,
    Safeguard,
    Variant,
    World,
    Writing,
    stuck,
)

_NAMES = "ABC"
_TRUTH = -1


class Trainer(NamedTuple):
    """How one of them behaves. From `ops` on: faults that the rules must hold off.

    `ops` is the order of its records; `last_step` is what its claim says instead of the
    truth, `_TRUTH` for an honest one; a `stale` one reads the newest version before it
    claims and then puts a `delta` or a `full` version.
    """

    run: str = "r"
    session: int = 1
    take_over: bool = False
    rewind_to: int | None = None
    ops: tuple[str, ...] = ("claim", "1", "2", "close")
    last_step: int | None = _TRUTH
    epoch_from_log: bool = False
    stale: str = ""


class Scenario(NamedTuple):
    """Trainers that share a store."""

    label: str
    trainers: tuple[Trainer, ...]
    timeout_counts: tuple[int, ...] = (2, 1)


_OVER = Trainer(session=2, take_over=True)
_LATER = _OVER._replace(ops=("claim", "2", "3", "close"))
_OTHER_RUN = Trainer(run="q", session=2, take_over=True)
_SHORT = ("claim", "1", "close")
_SCENARIOS = (
    Scenario("B waits its turn", (Trainer(), Trainer(session=2))),
    Scenario("B takes over", (Trainer(), _OVER)),
    Scenario("B goes on", (Trainer(), _LATER)),
    Scenario("B rewinds to 0", (Trainer(), _OVER._replace(rewind_to=0))),
    Scenario("B rewinds to 1", (Trainer(), _LATER._replace(rewind_to=1))),
    Scenario("B has A's session", (Trainer(), Trainer(take_over=True))),
    Scenario("B is another run", (Trainer(), _OTHER_RUN)),
    Scenario(
        "B is another run, C is A's again",
        (Trainer(ops=_SHORT), _OTHER_RUN._replace(ops=_SHORT), Trainer(session=3)),
        (1, 1, 0),
    ),
    Scenario(
        "B and C take over",
        (Trainer(ops=_SHORT), _OVER._replace(ops=_SHORT), _LATER._replace(session=3)),
        (1, 1, 0),
    ),
    Scenario("A takes its epoch from the log", (Trainer(epoch_from_log=True), _OVER)),
    Scenario(
        "A takes its epoch from the log, B is another run with its session",
        (Trainer(epoch_from_log=True), Trainer(run="q", take_over=True)),
    ),
    Scenario("A goes on after its close", (Trainer(ops=("claim", "1", "close", "2")), _OVER)),
    Scenario("B forgets its steps", (Trainer(), _OVER._replace(last_step=None))),
    Scenario("B rewinds too far", (Trainer(), _OVER._replace(rewind_to=1, last_step=0))),
    Scenario(
        "B reads before its claim, puts a delta",
        (Trainer(), _OVER._replace(ops=("claim", "3", "close"), stale="delta")),
    ),
    Scenario("B reads before its claim, puts all", (Trainer(), _LATER._replace(stale="full"))),
)


class ClaimsModel:
    """See the module. An actor remembers (epoch, baseline version, baseline digest)."""

    name = "claims"
    bounds = "2 or 3 trainers, 2 + 1 + 1 timeouts, 2 steps each, deaths anywhere, 16 scenarios"

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._tree = LogTree(variant.rules)
        self._writing = Writing(self._tree, variant, self)
        self._log_faults: dict[int, str | None] = {}

    def beginnings(self) -> Iterator[tuple[str, World]]:
        """One empty store for each scenario."""
        node = self._tree.prelude()
        for number, scenario in enumerate(_SCENARIOS):
            actors = tuple(
                Actor("read" if trainer.stale else "claim", timeout_count, (0, 0, 0))
                for trainer, timeout_count in zip(
                    scenario.trainers, scenario.timeout_counts, strict=True
                )
            )
            yield scenario.label, World(node, actors, scenario=number)

    def moves(self, world: World) -> Iterator[Move]:
        """Either trainer goes on or dies, or a delayed request lands."""
        yield from self._writing.late_moves(world)
        for index, actor in enumerate(world.actors):
            if actor.op == "read":
                yield f"{_NAMES[index]} reads", world.turn(index, self._read(world, actor))
            elif actor.op not in {END, DEAD}:
                yield from self._writing.moves(world, index, _NAMES[index])
            yield from self._writing.death(world, index, _NAMES[index])

    def broken(self, world: World) -> str | None:
        """A false report, or a log that breaks a promise."""
        if world.node not in self._log_faults:
            self._log_faults[world.node] = _log_fault(self._tree.valid(world.node))
        return self._log_faults[world.node] or self._writing.false_report(world)

    def stuck(self, world: World) -> str | None:
        """Everybody ends."""
        return stuck(world)

    def plan(self, world: World, index: int) -> Plan:
        """The record of the trainer's operation."""
        trainer = _trainer(world, index)
        actor = world.actors[index]
        if actor.op == "claim":
            return self._opening(world, index, trainer)
        if actor.op == "close":
            return self._closing(world, index, trainer)
        return self._version(world, index, trainer)

    def accepted(self, world: World, index: int, entry: Entry) -> Actor:
        """On to the next operation; the baseline moves with the verdict."""
        actor = world.actors[index]
        trainer = _trainer(world, index)
        epoch, *newest = actor.memory
        if actor.op == "claim":
            epoch = entry.plan.epoch
            newest = newest if trainer.stale else [*self._newest(entry.before)]
        elif actor.op != "close":
            newest = [entry.plan.version, entry.plan.digest]
        return actor.turn(_after(trainer, actor.op), (epoch, *newest))

    def refused(self, world: World, index: int, plan: Plan, rule: Rule) -> Actor:
        """A repeated step is answered by digest; all else ends the trainer."""
        actor = world.actors[index]
        if plan.kind == "version" and rule is Rule.STEP:
            same = [
                one
                for one in self._tree.valid(world.node)
                if (one.kind, one.run, one.step) == ("version", plan.run, plan.step)
            ]
            if same and same[-1].digest == plan.digest:
                return actor.turn(_after(_trainer(world, index), actor.op))
        return actor.say(plan.commit, FAILED).turn(END)

    def _read(self, world: World, actor: Actor) -> Actor:
        return actor.turn("claim", (0, *self._newest(world.node)))

    def _newest(self, node: int) -> tuple[int, int]:
        versions = [one for one in self._tree.valid(node) if one.kind == "version"]
        return (versions[-1].version, versions[-1].digest) if versions else (0, 0)

    def _opening(self, world: World, index: int, trainer: Trainer) -> Plan:
        last_step = trainer.last_step
        if last_step == _TRUTH:
            history = self._last_step(world.node, trainer.run)
            last_step = history if trainer.rewind_to is None else trainer.rewind_to
        return Plan(
            "claim",
            index,
            _commit(index, "claim"),
            self._tree.now(world.node).epoch + 1,
            run=trainer.run,
            session=trainer.session,
            take_over=trainer.take_over,
            rewind_to=trainer.rewind_to,
            last_step=last_step,
        )

    def _last_step(self, node: int, run: str) -> int | None:
        if not self._variant.keeps(Safeguard.RUN_HISTORY):
            newest = self._tree.now(node).newest
            return newest.step if newest is not None and newest.run == run else None
        steps = [
            one.step for one in self._tree.valid(node) if one.kind == "version" and one.run == run
        ]
        return steps[-1] if steps else None

    def _closing(self, world: World, index: int, trainer: Trainer) -> Plan:
        claim = self._tree.now(world.node).claim
        return Plan(
            "claim",
            index,
            _commit(index, "close"),
            self._epoch(world, index, trainer),
            run=trainer.run,
            session=trainer.session,
            action="close",
            last_step=claim.last_step if claim is not None else None,
        )

    def _version(self, world: World, index: int, trainer: Trainer) -> Plan:
        actor = world.actors[index]
        _, version, digest = actor.memory
        base = (version, digest) if version and trainer.stale != "full" else None
        # The stale delta has a right number and a wrong base, the stale full one the reverse.
        number = self._newest(world.node)[0] if trainer.stale == "delta" else version
        step = int(actor.op)
        return Plan(
            "version",
            index,
            _commit(index, actor.op),
            self._epoch(world, index, trainer),
            run=trainer.run,
            session=trainer.session,
            version=number + 1,
            attempt=1,
            step=step,
            # Both compute step 1 alike and step 2 each in its own way.
            digest=step if step == 1 else 10 * (index + 1) + step,
            base=base,
        )

    def _epoch(self, world: World, index: int, trainer: Trainer) -> int:
        if trainer.epoch_from_log or not self._variant.keeps(Safeguard.OWN_EPOCH):
            return self._tree.now(world.node).epoch
        return world.actors[index].memory[0]


def _trainer(world: World, index: int) -> Trainer:
    return _SCENARIOS[world.scenario].trainers[index]


def _after(trainer: Trainer, op: str) -> str:
    following = trainer.ops[trainer.ops.index(op) + 1 :]
    return following[0] if following else END


def _commit(index: int, op: str) -> int:
    return 100 * (index + 1) + ["claim", "1", "2", "3", "close"].index(op)


def _log_fault(plans: tuple[Plan, ...]) -> str | None:
    """What is wrong with a log: ownership (P7), uniqueness (P2), bases (P8)."""
    return _owner_fault(plans) or _unique_fault(plans) or _base_fault(plans)


def _owner_fault(plans: tuple[Plan, ...]) -> str | None:
    owner = None
    for plan in plans:
        if plan.kind == "claim" and plan.action == "open":
            if owner is not None and not plan.take_over:
                return f"{_NAMES[plan.who]} claimed over an open claim without take-over"
            owner = plan.who
        elif plan.kind in {"version", "claim"}:
            if owner != plan.who:
                return f"{_NAMES[plan.who]} wrote a {plan.kind} without owning the store"
            owner = None if plan.kind == "claim" else owner
    return None


def _unique_fault(plans: tuple[Plan, ...]) -> str | None:
    versions = [plan.version for plan in plans if plan.kind == "version"]
    if versions != list(range(1, len(versions) + 1)):
        return f"version ids are {versions}"
    steps: set[tuple[str | None, int]] = set()
    for plan in plans:
        rewind_to = plan.rewind_to
        if rewind_to is not None:
            steps = {one for one in steps if one[0] != plan.run or one[1] <= rewind_to}
        if plan.kind == "version":
            if (plan.run, plan.step) in steps:
                return f"step {plan.step} of run {plan.run} was committed twice"
            steps.add((plan.run, plan.step))
    return None


def _base_fault(plans: tuple[Plan, ...]) -> str | None:
    newest = None
    for plan in plans:
        if plan.kind == "version":
            if plan.base is not None and plan.base != newest:
                return f"version {plan.version} was taken from {plan.base}, not from {newest}"
            newest = (plan.version, plan.digest)
    return None
