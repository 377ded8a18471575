"""What all models share: actors, requests on their way, objects, and how a record is put.

The log register and every object are linearisable: a put takes effect at one moment. What
may go wrong is everything around that moment. A request may be lost or land at any later
time, an answer may be lost, a process may die between any two moves. A lost request is one
that is delayed for ever, so both are the same move here.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from weightstore.format.rules import Rule
from weightstore.testing.models.logtree import Entry, LogTree, Plan

END = "end"
DEAD = "dead"
DONE = "done"
FAILED = "failed"
UNKNOWN = "unknown"

Object = tuple[int, ...]


class Safeguard(enum.Enum):
    """Steps of writers, ranks, readers and collectors that a mutation may leave out."""

    READ_BACK = "after a lost answer, read the log before any report"
    OWN_COMMIT = "on an occupied slot, look for the own commit id"
    UNKNOWN_OUTCOME = "at the deadline, report an absent record as unknown"
    CONDITION = "the put is conditional"
    JUDGE_AGAIN = "judge a record again at every new slot"
    OWN_EPOCH = "a version record keeps the epoch of its claim"
    RUN_HISTORY = "a claim takes the last step from the history of the run"
    VERDICT_FROM_LOG = "a rank's deadline is no verdict; the log's is"
    ALL_RECEIPTS = "commit only with the receipts of all ranks"
    PACKS_FIRST = "a receipt follows its packs"
    LAUNCH_KEYS = "receipt keys hold epoch and session"
    BEFORE_TABLES = "receipts' tables before the step must sum to the parent's"
    PLAN_ANEW = "plan a retire anew whenever the prefix moved"
    KEEP_TAGGED = "the kept set holds everything tagged"
    KEEP_CHAINS = "the kept set holds whole chains"
    RETIRE_FIRST = "delete only what a retire record in the log let go"
    NAMED_OBJECTS = "never delete what a kept version names"
    ONE_STATE = "take state and names of kept versions from one prefix"
    EPOCH_AND_VERSION = "delete nothing that a future record can name"
    READ_AGAIN = "a reader that misses an object asks the log again"
    ALT_ONLY = "only an alt, not an intent, shortens a chain"
    OPEN_INTENTS = "never delete the anchor of an open intent"
    FRESH_ID = "every intent has a fresh anchor id"
    READ_ANCHOR = "read the anchor back before its alt"
    LATE_BASELINE = "the baseline moves on the verdict alone"
    PREDECESSOR_NAMES = "reuse a schema object only if the newest version names it"


@dataclass(frozen=True, slots=True)
class Variant:
    """What a mutation leaves out; nothing by default."""

    rules: frozenset[Rule] = frozenset()
    safeguards: frozenset[Safeguard] = frozenset()

    def keeps(self, safeguard: Safeguard) -> bool:
        """Whether a step is done."""
        return safeguard not in self.safeguards


PRODUCT = Variant()


class Request(NamedTuple):
    """A record built on a prefix, so meant for the slot after it."""

    node: int
    plan: Plan


class Report(NamedTuple):
    """What an actor told its caller about a commit id."""

    commit: int
    outcome: str


class Actor(NamedTuple):
    """A process: what it does next, its last request, what it remembers and has said."""

    op: str
    timeout_count: int = 0
    memory: tuple[int, ...] = ()
    is_waiting: bool = False
    sent: Request | None = None
    reports: tuple[Report, ...] = ()

    def turn(self, op: str, memory: tuple[int, ...] | None = None) -> Actor:
        """The actor at its next operation; at the end it forgets all but its reports."""
        if op in {END, DEAD}:
            return Actor(op, reports=self.reports)
        kept = self.memory if memory is None else memory
        return Actor(op, self.timeout_count, kept, reports=self.reports)

    def say(self, commit: int, outcome: str) -> Actor:
        """The actor after it reported an outcome."""
        return self._replace(reports=(*self.reports, Report(commit, outcome)))


class World(NamedTuple):
    """A state: the log, the actors, delayed requests, objects, and delayed object calls.

    `late` holds record requests for the free slot whose writers no longer wait; `loose`
    holds object writes (first number 1) and deletes (0) that may still land.
    """

    node: int
    actors: tuple[Actor, ...]
    objects: frozenset[Object] = frozenset()
    late: frozenset[Request] = frozenset()
    loose: frozenset[tuple[int, Object]] = frozenset()
    scenario: int = 0
    fault: str = ""

    def turn(self, index: int, actor: Actor) -> World:
        """The state with another actor at an index."""
        node, actors, objects, late, loose, scenario, fault = self
        actors = (*actors[:index], actor, *actors[index + 1 :])
        return World(node, actors, objects, late, loose, scenario, fault)


Move = tuple[str, World]


def stuck(world: World) -> str | None:
    """Why a state without moves is wrong: somebody has not come to an end."""
    living = [one.op for one in world.actors if one.op not in {END, DEAD}]
    return f"nothing can happen any more, but somebody is at {living}" if living else None


class Script(Protocol):
    """What an actor writes and how it goes on."""

    def plan(self, world: World, index: int, /) -> Plan:
        """The record that it would put at the tail that it reads now."""
        ...

    def accepted(self, world: World, index: int, entry: Entry, /) -> Actor:
        """The actor once its record counts in the log."""
        ...

    def refused(self, world: World, index: int, plan: Plan, rule: Rule, /) -> Actor:
        """The actor once the rules do not allow its record."""
        ...


def object_put(world: World, index: int, what: Object, after: Actor, who: str) -> Iterator[Move]:
    """An object is written, or its writer dies while the request is on its way.

    A writer that goes on has its answer: until then it repeats, which changes nothing.
    """
    done = world._replace(objects=world.objects | {what})
    yield f"{who} writes {what}", done.turn(index, after)
    dead = world.turn(index, world.actors[index].turn(DEAD))
    yield f"{who} dies writing {what}", dead._replace(loose=world.loose | {(1, what)})


def object_delete(world: World, index: int, what: Object, after: Actor, who: str) -> Iterator[Move]:
    """An object is deleted, or its collector dies while the request is on its way."""
    done = world._replace(objects=world.objects - {what})
    yield f"{who} deletes {what}", done.turn(index, after)
    dead = world.turn(index, world.actors[index].turn(DEAD))
    yield f"{who} dies deleting {what}", dead._replace(loose=world.loose | {(0, what)})


def loose_moves(world: World) -> Iterator[Move]:
    """Object requests of the dead land."""
    for one in world.loose:
        is_put, what = one
        objects = world.objects | {what} if is_put else world.objects - {what}
        label = f"a delayed {'write' if is_put else 'delete'} of {what} lands"
        yield label, world._replace(objects=objects, loose=world.loose - {one})


class Writing:
    """How a record is put, answered, lost, delayed, resolved: the same for every actor."""

    def __init__(self, tree: LogTree, variant: Variant, script: Script) -> None:
        self._tree = tree
        self._variant = variant
        self._script = script
        self._false: dict[tuple[int, tuple[Report, ...]], str | None] = {}

    def moves(self, world: World, index: int, who: str) -> Iterator[Move]:
        """What can happen next to an actor that is putting a record."""
        actor = world.actors[index]
        if actor.is_waiting:
            yield from self._answers(world, index, who)
            yield from self._silence(world, index, who)
        else:
            yield from self._decide(world, index, who)

    def at_once(self, world: World, index: int, who: str) -> Iterator[Move]:
        """Read and put in one move, for actors whose requests another model delays."""
        plan = self._script.plan(world, index)
        rule = self._tree.broken(world.node, plan)
        if rule is not None:
            after = self._script.refused(world, index, plan, rule)
            yield f"{who} may not {plan.kind} ({rule.value})", world.turn(index, after)
            return
        landed = self._landed(world, Request(world.node, plan))
        assert landed is not None
        entry = self._tree.path(landed.node)[-1]
        yield f"{who} puts {plan.kind}", self._done(landed, index, entry)

    def death(self, world: World, index: int, who: str) -> Iterator[Move]:
        """The actor dies; its request may still land."""
        actor = world.actors[index]
        if actor.op not in {END, DEAD}:
            yield f"{who} dies", self.leave(world, index, actor.turn(DEAD))

    def leave(self, world: World, index: int, after: Actor) -> World:
        """The actor turns to something else; a request of it may still land."""
        late = self._with_late(world, world.actors[index])
        return world.turn(index, after)._replace(late=late)

    def late_moves(self, world: World) -> Iterator[Move]:
        """Delayed requests land."""
        for request in world.late:
            landed = self._landed(world, request)
            if landed is not None:
                kind = request.plan.kind
                yield f"a delayed {kind} of {request.plan.who} lands", landed

    def false_report(self, world: World) -> str | None:
        """A report that the log contradicts: success without the record, failure with it."""
        for actor in world.actors:
            key = (world.node, actor.reports)
            if key not in self._false:
                self._false[key] = self._contradiction(world.node, actor.reports)
            if self._false[key]:
                return self._false[key]
        return None

    def _contradiction(self, node: int, reports: tuple[Report, ...]) -> str | None:
        commits = self._tree.commits(node)
        for commit, outcome in reports:
            if outcome == DONE and commit not in commits:
                return f"commit {commit} was reported as done and is not in the log"
            if outcome == FAILED and commit in commits:
                return f"commit {commit} was reported as failed and is in the log"
        return None

    def _answers(self, world: World, index: int, who: str) -> Iterator[Move]:
        actor = world.actors[index]
        assert actor.sent is not None
        kind = actor.sent.plan.kind
        landed = self._landed(world, actor.sent)
        if landed is None:
            yield f"{who}: slot of its {kind} is occupied", self._occupied(world, index)
            return
        yield f"{who} puts {kind}", self._done(landed, index, self._tree.path(landed.node)[-1])
        if actor.timeout_count:
            yield f"{who}: answer to its {kind} is lost", self._unanswered(landed, index)

    def _silence(self, world: World, index: int, who: str) -> Iterator[Move]:
        actor = world.actors[index]
        if actor.timeout_count:
            silent = self._unanswered(world, index).actors[index]
            yield f"{who}: no answer", self.leave(world, index, silent)

    def _occupied(self, world: World, index: int) -> World:
        actor = world.actors[index]
        assert actor.sent is not None
        if not self._variant.keeps(Safeguard.OWN_COMMIT):
            failed = actor.say(actor.sent.plan.commit, FAILED)
            return world.turn(index, failed.turn(END))
        return world.turn(index, actor._replace(is_waiting=False))

    def _unanswered(self, world: World, index: int) -> World:
        actor = world.actors[index]._replace(timeout_count=world.actors[index].timeout_count - 1)
        assert actor.sent is not None
        if not self._variant.keeps(Safeguard.READ_BACK):
            return world.turn(index, actor.say(actor.sent.plan.commit, FAILED).turn(END))
        if not self._variant.keeps(Safeguard.OWN_COMMIT):
            return world.turn(index, actor)  # sends again without a look at the log
        return world.turn(index, actor._replace(is_waiting=False))

    def _decide(self, world: World, index: int, who: str) -> Iterator[Move]:
        """Read to the tail and go by what stands there."""
        actor = world.actors[index]
        if actor.sent is not None:
            entry = self._tree.find(world.node, actor.sent.plan.commit)
            if entry is not None:
                yield f"{who} finds its {entry.plan.kind}", self._done(world, index, entry)
                return
            if actor.sent.node == world.node:
                yield f"{who} sends again", world.turn(index, actor._replace(is_waiting=True))
                yield f"{who} gives up", world.turn(index, self._give_up(actor))
                return
        plan = self._script.plan(world, index)
        rule = self._tree.broken(world.node, plan)
        if actor.sent is not None and not self._variant.keeps(Safeguard.JUDGE_AGAIN):
            rule = None
        if rule is None:
            sent = actor._replace(is_waiting=True, sent=Request(world.node, plan))
            yield f"{who} sends {plan.kind}", world.turn(index, sent)
        else:
            after = self._script.refused(world, index, plan, rule)
            yield f"{who} may not {plan.kind} ({rule.value})", world.turn(index, after)

    def _done(self, world: World, index: int, entry: Entry) -> World:
        said = world.turn(index, world.actors[index].say(entry.plan.commit, DONE))
        return said.turn(index, self._script.accepted(said, index, entry))

    def _give_up(self, actor: Actor) -> Actor:
        assert actor.sent is not None
        honest = self._variant.keeps(Safeguard.UNKNOWN_OUTCOME)
        return actor.say(actor.sent.plan.commit, UNKNOWN if honest else DONE).turn(END)

    def _with_late(self, world: World, actor: Actor) -> frozenset[Request]:
        if actor.sent is None or not self._is_free(world.node, actor.sent):
            return world.late
        return world.late | {actor.sent}

    def _is_free(self, node: int, request: Request) -> bool:
        gap = self._tree.length(node) - self._tree.length(request.node)
        return gap == 0 or (gap == 1 and not self._variant.keeps(Safeguard.CONDITION))

    def _landed(self, world: World, request: Request) -> World | None:
        if not self._is_free(world.node, request):
            return None
        node = self._tree.child(request.node, request.plan)
        late = frozenset(one for one in world.late if self._is_free(node, one))
        return world._replace(node=node, late=late - {request})
