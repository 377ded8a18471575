"""Collection: attempts in flight, across a void and a take-over, against a sweep.

Trainer A holds the claim and publishes version 2, in a second attempt if it voids the first.
Trainer B takes the store over at any moment and publishes the next version. Each writes its
pack, and its schema object where the newest version names none of that schema, before its
record. A collector retires all but the newest version and its chain, and sweeps. Requests
are lost or delayed, answers are lost, writes and deletes are delayed past the death of who
asked for them.

Bounds: 2 trainers, 2 attempts of A and 1 of B, 1 collector of at most 2 rounds that puts its
records at once (`retiring` delays them), 1 timeout or lost answer for A, a death of anybody
with a request on its way (any other death is never moving again, which every search holds),
4 scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weightstore.format import kept as kept_sets
from weightstore.format.keys import TrainerKey
from weightstore.format.rules import Rule, may_collect
from weightstore.ids import Attempt, Epoch, RunId, VersionId
from weightstore.testing.models.logtree import (
    PRELUDE,
    Entry,
    LogTree,
    Plan,
    retire_plan,
    trainer_plan,
)
from weightstore.testing.models.world import (
    END,
    FAILED,
    Actor,
    Move,
    Object,
    Safeguard,
    Variant,
    World,
    Writing,
    loose_moves,
    object_delete,
    object_put,
    stuck,
)

_NAMES = ("A", "B", "collector")
_A, _B, _COLLECTOR = range(3)
_PACK, _SCHEMA = 0, 1
_OLD, _NEW = 1, 2
_SAME = (_OLD, _OLD)


class Scenario(NamedTuple):
    """Schemas of A's and B's version, whether each is a whole version, B's fault, rounds."""

    label: str
    schemas: tuple[int, int] = _SAME
    is_whole: tuple[bool, bool] = (False, False)
    reads_before_claim: bool = False
    round_count: int = 1


_SCENARIOS = (
    Scenario("deltas"),
    Scenario("A puts a whole version", is_whole=(True, False), round_count=2),
    Scenario("A changes the schema, B goes back", (_NEW, _OLD), (True, True)),
    Scenario(
        "A puts a whole version, B reads before its claim",
        is_whole=(True, False),
        reads_before_claim=True,
    ),
)


class AttemptsModel:
    """See the module. Objects are (_PACK or _SCHEMA, epoch, version, attempt, schema).

    A trainer remembers (epoch, attempt, newest version, its digest, content of its
    baseline); the collector (round, node of its survey).
    """

    name = "attempts"
    bounds = "2 trainers, 2 + 1 attempts, a collector of 2 rounds, 1 timeout, 4 scenarios"

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._tree = LogTree(variant.rules)
        self._writing = Writing(self._tree, variant, self)
        self._faults: dict[tuple[int, frozenset[Object]], str | None] = {}

    def beginnings(self) -> Iterator[tuple[str, World]]:
        """Version 1 is there and A holds the claim."""
        first = frozenset[Object]({(_PACK, 1, 1, 1, _OLD), (_SCHEMA, 1, 1, 1, _OLD)})
        version = trainer_plan("version", PRELUDE, 2)._replace(
            version=1, attempt=1, digest=1, names=first
        )
        node = self._tree.prelude(trainer_plan("claim", PRELUDE, 1), version)
        for number, scenario in enumerate(_SCENARIOS):
            actors = (
                Actor("pack", 1, (1, 1, 1, 1, 1)),
                Actor("read" if scenario.reads_before_claim else "claim", 0, (0, 1, 0, 0, 0)),
                Actor("judge", 0, (1, 0)),
            )
            yield scenario.label, World(node, actors, first, scenario=number)

    def moves(self, world: World) -> Iterator[Move]:
        """Somebody goes on or dies, or a delayed request lands."""
        yield from self._writing.late_moves(world)
        yield from loose_moves(world)
        for index, actor in enumerate(world.actors):
            if index == _COLLECTOR:
                yield from self._collect(world)
            elif actor.op == "read":
                yield "B reads", world.turn(index, self._attached(world.node, actor, 0))
            elif actor.op in {"claim", "version", "void"}:
                yield from self._writing.moves(world, index, _NAMES[index])
                if actor.op == "version" and index == _A:
                    yield "deadline of A", self._writing.leave(world, index, actor.turn("void"))
            elif actor.op in {"pack", "schema"}:
                yield from self._upload(world, index)
            if actor.is_waiting:
                yield from self._writing.death(world, index, _NAMES[index])

    def broken(self, world: World) -> str | None:
        """A false report, a kept version without an object, or a change of another base."""
        key = (world.node, world.objects)
        if key not in self._faults:
            self._faults[key] = self._fault(*key)
        return self._faults[key] or self._writing.false_report(world)

    def stuck(self, world: World) -> str | None:
        """Everybody ends."""
        return stuck(world)

    def plan(self, world: World, index: int) -> Plan:
        """A version, its void, B's claim, or the kept set."""
        actor = world.actors[index]
        now = self._tree.now(world.node)
        if actor.op == "retire":
            kept = self._planned(world.node)
            return retire_plan(index, 80 + actor.memory[0], kept, epoch=now.epoch)
        if actor.op == "claim":
            last_step = now.newest.step if now.newest else None
            claim = trainer_plan("claim", index, 90, epoch=now.epoch + 1, session=2)
            return claim._replace(take_over=True, last_step=last_step)
        return self._attempt(world, index)

    def accepted(self, world: World, index: int, entry: Entry) -> Actor:
        """On to the next operation; a void leads to the second attempt."""
        actor = world.actors[index]
        if entry.plan.kind == "retire":
            return actor.turn("survey")
        if entry.plan.kind == "claim":
            if _SCENARIOS[world.scenario].reads_before_claim:
                return actor.turn("pack", (entry.plan.epoch, *actor.memory[1:]))
            return self._attached(entry.before, actor, entry.plan.epoch)
        if entry.plan.kind == "void":
            return self._second(actor)
        return actor.turn(END)

    def refused(self, world: World, index: int, plan: Plan, _: Rule) -> Actor:
        """A committed version makes a void needless; else the trainer is fenced."""
        actor = world.actors[index]
        if plan.kind == "void" and self._commit(actor, index) in self._tree.commits(world.node):
            return actor.turn(END)
        return actor.say(plan.commit, FAILED).turn(END)

    def _attached(self, node: int, actor: Actor, epoch: int) -> Actor:
        newest = [one for one in self._tree.valid(node) if one.kind == "version"][-1]
        memory = (epoch, 1, newest.version, newest.digest, newest.digest)
        return actor.turn("pack" if epoch else "claim", memory)

    def _second(self, actor: Actor) -> Actor:
        epoch, attempt, version, digest, baseline = actor.memory
        if attempt > 1:
            return actor.turn(END)
        if not self._variant.keeps(Safeguard.LATE_BASELINE):
            baseline = 10 + version + 1
        return actor.turn("pack", (epoch, attempt + 1, version, digest, baseline))

    def _commit(self, actor: Actor, index: int) -> int:
        return 10 * (index + 1) + actor.memory[1]

    def _attempt(self, world: World, index: int) -> Plan:
        actor = world.actors[index]
        epoch, attempt, version, digest, baseline = actor.memory
        commit = self._commit(actor, index)
        session = index + 1
        if actor.op == "void":
            void = trainer_plan("void", index, 50 + commit, epoch=epoch, session=session)
            return void._replace(version=version + 1, attempt=attempt)
        scenario = _SCENARIOS[world.scenario]
        number = version + 1
        newest = self._tree.now(world.node).newest
        if scenario.reads_before_claim and index == _B and newest is not None:
            number = newest.version + 1  # a right number, a stale base
        plan = trainer_plan("version", index, commit, epoch=epoch, session=session)
        return plan._replace(
            version=number,
            attempt=attempt,
            step=index + 1,
            digest=10 * (index + 1) + version + 1,
            base=None if scenario.is_whole[index] else (version, digest),
            made_from=(baseline,),
            names=frozenset({self._pack(world, index), self._schema(world, index)}),
        )

    def _pack(self, world: World, index: int) -> Object:
        epoch, attempt, version, _, _ = world.actors[index].memory
        return (_PACK, epoch, version + 1, attempt, self._schema_kind(world, index))

    def _schema(self, world: World, index: int) -> Object:
        """The schema object that a version names: one that is there, or its own."""
        epoch, attempt, version, _, _ = world.actors[index].memory
        kind = self._schema_kind(world, index)
        for one in reversed(self._tree.valid(world.node)):
            is_near = one.version == version or not self._variant.keeps(Safeguard.PREDECESSOR_NAMES)
            named = [what for what in one.names if what[0] == _SCHEMA and what[4] == kind]
            if one.kind == "version" and one.version <= version and is_near and named:
                return named[0]
        return (_SCHEMA, epoch, version + 1, attempt, kind)

    def _schema_kind(self, world: World, index: int) -> int:
        return _SCENARIOS[world.scenario].schemas[index]

    def _upload(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        schema = self._schema(world, index)
        if actor.op == "schema":
            yield from object_put(world, index, schema, actor.turn("version"), _NAMES[index])
            return
        is_own = schema[1:4] == self._pack(world, index)[1:4]
        after = actor.turn("schema" if is_own else "version")
        yield from object_put(world, index, self._pack(world, index), after, _NAMES[index])

    def _collect(self, world: World) -> Iterator[Move]:
        actor = world.actors[_COLLECTOR]
        if actor.op == "judge":
            idle = self._planned(world.node) == self._tree.now(world.node).kept
            after = actor.turn("survey" if idle else "retire")
            yield f"collector begins with {after.op}", world.turn(_COLLECTOR, after)
        elif actor.op == "retire":
            yield from self._writing.at_once(world, _COLLECTOR, _NAMES[_COLLECTOR])
        elif actor.op == "survey":
            after = actor.turn("sweep", (actor.memory[0], world.node))
            yield "collector reads the log", world.turn(_COLLECTOR, after)
        elif actor.op == "sweep":
            for what in sorted(world.objects):
                if self._is_garbage(actor.memory[1], what):
                    yield from object_delete(world, _COLLECTOR, what, actor, "collector")
            done = actor.memory[0] == _SCENARIOS[world.scenario].round_count
            after = actor.turn(END) if done else actor.turn("judge", (actor.memory[0] + 1, 0))
            yield "collector ends its sweep", world.turn(_COLLECTOR, after)

    def _is_garbage(self, node: int, what: Object) -> bool:
        is_named = any(what in one.names for one in self._kept(node))
        if not self._variant.keeps(Safeguard.NAMED_OBJECTS):
            is_named = False
        if not self._variant.keeps(Safeguard.EPOCH_AND_VERSION):
            return not is_named
        _, epoch, version, attempt, _ = what
        key = TrainerKey(RunId("r"), Epoch(epoch), VersionId(version), Attempt(attempt))
        return may_collect(self._tree.now(node), key, named_by_kept=is_named)

    def _planned(self, node: int) -> kept_sets.Kept:
        """The newest version and its chain, which goes down to the last whole version."""
        wanted: list[int] = []
        for one in self._tree.valid(node):
            if one.kind == "version":
                wanted = [*wanted, one.version] if one.base is not None else [one.version]
        return kept_sets.of_versions(wanted)

    def _kept(self, node: int) -> list[Plan]:
        """The records of all kept versions, oldest first."""
        kept = set(kept_sets.iterate(self._tree.now(node).kept))
        return [
            one for one in self._tree.valid(node) if one.kind == "version" and one.version in kept
        ]

    def _fault(self, node: int, objects: frozenset[Object]) -> str | None:
        kept = self._kept(node)
        for one in kept:
            if one.base is not None and one.base not in [(of.version, of.digest) for of in kept]:
                return f"kept version {one.version} is a delta of {one.base[0]}, which is gone"
            missing = sorted(one.names - objects)
            if missing:
                return f"kept version {one.version} misses object {missing[0]}"
            if one.base is not None and one.made_from != (one.base[1],):
                return f"version {one.version} holds changes against another base"
        return None
