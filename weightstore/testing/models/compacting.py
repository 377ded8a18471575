"""Collection: compactors that write anchors beside a collector that retires and sweeps.

Version 1 is whole, 2 a delta from 1. Each compactor opens an intent for version 2, writes the
two files of an anchor, reads them back and puts the `alt` that makes version 2 whole. The
collector voids intents that it takes for dead, retires what nothing needs any more, and
sweeps versions and anchors, twice. A publisher may add version 3, whole. Requests are lost
or delayed, answers are lost, deletes and writes are delayed past the death of who asked for
them, a write of an anchor may be lost although it was answered, everybody dies anywhere.

Bounds: 3 versions, at most 2 compactors (the second follows the first) of 1 anchor of 2
files, 1 collector of at most 2 rounds, 1 publisher, 1 timeout or lost answer for the first
compactor, the others put at once (`retiring` delays a collector's requests), a death of the
first compactor anywhere and of anybody with an object request on its way (any other death is
never moving again, which every search holds), 5 scenarios.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from weightstore.format import kept as kept_sets
from weightstore.format.keys import TrainerKey
from weightstore.format.records import Kind
from weightstore.format.rules import AnchorFate, Rule, is_kept, may_collect, may_collect_anchor
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

_NAMES = ("compactor 1", "compactor 2", "collector", "publisher")
_COMPACTORS = (0, 1)
_COLLECTOR, _PUBLISHER = 2, 3
_VERSION, _ANCHOR = 0, 1
_TARGET = 2
_FILES = (1, 2)


class Scenario(NamedTuple):
    """Who takes part, for how many rounds of the collector, and what else is so."""

    label: str
    round_count: int = 2
    has_second: bool = False
    has_publisher: bool = True
    is_tagged: bool = False
    writes_vanish: bool = False


_SCENARIOS = (
    Scenario("one compactor"),
    Scenario("one compactor, version 2 is tagged", is_tagged=True),
    Scenario("two compactors", has_second=True, has_publisher=False),
    Scenario("two compactors and a publisher", round_count=1, has_second=True),
    Scenario("writes vanish", writes_vanish=True),
)


class CompactingModel:
    """See the module. Objects are (_VERSION, version) and (_ANCHOR, anchor, file).

    The collector remembers (round, node of its survey).
    """

    name = "compacting"
    bounds = "3 versions, 2 compactors, a collector, a publisher, 1 timeout, 5 scenarios"

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._tree = LogTree(variant.rules)
        self._writing = Writing(self._tree, variant, self)
        self._faults: dict[tuple[int, frozenset[Object]], str | None] = {}

    def beginnings(self) -> Iterator[tuple[str, World]]:
        """Versions 1 and 2 are there; a trainer holds the claim and has written version 3."""
        delta = trainer_plan("version", PRELUDE, 3)._replace(
            version=2, attempt=1, step=1, digest=2, base=(1, 1)
        )
        tag = Plan("tag", PRELUDE, 4, 1, version=2, tag="x")
        objects = frozenset[Object]((_VERSION, version) for version in (1, 2, 3))
        for number, scenario in enumerate(_SCENARIOS):
            node = self._tree.trained(delta, *((tag,) if scenario.is_tagged else ()))
            actors = (
                Actor("intent", 1),
                Actor("wait" if scenario.has_second else END),
                Actor("judge", 0, (1, 0)),
                Actor("version" if scenario.has_publisher else END),
            )
            yield scenario.label, World(node, actors, objects, scenario=number)

    def moves(self, world: World) -> Iterator[Move]:
        """Somebody goes on or dies, or a delayed request lands."""
        yield from self._writing.late_moves(world)
        yield from loose_moves(world)
        for index, actor in enumerate(world.actors):
            if actor.op in {"intent", "alt", "void", "retire", "version"}:
                put = self._writing.moves if index == 0 else self._writing.at_once
                yield from put(world, index, _NAMES[index])
            elif index in _COMPACTORS:
                yield from self._compact(world, index)
            elif index == _COLLECTOR:
                yield from self._collect(world)
            if index == 0:
                yield from self._writing.death(world, index, _NAMES[index])

    def broken(self, world: World) -> str | None:
        """A false report, or a kept version that cannot be read."""
        key = (world.node, world.objects)
        if key not in self._faults:
            self._faults[key] = self._fault(*key)
        return self._faults[key] or self._writing.false_report(world)

    def stuck(self, world: World) -> str | None:
        """Everybody ends."""
        return stuck(world)

    def plan(self, world: World, index: int) -> Plan:
        """An intent, its alt or void, a kept set, or version 3."""
        actor = world.actors[index]
        if actor.op in {"intent", "alt"}:
            kind: Kind = "intent" if actor.op == "intent" else "alt"
            commit = 10 * (index + 1) + ("intent", "alt").index(actor.op)
            return Plan(kind, index, commit, 1, version=_TARGET, anchor_id=self._anchor_id(index))
        if index == _PUBLISHER:
            version = trainer_plan("version", index, 90)
            return version._replace(version=3, attempt=1, step=2, digest=3)
        commit = 100 + 10 * actor.memory[0] + ("void", "retire").index(actor.op)
        if actor.op == "void":
            intents = self._tree.now(world.node).intents
            anchor_id = intents[0].anchor_id if intents else "none"
            return Plan("void", index, commit, 1, anchor_id=anchor_id)
        return retire_plan(index, commit, self._planned(world.node))

    def accepted(self, world: World, index: int, entry: Entry) -> Actor:
        """On to the next operation."""
        actor = world.actors[index]
        following = {"intent": "1", "void": "retire", "retire": "survey"}
        return actor.turn(following.get(entry.plan.kind, END))

    def refused(self, world: World, index: int, plan: Plan, _: Rule) -> Actor:
        """Another one voided first; or the intent is gone, and with it the compactor's work."""
        actor = world.actors[index].say(plan.commit, FAILED)
        return actor.turn("retire" if plan.kind == "void" else END)

    def _anchor_id(self, index: int) -> str:
        return f"c{index if self._variant.keeps(Safeguard.FRESH_ID) else 0}"

    def _compact(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        who = _NAMES[index]
        anchor = int(self._anchor_id(index)[1:])
        if actor.op == "wait" and world.actors[0].op in {END, DEAD}:
            yield f"{who} begins", world.turn(index, actor.turn("intent"))
        elif actor.op == "check":
            whole = {(_ANCHOR, anchor, file) for file in _FILES} <= world.objects
            trusts = not self._variant.keeps(Safeguard.READ_ANCHOR)
            after = actor.turn("alt" if whole or trusts else END)
            yield f"{who} reads its anchor, goes to {after.op}", world.turn(index, after)
        elif actor.op in {"1", "2"}:
            after = actor.turn("2" if actor.op == "1" else "check")
            what = (_ANCHOR, anchor, int(actor.op))
            yield from object_put(world, index, what, after, who)
            if _SCENARIOS[world.scenario].writes_vanish:
                yield f"{who} writes {what}, which vanishes", world.turn(index, after)

    def _collect(self, world: World) -> Iterator[Move]:
        actor = world.actors[_COLLECTOR]
        if actor.op == "judge":
            if self._tree.now(world.node).intents:
                yield (
                    "collector takes a compactor for dead",
                    world.turn(_COLLECTOR, actor.turn("void")),
                )
            idle = self._planned(world.node) == self._tree.now(world.node).kept
            after = actor.turn("survey" if idle else "retire")
            yield f"collector voids nothing, goes to {after.op}", world.turn(_COLLECTOR, after)
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
        now = self._tree.now(node)
        if what[0] == _VERSION:
            key = TrainerKey(RunId("r"), Epoch(1), VersionId(what[1]), Attempt(1))
            return may_collect(now, key, named_by_kept=is_kept(now, what[1]))
        fate = self._fate(node, what[1])
        if fate is AnchorFate.OPEN and not self._variant.keeps(Safeguard.OPEN_INTENTS):
            return True
        return may_collect_anchor(now, fate, _TARGET)

    def _fate(self, node: int, anchor: int) -> AnchorFate:
        fates = {
            "intent": AnchorFate.OPEN,
            "void": AnchorFate.VOIDED,
        }
        kinds = [one.kind for one in self._tree.valid(node) if one.anchor_id == f"c{anchor}"]
        if "alt" in kinds:
            return AnchorFate.USED
        return fates[kinds[-1]] if kinds else AnchorFate.UNKNOWN

    def _planned(self, node: int) -> kept_sets.Kept:
        """Newest, tagged, and the chain of each: to a whole version or to an alt."""
        now = self._tree.now(node)
        shorten = {"alt"} if self._variant.keeps(Safeguard.ALT_ONLY) else {"alt", "intent"}
        plans = self._tree.valid(node)
        wanted = {now.newest.version} if now.newest is not None else set()
        wanted.update(VersionId(one.version) for one in plans if one.kind == "tag")
        if _TARGET in wanted and not any(one.kind in shorten for one in plans):
            wanted.add(VersionId(1))
        return kept_sets.of_versions(wanted)

    def _fault(self, node: int, objects: frozenset[Object]) -> str | None:
        now = self._tree.now(node)
        plans = self._tree.valid(node)
        for version in kept_sets.iterate(now.kept):
            if (_VERSION, version) not in objects:
                return f"kept version {version} misses its own object"
        alts = [one for one in plans if one.kind == "alt"] if is_kept(now, _TARGET) else []
        for alt in alts:
            for file in _FILES:
                if (_ANCHOR, int(alt.anchor_id[1:]), file) not in objects:
                    return f"the alt of kept version 2 misses file {file} of {alt.anchor_id}"
        if is_kept(now, _TARGET) and not is_kept(now, 1) and not alts:
            return "kept version 2 has neither its base nor a whole form"
        return None
