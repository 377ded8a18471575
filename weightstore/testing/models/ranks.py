"""Commit: one launch of two ranks, two attempts at one version, and a usurper.

Rank 0 coordinates: it opens an attempt, writes its pack and receipt, waits for both receipts
and puts the version record. Rank 1 writes its pack and receipt and waits for the verdict.
Whoever's deadline passes puts a `void` and from then on only that; a voided attempt is
followed by the next one. A usurper may take the store over at any moment. Requests are lost
or delayed, answers are lost, every rank dies anywhere.

Bounds: 2 ranks, 2 attempts, 2 timeouts or lost answers of rank 0 and 1 of each other, deaths
anywhere, 3 scenarios (all is well; rank 1 holds an older baseline; an older launch left a
pack and a receipt of the same version and attempt).
"""

from __future__ import annotations

from collections.abc import Iterator

from weightstore.format.rules import Rule
from weightstore.testing.models.logtree import PRELUDE, Entry, LogTree, Plan, trainer_plan
from weightstore.testing.models.world import (
    DONE,
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
    object_put,
    stuck,
)

_NAMES = ("rank 0", "rank 1", "usurper")
_RANKS = (0, 1)
_USURPER = 2
_ATTEMPTS = (1, 2)
_OPEN, _PACK, _RECEIPT = 1, 2, 3
_OLD_LAUNCH, _LAUNCH = 0, 1
_BASE, _NEW = 1, 2
_WAITS = {"open", "gather", "verdict"}


class RanksModel:
    """See the module. A rank remembers (attempt, content of its baseline)."""

    name = "ranks"
    bounds = "2 ranks, 2 attempts, a usurper, 2 + 1 + 1 timeouts, deaths anywhere, 3 scenarios"

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._tree = LogTree(variant.rules)
        self._writing = Writing(self._tree, variant, self)

    def beginnings(self) -> Iterator[tuple[str, World]]:
        """Version 1 is there and the launch holds the claim."""
        node = self._tree.trained()
        for label, baseline, objects in (
            ("all is well", _BASE, frozenset[Object]()),
            ("rank 1 holds an older baseline", 0, frozenset[Object]()),
            ("an older launch left a receipt", _BASE, frozenset(_objects(1, 1, _BASE, 0))),
        ):
            actors = (
                Actor("open", 2, (1, _BASE)),
                Actor("open", 1, (1, baseline)),
                Actor("claim", 1),
            )
            yield label, World(node, actors, objects)

    def moves(self, world: World) -> Iterator[Move]:
        """Somebody goes on or dies, or a delayed request lands."""
        yield from self._writing.late_moves(world)
        yield from loose_moves(world)
        for index, actor in enumerate(world.actors):
            if actor.op in {"version", "void", "claim"}:
                yield from self._writing.moves(world, index, _NAMES[index])
            if actor.op == "version":
                yield "deadline of rank 0", self._writing.leave(world, index, actor.turn("void"))
            if actor.op in {"pack", "receipt"}:
                yield from self._upload(world, index)
            if actor.op in _WAITS:
                yield from self._wait(world, index)
            yield from self._writing.death(world, index, _NAMES[index])

    def broken(self, world: World) -> str | None:
        """A false report, or a version that is not what all ranks made of their baselines."""
        return self._writing.false_report(world) or self._log_fault(world)

    def stuck(self, world: World) -> str | None:
        """Everybody ends."""
        return stuck(world)

    def plan(self, world: World, index: int) -> Plan:
        """A version record, a void, or the usurper's claim."""
        if index == _USURPER:
            claim = trainer_plan("claim", index, 90, epoch=2, session=2)
            return claim._replace(take_over=True, last_step=0)
        attempt = world.actors[index].memory[0]
        if world.actors[index].op == "void":
            void = trainer_plan("void", index, 30 + 10 * index + attempt)
            return void._replace(version=2, attempt=attempt)
        receipts = self._receipts(world, attempt)
        return trainer_plan("version", index, _commit(attempt))._replace(
            version=2,
            attempt=attempt,
            step=1,
            digest=_NEW,
            base=(1, _BASE),
            made_from=tuple(before for _, _, _, before, _ in receipts),
            names=frozenset((_PACK, rank, of, launch) for _, rank, of, _, launch in receipts),
        )

    def accepted(self, world: World, index: int, entry: Entry) -> Actor:
        """The version is there, or the attempt is over."""
        actor = world.actors[index]
        if entry.plan.kind == "void":
            return self._voided(actor)
        return actor.turn(END)

    def refused(self, world: World, index: int, plan: Plan, rule: Rule) -> Actor:
        """The log has decided already; it says how."""
        actor = world.actors[index]
        if plan.kind == "claim":
            return actor.turn(END)
        commit = _commit(plan.attempt)
        if commit in self._tree.commits(world.node):
            return actor.say(commit, DONE).turn(END)
        if rule is Rule.ATTEMPT:
            return self._voided(actor)
        return actor.say(commit, FAILED).turn(END)

    def _voided(self, actor: Actor) -> Actor:
        attempt, baseline = actor.memory
        over = actor.say(_commit(attempt), FAILED)
        if attempt == _ATTEMPTS[-1]:
            return over.turn(END)
        return over.turn("open", (attempt + 1, baseline))

    def _upload(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        order = (
            ["pack", "receipt"]
            if self._variant.keeps(Safeguard.PACKS_FIRST)
            else ["receipt", "pack"]
        )
        after = actor.turn("gather" if index == 0 else "verdict")
        if actor.op == order[0]:
            after = actor.turn(order[1])
        pack, receipt = _objects(index, actor.memory[0], actor.memory[1], _LAUNCH)
        what = pack if actor.op == "pack" else receipt
        yield from object_put(world, index, what, after, _NAMES[index])

    def _wait(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        if actor.op == "open":
            yield from self._open(world, index)
        elif actor.op == "gather":
            yield from self._gather(world, index)
        else:
            yield from self._verdict(world, index)

    def _open(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        first = "pack" if self._variant.keeps(Safeguard.PACKS_FIRST) else "receipt"
        what = (_OPEN, actor.memory[0])
        if index == 0:
            yield from object_put(world, index, what, actor.turn(first), _NAMES[index])
            return
        if what in world.objects:
            yield "rank 1 begins", world.turn(index, actor.turn(first))
        yield "rank 1 waits no longer", world.turn(index, actor.turn(END))

    def _gather(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        receipts = self._receipts(world, actor.memory[0])
        needed = len(_RANKS) if self._variant.keeps(Safeguard.ALL_RECEIPTS) else 1
        if len(receipts) >= needed:
            agree = all(before == _BASE for _, _, _, before, _ in receipts)
            fit = agree or not self._variant.keeps(Safeguard.BEFORE_TABLES)
            op = "version" if fit else "void"
            yield f"rank 0 has receipts, goes to {op}", world.turn(index, actor.turn(op))
        yield from self._deadline(world, index)

    def _verdict(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        commit = _commit(actor.memory[0])
        if commit in self._tree.commits(world.node):
            yield "rank 1 reads: committed", world.turn(index, actor.say(commit, DONE).turn(END))
            return
        for one in self._tree.valid(world.node):
            if one.kind == "void" and one.attempt == actor.memory[0]:
                yield "rank 1 reads: void", world.turn(index, self._voided(actor))
                return
            if one.who == _USURPER:
                failed = actor.say(commit, FAILED).turn(END)
                yield "rank 1 reads: fenced", world.turn(index, failed)
                return
        yield from self._deadline(world, index)

    def _deadline(self, world: World, index: int) -> Iterator[Move]:
        actor = world.actors[index]
        after = actor.turn("void")
        if not self._variant.keeps(Safeguard.VERDICT_FROM_LOG):
            after = actor.say(_commit(actor.memory[0]), FAILED).turn(END)
        yield f"deadline of {_NAMES[index]}", world.turn(index, after)

    def _receipts(self, world: World, attempt: int) -> list[tuple[int, int, int, int, int]]:
        """(_RECEIPT, rank, attempt, before, launch) of an attempt, one for each rank."""
        old_count = not self._variant.keeps(Safeguard.LAUNCH_KEYS)
        found: dict[int, tuple[int, int, int, int, int]] = {}
        for what in sorted(world.objects):
            if what[0] == _RECEIPT and what[2] == attempt and (what[4] == _LAUNCH or old_count):
                kind, rank, of, before, launch = what
                found.setdefault(rank, (kind, rank, of, before, launch))
        return list(found.values())

    def _log_fault(self, world: World) -> str | None:
        owner = PRELUDE
        for plan in self._tree.valid(world.node):
            if plan.kind == "claim":
                owner = plan.who
            if plan.kind != "version" or plan.who == PRELUDE:
                continue
            if owner == _USURPER:
                return "the launch committed after the usurper's claim"
            whole = {(_PACK, rank, plan.attempt, _LAUNCH) for rank in _RANKS}
            if plan.names != whole or not plan.names <= world.objects:
                return f"version {plan.version} lacks the pack of a rank"
            if set(plan.made_from) != {_BASE}:
                return f"version {plan.version} holds changes against another base"
        return None


def _objects(rank: int, attempt: int, before: int, launch: int) -> tuple[Object, Object]:
    """Pack and receipt of a rank."""
    return (_PACK, rank, attempt, launch), (_RECEIPT, rank, attempt, before, launch)


def _commit(attempt: int) -> int:
    return 10 + attempt
