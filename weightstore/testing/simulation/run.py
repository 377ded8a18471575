"""One run: everybody is let loose, the trouble ends, all come to the goal, and all is checked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from weightstore.receiver.serve_policy import ModeName
from weightstore.testing.simulation.agents import HostAgent, asking_an_agent
from weightstore.testing.simulation.checks import checked
from weightstore.testing.simulation.engines import RankedEngine
from weightstore.testing.simulation.far_store import Weather
from weightstore.testing.simulation.receivers import Rollout
from weightstore.testing.simulation.threads import taking_turns
from weightstore.testing.simulation.turns import Group
from weightstore.testing.simulation.world import TROUBLE_S, World
from weightstore.testing.simulation.writers import (
    Activator,
    Collector,
    Trainer,
    make_store,
    open_store,
)

Main = Callable[[Group, int], None]
MODES: tuple[ModeName, ...] = ("controller", "active", "latest")
EXTRA_MODES: tuple[ModeName, ...] = (*MODES, "active", "active")
"""Of one engine more: most can go wrong in the mode `active`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run has shown.

    Attributes:
        seed: Of the run.
        broken: Everything that is not as it must be; empty if all is well.
        counts: How often what happened.
        story: When, who, what; empty unless it was asked for.
        event_count: Turns that were taken.
    """

    seed: int
    broken: tuple[str, ...]
    counts: dict[str, int]
    story: tuple[tuple[float, str, str], ...]
    event_count: int


def simulate(
    seed: int, *, keep_story: bool = False, weather: Callable[[Weather], Weather] | None = None
) -> Outcome:
    """Run one seed to its end, and check it.

    Args:
        seed: Decides everything.
        keep_story: Keep a line of each event.
        weather: Changes what goes wrong; None leaves it to the seed.
    """
    world = World(seed, keep_story=keep_story)
    if weather is not None:
        world.sky.weather = weather(world.sky.weather)
    fleet = _Fleet(world)
    with (
        warnings.catch_warnings(),
        _silent(),
        taking_turns(world.turns),
        asking_an_agent(world, fleet.agent),
    ):
        warnings.simplefilter("ignore")
        world.turns.spawn(Group("director"), "director", fleet.direct)
        world.turns.run()
    world.broken += world.turns.failures
    if not world.broken:
        world.broken += checked(world)
    return Outcome(
        seed,
        tuple(world.broken),
        dict(world.counts),
        tuple(world.story),
        world.turns.event_count,
    )


@contextmanager
def _silent() -> Iterator[None]:
    """Let nothing be logged: what goes wrong is meant to."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _Fleet:
    """Everybody of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.chances = world.chances("fleet")
        self.store_id = make_store(world)
        extra = EXTRA_MODES[int(self.chances.integers(0, len(EXTRA_MODES)))]
        self.engines: list[Rollout | RankedEngine] = [
            Rollout(world, f"rollout-{number}-{mode}", mode) for number, mode in enumerate(MODES)
        ]
        # One engine more in every run, in half of them one of several ranks.
        is_ranked = float(self.chances.random()) < 0.5  # noqa: PLR2004 -- half
        kind, name = (RankedEngine, "engine") if is_ranked else (Rollout, "rollout")
        self.engines.append(kind(world, f"{name}-3-{extra}", extra))
        has_agent = float(self.chances.random()) < 0.5  # noqa: PLR2004 -- half
        self.agent = HostAgent(world) if has_agent else None
        names = [name for engine in self.engines for name, _ in engine.mains()]
        world.on_host = {name for name in names if float(self.chances.random()) < 0.7}  # noqa: PLR2004 -- most
        self.trainer = Trainer(world, self.store_id)
        self.activator = Activator(world, self.store_id)
        self.collector = Collector(world, self.store_id)
        self.goal: int | None = None
        self._open: list[Group] = []

    def direct(self) -> None:
        """Begin, end the trouble, and wait until everybody is where they should be."""
        world = self.world
        for engine in self.engines:
            for name, main in engine.mains():
                self._supervise(name, main)
        if self.agent is not None:
            self._supervise("agent", self.agent.main)
        self._supervise("trainer", self.trainer.main, has_zombies=True)
        self._supervise("activator", self.activator.main)
        self._supervise("collector", self.collector.main)
        world.turns.pause(TROUBLE_S)
        world.calm_down()
        world.say("director", "all is calm")
        self._await(self._is_done_training, 0.3)
        for name in ("trainer", "activator", "collector"):
            self._await(lambda name=name: self._is_over(name), 0.3)  # type: ignore[misc]
        self._settle()
        world.turns.finish()

    def _settle(self) -> None:
        """Activate the newest version, and wait until every engine serves it."""
        group = Group("director")
        store = open_store(self.world, group, self.store_id)
        while self.goal is None:
            self.goal = self.activator.activate(group, store, "latest", timeout_s=5.0)
            self.world.turns.pause(0.2)
        for engine in self.engines:
            self._await(lambda engine=engine: engine.is_at(self.goal), 0.3)  # type: ignore[misc]

    def _is_over(self, name: str) -> bool:
        return all(group.is_over for group in self._open if group.name.startswith(f"{name}#"))

    def _await(self, is_there: Callable[[], bool], poll_s: float) -> None:
        while not is_there():
            self.world.turns.pause(poll_s)

    def _supervise(self, name: str, main: Main, *, has_zombies: bool = False) -> None:
        """Start a process, and again whenever it has ended, as long as there is trouble.

        With zombies, a successor may come while the one before still runs.
        """
        world, chances = self.world, self.world.chances(f"supervisor/{name}")

        def watch() -> None:
            for number in count(1):
                group = Group(f"{name}#{number}")
                self._open.append(group)
                world.say(name, f"start {number}")
                world.turns.spawn(
                    group,
                    group.name,
                    lambda group=group, number=number: main(group, number),  # type: ignore[misc]
                )
                is_zombie = has_zombies and float(chances.random()) < 0.3  # noqa: PLR2004 -- three of ten
                patience_s = 2.0 + float(chances.random()) * 15.0 if is_zombie else None
                if not world.turns.await_end(group, patience_s) and world.is_calm:
                    world.turns.await_end(group)
                if not group.is_dead and group.is_over:
                    if has_zombies and not self._is_done_training():
                        world.turns.pause(0.5)
                        continue
                    return
                world.turns.pause(0.1 + float(chances.random()) * 3.0)

        world.turns.spawn(Group(f"supervisor/{name}"), f"supervisor/{name}", watch)

    def _is_done_training(self) -> bool:
        """Whether there is no more trouble, and something was put."""
        return self.world.is_calm and bool(self.trainer.put_count)
