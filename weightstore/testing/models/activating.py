"""Activation: one receiver in the mode `active`, two activators, and time.

The receiver looks at the log with answers that come late and out of order, stages, tells
others, drops, applies, is cut there, or does nothing for any time (a zombie). Version 1 is
active; one activator wants version 2 and may be asked again, the other wants 1 back. The
deadline of a wait may pass at any moment, and an activator may die before its record.

What is one receiver's own business touches no other receiver: its gate goes by the log, its
clock and its memory. So one of them stands for any number; one that is empty and has not
looked yet stands for every late and every restarted one. In the first two beginnings it has
two looks under way and needs no staging, in the others one look, and stages.

Bounds: 2 versions, 1 receiver with 1 or 2 looks under way, 2 activators, one of them asked
twice; the staleness bound is 1 tick, and ages beyond it are alike.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from weightstore.errors import ConflictError
from weightstore.format.records import ActiveVersion
from weightstore.history.activation import settled_slot
from weightstore.ids import Slot, VersionId
from weightstore.receiver.serve_policy import Mode, ServePolicy, TailView

STALENESS_TICKS = 1
_OLD = STALENESS_TICKS + 1
_VERSIONS = (1, 2)
_WISHES = (2, 1)
_ASKED = (2, 1)
_UNSEEN = -2
_NONE = -1
_NAMES = ("A", "B")


class ActivationStep(enum.Enum):
    """Safety steps of receivers and activators that a mutation may leave out."""

    POLICY = "a receiver in the mode `active` serves the active version alone"
    STALENESS = "a look at the tail is relied on for `max_staleness`"
    BEFORE_READ = "staleness counts from before the read"
    IN_ORDER = "an older look never replaces a newer one"
    WHOLE = "nothing is served while it is written"
    TAKE_BACK = "what is said to be staged is taken back before it is dropped"
    TRUE_CLAIM = "only what can be applied is said to be staged"
    OVERTAKEN = "an activation ends when another version was activated since it began"
    ONE_RECORD = "a version that is active is not activated again"


class Activation(NamedTuple):
    """An `activate` record: its version, its age in ticks, and the slot that it knew of."""

    version: int
    age: int
    before: int


class Receiver(NamedTuple):
    """One start of a receiver.

    Attributes:
        live: The version in its memory, or on its way there; 0 for none.
        is_whole: Whether it is wholly there.
        building: The version that is being staged.
        staged: The one that is ready.
        said: The one that its object says is ready.
        slot: The newest `activate` record that it has read.
        age: Of that look.
        reads: Looks under way: the newest record seen, or unseen, and their ages.
        served_slot: The highest record under which it has served.
    """

    live: int = 0
    is_whole: bool = False
    building: int = 0
    staged: int = 0
    said: int = 0
    slot: int = _NONE
    age: int = _OLD
    reads: tuple[tuple[int, int], ...] = ()
    served_slot: int = _NONE


class Activator(NamedTuple):
    """One that wants a version: when it began, and how often it may still be asked."""

    phase: str = "idle"
    before: int = _NONE
    asked: int = 1


class State(NamedTuple):
    """The log's activations, everybody, and whether the receiver stages before it applies."""

    records: tuple[Activation, ...]
    receiver: Receiver
    activators: tuple[Activator, ...]
    stages: bool


Move = tuple[str, State]


class ActivatingModel:
    """See the module.

    Args:
        removed: Safety steps that nobody takes.
    """

    name = "activating"
    bounds = "2 versions, 1 receiver with 1 or 2 looks, 2 activators, 3 asks, 1 tick"

    def __init__(self, removed: frozenset[ActivationStep] = frozenset()) -> None:
        self._removed = removed
        bound = STALENESS_TICKS if self._keeps(ActivationStep.STALENESS) else 1000
        self._policy = ServePolicy(Mode.ACTIVE, max_staleness_s=bound)

    def beginnings(self) -> Iterator[tuple[str, State]]:
        """Version 1 is active. The receiver serves it, or has just started."""
        records = (Activation(1, _OLD, _NONE),)
        activators = tuple(Activator(asked=asked) for asked in _ASKED)
        listed = Receiver(live=1, is_whole=True, slot=0, age=0)
        for stages in (False, True):
            how = "with staging" if stages else "with two looks"
            yield f"a receiver serves 1, {how}", State(records, listed, activators, stages)
            yield f"a receiver starts, {how}", State(records, Receiver(), activators, stages)

    def moves(self, state: State, /) -> Iterator[Move]:
        """Time goes on, or somebody does."""
        yield "time goes on", self._seen(_ticked(state))
        for label, receiver in self._receiver_moves(state):
            yield label, self._seen(state._replace(receiver=receiver))
        for index in range(len(state.activators)):
            yield from self._activator_moves(state, index)

    def broken(self, state: State, /) -> str | None:
        """What is served that must not be, said that is not so, or written that should not be."""
        receiver = state.receiver
        if self._serves(state):
            found = _wrongly_served(state)
            if found is not None:
                return found
        if receiver.said and not _has(receiver, receiver.said):
            return "an object says that a version is staged that is not there"
        return _wrongly_put(state.records)

    def stuck(self, state: State, /) -> str | None:
        """Time always goes on."""
        return f"nothing can happen in {state}"

    def _keeps(self, step: ActivationStep) -> bool:
        return step not in self._removed

    def _serves(self, state: State) -> bool:
        """Whether its gate lets a block begin."""
        receiver = state.receiver
        if not receiver.live or (self._keeps(ActivationStep.WHOLE) and not receiver.is_whole):
            return False
        if not self._keeps(ActivationStep.POLICY):
            return True
        version = state.records[receiver.slot].version if receiver.slot >= 0 else 0
        return not _refusal(self._policy, receiver.live, version, receiver.slot, receiver.age)

    def _seen(self, state: State) -> State:
        """The state, with what is served noted."""
        receiver = state.receiver
        is_news = receiver.slot > receiver.served_slot and not state.stages
        if is_news and self._serves(state):
            return state._replace(receiver=receiver._replace(served_slot=receiver.slot))
        return state

    def _receiver_moves(self, state: State) -> Iterator[tuple[str, Receiver]]:
        receiver = state.receiver
        yield from self._look_moves(state)
        if state.stages:
            yield from self._stage_moves(receiver)
        ready = (receiver.staged,) if state.stages else _VERSIONS
        for version in ready:
            if version and receiver.said in {0, version}:
                applying = receiver._replace(live=version, is_whole=False)
                yield f"the receiver begins to apply {version}", applying
        if receiver.live and not receiver.is_whole and receiver.live in ready:
            yield "the receiver has applied", receiver._replace(is_whole=True, staged=0)

    def _look_moves(self, state: State) -> Iterator[tuple[str, Receiver]]:
        """Begin to look, be answered by the store, and hear the answer, each at its time."""
        receiver = state.receiver
        if len(receiver.reads) < (1 if state.stages else 2):
            yield "a look begins", receiver._replace(reads=(*receiver.reads, (_UNSEEN, 0)))
        for index, (slot, age) in enumerate(receiver.reads):
            others = receiver.reads[:index] + receiver.reads[index + 1 :]
            if slot == _UNSEEN:
                reads = (*others, (len(state.records) - 1, age))
                yield "a look is answered", receiver._replace(reads=tuple(sorted(reads)))
                continue
            if not self._keeps(ActivationStep.BEFORE_READ):
                age = 0  # noqa: PLW2901 -- as if the answer had been the question
            known = (receiver.slot, receiver.age)
            heard = (slot, age)
            if self._keeps(ActivationStep.IN_ORDER):
                heard = _joined(known, heard)
            yield (
                "an answer is heard",
                receiver._replace(slot=heard[0], age=heard[1], reads=others),
            )

    def _stage_moves(self, receiver: Receiver) -> Iterator[tuple[str, Receiver]]:
        if not receiver.building and not receiver.staged:
            for version in _VERSIONS:
                if not (version == receiver.live and receiver.is_whole):
                    yield f"staging {version} begins", receiver._replace(building=version)
        if receiver.building:
            yield "it is staged", receiver._replace(staged=receiver.building, building=0)
        ready = receiver.staged
        if not self._keeps(ActivationStep.TRUE_CLAIM):
            ready = ready or receiver.building
        yield "the receiver says how it stands", receiver._replace(said=ready)
        if receiver.said:
            yield "it is taken back", receiver._replace(said=0)
        is_free = receiver.said != receiver.staged or not self._keeps(ActivationStep.TAKE_BACK)
        if receiver.staged and is_free:
            yield "it is dropped", receiver._replace(staged=0)

    def _activator_moves(self, state: State, index: int) -> Iterator[Move]:
        who, activator, wish = _NAMES[index], state.activators[index], _WISHES[index]

        def after(activator: Activator, records: tuple[Activation, ...]) -> State:
            activators = list(state.activators)
            activators[index] = activator
            return self._seen(state._replace(activators=tuple(activators), records=records))

        records = state.records
        if activator.phase == "idle" and activator.asked:
            begun = Activator("waits", len(records) - 1, activator.asked - 1)
            yield f"{who} is asked for version {wish}", after(begun, records)
        if activator.phase == "waits":
            idle = activator._replace(phase="idle", before=_NONE)
            yield f"{who} is lost", after(idle, records)
            if self._is_put(records, wish, activator.before):
                put = (*records, Activation(wish, 0, activator.before))
                yield f"{who} activates version {wish}", after(idle, put)
            else:
                yield f"{who} has nothing to put", after(idle, records)

    def _is_put(self, records: tuple[Activation, ...], wish: int, before: int) -> bool:
        """What the product decides at the tail of the log."""
        active = _active(records, len(records) - 1)
        known = _active(records, before)
        if not self._keeps(ActivationStep.OVERTAKEN):
            known = active
        if not self._keeps(ActivationStep.ONE_RECORD) and active.version == wish:
            return True
        try:
            return settled_slot(VersionId(wish), active=active, before=known) is None
        except ConflictError:
            return False


@cache
def _refusal(policy: ServePolicy, live: int, active: int, slot: int, age: int) -> str:
    """What the product's own policy says."""
    view = _view(slot, age, active) if slot >= 0 else None
    return policy.refusal(VersionId(live), view=view, now_s=0.0)


@cache
def _joined(known: tuple[int, int], heard: tuple[int, int]) -> tuple[int, int]:
    """What the product makes of two looks; one that saw nothing is none."""
    if known[0] < 0:
        return heard
    view = _view(*known).joined(_view(*heard))
    assert view.active_slot is not None
    return view.active_slot, int(-view.read_at_s)


def _view(slot: int, age: int, active: int = 1) -> TailView:
    return TailView(None, VersionId(active), Slot(slot), float(-age))


def _wrongly_served(state: State) -> str | None:
    """What is wrong with what is served."""
    receiver, records = state.receiver, state.records
    if not receiver.is_whole:
        return "a mixture is served"
    if receiver.slot < receiver.served_slot:
        return "a receiver goes back to an older activation"
    is_in_time = any(
        record.version == receiver.live and _was_active_lately(records, slot)
        for slot, record in enumerate(records)
    )
    return None if is_in_time else "another version is served longer than the bound"


def _wrongly_put(records: tuple[Activation, ...]) -> str | None:
    """What is wrong with the records."""
    for slot, record in enumerate(records[1:]):
        if record.version == records[slot].version:
            return "one wish made two records"
        if record.before != slot:
            return "an activation leads back from one that came meanwhile"
    return None


def _has(receiver: Receiver, version: int) -> bool:
    """Whether it can serve a version without the store."""
    return version == receiver.staged or (receiver.is_whole and version == receiver.live)


def _active(records: tuple[Activation, ...], slot: int) -> ActiveVersion:
    return ActiveVersion(version=VersionId(records[slot].version), slot=Slot(slot))


def _was_active_lately(records: tuple[Activation, ...], slot: int) -> bool:
    """Whether the record after this one, if there is one, is no older than the bound."""
    return slot + 1 == len(records) or records[slot + 1].age <= STALENESS_TICKS


def _ticked(state: State) -> State:
    receiver = state.receiver
    reads = tuple((slot, min(age + 1, _OLD)) for slot, age in receiver.reads)
    return state._replace(
        records=tuple(record._replace(age=min(record.age + 1, _OLD)) for record in state.records),
        receiver=receiver._replace(age=min(receiver.age + 1, _OLD), reads=reads),
    )
