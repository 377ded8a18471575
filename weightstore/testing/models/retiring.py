"""Collection: names, retire records and sweeps over three versions and one in flight.

Version 1 is whole, 2 a delta from 1, 3 whole; a publisher may add 4, a delta from 3. A namer
tags or activates versions, a collector retires what nothing needs and sweeps, a second
collector follows it (also one whose operator asks for a wrong kept set), a reader without a
tag reads version 2. Record requests are lost or delayed, answers are lost, writes and deletes
are delayed past the death of who asked for them.

Bounds: 4 versions, 1 namer of at most 2 records, 2 collectors, 1 reader, 1 timeout or lost
answer for each writer, a death of the first collector anywhere and of anybody with a request
on its way (any other death is never moving again, which every search holds), 9 scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weightstore.format import kept as kept_sets
from weightstore.format.keys import TrainerKey
from weightstore.format.rules import Rule, is_kept, may_collect
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
    DEAD,
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

_NAMES = ("namer", "collector 1", "collector 2", "reader")
_NAMER, _FIRST, _SECOND, _READER = range(4)
_CHAINS: dict[int, tuple[int, ...]] = {1: (1,), 2: (2, 1), 3: (3,), 4: (4, 3)}
_READ_VERSION = 2


class Scenario(NamedTuple):
    """What the namer writes, and what the second collector's operator asks to keep.

    A wish of None is an honest collector; any other set is taken as it is, with everything
    tagged added, and never compared with the state.
    """

    label: str
    names: tuple[tuple[str, int], ...]
    wish: tuple[int, ...] | None = None


_SCENARIOS = (
    Scenario("tag 1", (("tag", 1),)),
    Scenario("tag 2", (("tag", 2),)),
    Scenario("tag 2, then untag", (("tag", 2), ("tag", 0))),
    Scenario("tag 1, then move the tag to 2", (("tag", 1), ("tag", 2))),
    Scenario("activate 1, then 2", (("activate", 1), ("activate", 2))),
    Scenario("activate 2, then 3", (("activate", 2), ("activate", 3))),
    Scenario("publish 4", (("upload", 4), ("version", 4))),
    Scenario("publish 4, operator wants 1 to 3", (("upload", 4), ("version", 4)), (1, 2, 3)),
    Scenario("activate 1, operator wants 3", (("activate", 1),), (3,)),
)


class RetiringModel:
    """See the module. An object is (version,).

    The namer remembers (next name); a collector (versions that it plans to keep, as bits,
    node whose kept versions it goes by, node whose state it goes by).
    """

    name = "retiring"
    bounds = "4 versions, namer, 2 collectors, reader, 1 timeout each, 9 scenarios"

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._tree = LogTree(variant.rules)
        self._writing = Writing(self._tree, variant, self)
        self._faults: dict[tuple[int, frozenset[Object]], str | None] = {}

    def beginnings(self) -> Iterator[tuple[str, World]]:
        """Versions 1 to 3 are there; a trainer holds the claim."""
        version = trainer_plan("version", PRELUDE, 3)._replace(attempt=1)
        delta = version._replace(version=2, step=1, digest=2, base=(1, 1))
        whole = version._replace(commit=4, version=3, step=2, digest=3)
        node = self._tree.trained(delta, whole)
        objects = frozenset[Object]({(1,), (2,), (3,)})
        first = "retire" if self._variant.keeps(Safeguard.RETIRE_FIRST) else "early"
        for number, scenario in enumerate(_SCENARIOS):
            actors = (
                Actor(scenario.names[0][0], 1, (0,)),
                Actor(first, 1, (0, 0, 0)),
                Actor("wait", 1, (0, 0, 0)),
                Actor("resolve"),
            )
            yield scenario.label, World(node, actors, objects, scenario=number)

    def moves(self, world: World) -> Iterator[Move]:
        """Somebody goes on or dies, or a delayed request lands."""
        yield from self._writing.late_moves(world)
        yield from loose_moves(world)
        for index, actor in enumerate(world.actors):
            if actor.op in {"tag", "activate", "version", "retire"}:
                yield from self._writing.moves(world, index, _NAMES[index])
            elif index == _READER:
                yield from self._read(world)
            elif index == _NAMER:
                yield from self._upload(world)
            else:
                yield from self._collect(world, index)
            if actor.is_waiting or index == _FIRST:
                yield from self._writing.death(world, index, _NAMES[index])

    def broken(self, world: World) -> str | None:
        """A fault seen by the reader, a false report, or a kept version without its objects."""
        key = (world.node, world.objects)
        if key not in self._faults:
            self._faults[key] = self._fault(*key)
        return world.fault or self._faults[key] or self._writing.false_report(world)

    def stuck(self, world: World) -> str | None:
        """Everybody ends."""
        return stuck(world)

    def plan(self, world: World, index: int) -> Plan:
        """The namer's next record, or the kept set."""
        if index != _NAMER:
            sent = world.actors[index].sent
            if sent is not None and not self._variant.keeps(Safeguard.PLAN_ANEW):
                return sent.plan
            kept = self._planned(world, index)
            return retire_plan(index, 100 * index, kept)
        place = world.actors[index].memory[0]
        kind, version = _SCENARIOS[world.scenario].names[place]
        now = self._tree.now(world.node)
        if kind == "tag":
            return Plan("tag", index, 50 + place, 1, tag="x", version=version)
        if kind == "activate":
            link = now.last_slots.get("activate")
            return Plan("activate", index, 50 + place, 1, version=version, link=link)
        return trainer_plan("version", index, 50 + place)._replace(
            version=version, attempt=1, step=3, digest=4, base=(3, 3)
        )

    def accepted(self, world: World, index: int, _: Entry) -> Actor:
        """The next name; or on to the sweep."""
        actor = world.actors[index]
        if index != _NAMER:
            return actor.turn("survey")
        return self._next_name(world, actor)

    def refused(self, world: World, index: int, plan: Plan, _: Rule) -> Actor:
        """A name of a retired version is refused; so is a wrong kept set."""
        return world.actors[index].say(plan.commit, FAILED).turn(END)

    def _next_name(self, world: World, actor: Actor) -> Actor:
        names = _SCENARIOS[world.scenario].names
        place = actor.memory[0] + 1
        return actor.turn(names[place][0], (place,)) if place < len(names) else actor.turn(END)

    def _upload(self, world: World) -> Iterator[Move]:
        actor = world.actors[_NAMER]
        if actor.op == "upload":
            after = self._next_name(world, actor)
            yield from object_put(world, _NAMER, (4,), after, _NAMES[_NAMER])

    def _planned(self, world: World, index: int) -> kept_sets.Kept:
        """Newest, active, previous active, everything tagged, and the chain of each."""
        now = self._tree.now(world.node)
        wish = _SCENARIOS[world.scenario].wish if index == _SECOND else None
        wanted = set(wish or ())
        if wish is None:
            named = (now.newest, now.active, now.previous_active)
            wanted.update(one.version for one in named if one is not None)
        if self._variant.keeps(Safeguard.KEEP_TAGGED):
            wanted.update(self._tagged(world.node))
        if self._variant.keeps(Safeguard.KEEP_CHAINS):
            wanted = {member for version in wanted for member in _CHAINS[version]}
        return kept_sets.of_versions(wanted)

    def _tagged(self, node: int) -> set[int]:
        tags = {one.tag: one.version for one in self._tree.valid(node) if one.kind == "tag"}
        return {version for version in tags.values() if version}

    def _collect(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        who = _NAMES[index]
        if actor.op == "wait" and world.actors[_FIRST].op in {END, DEAD}:
            yield f"{who} begins", world.turn(index, actor.turn("retire"))
        elif actor.op == "early":
            bits = _bits_of(self._planned(world, index))
            yield f"{who} plans", world.turn(index, actor.turn("raid", (bits, 0, world.node)))
        elif actor.op == "survey":
            names = actor.turn("state", (actor.memory[0], world.node, world.node))
            if self._variant.keeps(Safeguard.ONE_STATE):
                names = names.turn("sweep")
            yield f"{who} reads the log", world.turn(index, names)
        elif actor.op == "state":
            state = actor.turn("sweep", (*actor.memory[:2], world.node))
            yield f"{who} reads the log again", world.turn(index, state)
        elif actor.op in {"raid", "sweep"}:
            yield from self._sweep(world, index)

    def _sweep(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        who = _NAMES[index]
        for what in sorted(world.objects):
            if self._is_garbage(actor, what[0]):
                yield from object_delete(world, index, what, actor, who)
        after = actor.turn("retire") if actor.op == "raid" else actor.turn(END)
        yield f"{who} ends its sweep", world.turn(index, after)

    def _is_garbage(self, actor: Actor, version: int) -> bool:
        bits, names, state = actor.memory
        is_named = is_kept(self._tree.now(names), version)
        if actor.op == "raid":
            is_named = bool(bits >> version & 1)
        if not self._variant.keeps(Safeguard.NAMED_OBJECTS):
            is_named = False
        if not self._variant.keeps(Safeguard.EPOCH_AND_VERSION):
            return not is_named
        key = TrainerKey(RunId("r"), Epoch(1), VersionId(version), Attempt(1))
        return may_collect(self._tree.now(state), key, named_by_kept=is_named)

    def _read(self, world: World) -> Iterator[Move]:
        actor = world.actors[_READER]
        is_there = is_kept(self._tree.now(world.node), _READ_VERSION)
        if actor.op == "resolve":
            after = actor.turn("2" if is_there else END)
            yield f"reader resolves version 2, goes to {after.op}", world.turn(_READER, after)
        elif actor.op in {"2", "1"} and (int(actor.op),) in world.objects:
            after = actor.turn("1" if actor.op == "2" else END)
            yield f"reader reads object {actor.op}", world.turn(_READER, after)
        elif actor.op in {"2", "1"}:
            yield f"reader misses object {actor.op}", world.turn(_READER, actor.turn("again"))
        elif actor.op == "again":
            asks = self._variant.keeps(Safeguard.READ_AGAIN)
            fault = "" if asks and not is_there else "a reader called version 2 damaged"
            yield (
                "reader asks the log again",
                world.turn(_READER, actor.turn(END))._replace(fault=fault),
            )

    def _fault(self, node: int, objects: frozenset[Object]) -> str | None:
        now = self._tree.now(node)
        for what in (now.newest, now.active, now.previous_active):
            if what is not None and not is_kept(now, what.version):
                return f"version {what.version}, newest or active, is not kept"
        for version in self._tagged(node):
            if not is_kept(now, version):
                return f"tagged version {version} is not kept"
        for version in kept_sets.iterate(now.kept):
            for member in _CHAINS[version]:
                if (member,) not in objects:
                    return f"kept version {version} misses object {member}"
        return None


def _bits_of(kept: kept_sets.Kept) -> int:
    return sum(1 << version for version in kept_sets.iterate(kept))
