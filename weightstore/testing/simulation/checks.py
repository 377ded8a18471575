"""What must hold when a run is over: of everything that was served, and of the store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from weightstore.errors import WeightStoreError
from weightstore.format.records import ActivateRecord
from weightstore.testing.history_check import History, HistoryViolation, Read, check_history
from weightstore.testing.simulation.world import (
    SETTINGS,
    Served,
    World,
    engine_of,
    part_of,
    sha_of,
)

_DEEP_EVERY = 4
"""Every bit of every kept version is looked at in so many runs once: it takes long."""


def checked(world: World) -> list[str]:
    """Everything that does not hold."""
    return [*_served_wrongly(world), *_served_apart(world), *_unsettled(world), *_history(world)]


def _served_wrongly(world: World) -> Iterator[str]:
    """Blocks over other bits than a committed version's, or by no activation."""
    versions, activations = world.records()
    slots: dict[str, int] = {}
    expected: dict[tuple[str, int], str] = {}
    for each in world.served:
        text = f"{each.who} served version {each.version} from {each.begun_s:.3f} s"
        record = versions.get(each.version)
        if record is None:
            yield f"{text}: it was never committed"
            continue
        key = (each.who, each.version)
        if key not in expected:
            expected[key] = sha_of(part_of(world.bits[record.digest], world.shares[each.who]))
        if {each.before, each.after} != {expected[key]}:
            yield f"{text}: its bits are others"
        if each.mode == "active":
            may = _slots_served(world, each, activations)
            forward = [slot for slot in may if slot >= slots.get(each.who, 0)]
            if not may:
                yield f"{text}: no activation of the {each.max_staleness_s} s before names it"
            elif not forward:
                yield f"{text}: it had served by a later activation before"
            else:
                slots[each.who] = forward[0]


def _slots_served(world: World, each: Served, activations: list[ActivateRecord]) -> list[int]:
    """The activations that a block may have been served by.

    Each names the version, and was in force at a time in the staleness before the block's end.
    """
    from_s = each.ended_s - each.max_staleness_s
    found = []
    for number, record in enumerate(activations):
        landed_s = world.landed_s[record.slot]
        following = activations[number + 1 : number + 2]
        ended_s = world.landed_s[following[0].slot] if following else float("inf")
        if record.version == each.version and landed_s <= each.begun_s and ended_s >= from_s:
            found.append(int(record.slot))
    return found


def _unsettled(world: World) -> Iterator[str]:
    """Blocks that began with an older activation after a put had waited until there is none."""
    _, activations = world.records()
    for put in world.settled:
        for each in world.served:
            is_known = each.mode == "active" and engine_of(each.who) in put.engines
            if not is_known or each.begun_s <= put.at_s:
                continue
            may = _slots_served(world, each, activations)
            if may and max(may) < put.slot:
                yield (
                    f"{each.who} served version {each.version} from {each.begun_s:.3f} s: at "
                    f"{put.at_s:.3f} s {put.who} had waited for version {put.version} on it"
                )


def _served_apart(world: World) -> Iterator[str]:
    """Ranks of one engine that served different versions at the same time."""
    for first, second in combinations((one for one in world.served if "-rank-" in one.who), 2):
        is_one_engine = engine_of(first.who) == engine_of(second.who)
        is_together = first.begun_s < second.ended_s and second.begun_s < first.ended_s
        if is_one_engine and is_together and first.version != second.version:
            yield (
                f"{first.who} served version {first.version} and {second.who} version "
                f"{second.version} at {max(first.begun_s, second.begun_s):.3f} s"
            )


def _history(world: World) -> Iterator[str]:
    reads = tuple(
        Read(reader=each.who, order=order, version=each.version, is_latest=False)
        for order, each in enumerate(world.served)
    )
    try:
        check_history(
            world.store,
            History(acknowledged=tuple(world.acknowledged), reads=reads),
            deep=world.seed % _DEEP_EVERY == 0,
            limits=SETTINGS.limits,
        )
    except HistoryViolation as error:
        yield from map(str, error.violations)
    except WeightStoreError as error:
        yield f"the history cannot be checked: {error.message}"
