"""Who writes: a trainer with its successors, an activator, a collector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weightstore.errors import (
    FencedError,
    StepConflictError,
    StepOrderError,
    WeightStoreError,
)
from weightstore.format.member import members_sha256
from weightstore.format.records import ActivateRecord
from weightstore.history.commit import LogWriter
from weightstore.history.log import Log
from weightstore.history.members import SilenceWatch
from weightstore.history.store_format import create_store
from weightstore.ids import SessionId, Slot, StoreId, VersionId
from weightstore.store import WeightStore
from weightstore.store.fleet import activate_committed
from weightstore.store.reading import Components
from weightstore.store.views import Activation
from weightstore.testing.history_check import Acknowledged
from weightstore.testing.real_versions import next_weights, random_weights
from weightstore.testing.simulation.turns import Group
from weightstore.testing.simulation.world import (
    SCHEMA,
    SETTINGS,
    Bits,
    SettledPut,
    World,
    sha_of,
    tensors_of,
)
from weightstore.testing.virtual_time import SeededEntropy
from weightstore.trainer.session import TrainerSession

RUN = "grpo"


def make_store(world: World) -> StoreId:
    """Make the store before anything goes wrong."""
    return create_store(
        world.store,
        Log(world.store, SETTINGS.limits),
        clock=world.clock(Group("maker")),
        entropy=SeededEntropy(f"{world.seed}/maker"),
        settings=SETTINGS,
    )


def open_store(world: World, group: Group, store_id: StoreId) -> WeightStore:
    """A process's handle on the store."""
    entropy = SeededEntropy(f"{world.seed}/{group.name}")
    components = Components(world.blobs(group), world.clock(group), entropy)
    return WeightStore(components, store_id, settings=SETTINGS, cast={})


@dataclass
class Trainer:
    """The training run: each start takes the store over and goes on from the newest version."""

    world: World
    store_id: StoreId
    put_count: int = 0

    def main(self, group: Group, number: int) -> None:
        """What the process does from its start to its end."""
        world = self.world
        chances = world.chances(f"trainer/{number}")
        store = open_store(world, group, self.store_id)
        silence = SilenceWatch(world.clock(group), SETTINGS.member_silent_s)
        checkpoint = self._checkpoint(group, chances)
        session = self._attach(group, store, checkpoint)
        step, bits = checkpoint or self._newest(group)
        while not (world.is_calm and self.put_count):
            step += 1
            bits = self._next(bits, chances, step)
            is_anchor = float(chances.random()) < 0.25  # noqa: PLR2004 -- one in four
            version = self._put(group, session, step, bits, is_anchor=is_anchor)
            if version is None:
                return
            if float(chances.random()) < 0.2:  # noqa: PLR2004 -- one in five waits
                self._wait(group, silence, version)
            world.turns.pause(float(chances.random()) * 1.5)
        self._close(group, session)

    def _checkpoint(self, group: Group, chances: np.random.Generator) -> tuple[int, Bits] | None:
        """An older checkpoint that the run goes back to, now and then."""
        versions, _ = self.world.records()
        if not versions or float(chances.random()) > 0.4:  # noqa: PLR2004 -- four of ten
            return None
        record = versions[max(versions) - int(chances.integers(0, min(4, len(versions))))]
        self.world.counts["rewinds"] += record.version < max(versions)
        self.world.say(group.name, f"goes back to step {record.step}")
        return record.step, self.world.bits[record.digest]

    def _attach(
        self, group: Group, store: WeightStore, checkpoint: tuple[int, Bits] | None
    ) -> TrainerSession:
        rewind_to = None if checkpoint is None else checkpoint[0]
        while True:
            try:
                return store.trainer(RUN, take_over=True, rewind_to=rewind_to)
            except WeightStoreError as error:
                self.world.say(group.name, f"cannot claim: {type(error).__name__}")
                self.world.turns.pause(1.0)

    def _newest(self, group: Group) -> tuple[int, Bits | None]:
        """Where the run stands, as a trainer knows that goes on from its newest checkpoint."""
        log = Log(self.world.blobs(group), SETTINGS.limits)
        while True:
            try:
                newest = log.tail().now.newest
            except WeightStoreError:
                self.world.turns.pause(0.5)
                continue
            if newest is None:
                return 0, None
            return newest.step, self.world.bits[newest.digest]

    def _next(self, bits: Bits | None, chances: np.random.Generator, step: int) -> Bits:
        seed = int(chances.integers(0, 2**31)) + step
        if bits is None:
            return random_weights(SCHEMA, seed)
        share = float(chances.choice([0.0005, 0.01, 0.3]))
        return next_weights(bits, seed, share)

    def _put(
        self, group: Group, session: TrainerSession, step: int, bits: Bits, *, is_anchor: bool
    ) -> int | None:
        """Put a step until it is answered; its version, or None if this trainer must end."""
        world, tensors = self.world, tensors_of(bits)
        digest = world.keep_bits(tensors)
        while True:
            try:
                report = session.put_step(step, tensors, anchor=is_anchor).report()
            except FencedError:
                world.counts["fenced"] += 1
                world.say(group.name, f"step {step}: fenced")
                return None
            except (StepConflictError, StepOrderError) as error:
                world.break_rule(f"{group.name}: step {step}: {error.message}")
                return None
            except WeightStoreError as error:
                world.say(group.name, f"step {step}: {type(error).__name__}: {error.message}")
                world.turns.pause(0.5)
                continue
            self.put_count += 1
            world.counts["puts"] += 1
            world.say(group.name, f"step {step}: version {report.version}")
            world.acknowledged.append(
                Acknowledged(
                    version=report.version,
                    run=report.run,
                    step=step,
                    digest=digest,
                    bits_sha256=sha_of(bits),
                )
            )
            return report.version

    def _wait(self, group: Group, silence: SilenceWatch, version: int) -> None:
        """What `put_step(wait="active")` does after its put."""
        world, blobs = self.world, self.world.blobs(group)
        clock = world.clock(group)
        entropy = SeededEntropy(f"{world.seed}/{group.name}/{version}")

        def open_writer() -> LogWriter:
            return LogWriter(
                blobs,
                Log(blobs, SETTINGS.limits),
                clock=clock,
                entropy=entropy,
                settings=SETTINGS,
                session=SessionId(entropy.hex128()),
            )

        found = activate_committed(
            open_writer, blobs, VersionId(version), clock=clock, settings=SETTINGS, watch=silence
        )
        world.say(group.name, f"waited for version {version}: {found.missed or 'all serve it'}")
        if found.slot is None:
            return
        world.counts["waits"] += 1
        engines = world.engines_seen(group)
        world.settled.append(
            SettledPut(group.name, world.turns.now_s, version, int(found.slot), engines)
        )

    def _close(self, group: Group, session: TrainerSession) -> None:
        try:
            session.close()
        except WeightStoreError as error:
            self.world.say(group.name, f"close: {type(error).__name__}")


@dataclass
class Activator:
    """Names versions for the receivers of the mode `active`."""

    world: World
    store_id: StoreId

    def main(self, group: Group, number: int) -> None:
        """What the process does from its start to its end."""
        world = self.world
        chances = world.chances(f"activator/{number}")
        store = open_store(world, group, self.store_id)
        while not world.is_calm:
            world.turns.pause(0.2 + float(chances.random()) * 1.5)
            selector: int | str = "latest"
            kept = [each.version for each in world.acknowledged if each.version is not None]
            if kept and float(chances.random()) < 0.2:  # noqa: PLR2004 -- one in five rolls back
                selector = int(chances.choice(kept[-3:]))
            require_all = float(chances.random()) < 0.2  # noqa: PLR2004 -- one in five waits
            timeout_s = 0.2 + float(chances.random()) ** 2 * 6.0
            self.activate(group, store, selector, timeout_s=timeout_s, require_all=require_all)

    def activate(
        self,
        group: Group,
        store: WeightStore,
        selector: int | str,
        *,
        timeout_s: float,
        require_all: bool = False,
    ) -> int | None:
        """Activate once; the version, or None after an error."""
        world = self.world
        try:
            found = store.activate(selector, timeout_s=timeout_s, require_all=require_all)
        except WeightStoreError as error:
            world.say(group.name, f"activate {selector}: {type(error).__name__}: {error.message}")
            return None
        world.counts["activations"] += 1
        world.say(
            group.name,
            f"version {found.version} is active by slot {found.slot}, staged by "
            f"{found.staged_count} of {found.listed_count}",
        )
        world.acknowledged.append(Acknowledged(kind="activate", slot=found.slot))
        if not found.repeated:
            self._check_counted(group, found)
        return found.version

    def _check_counted(self, group: Group, found: Activation) -> None:
        """An activation counts those whose objects said so when it looked last."""
        world = self.world
        record = Log(world.store, SETTINGS.limits).stored_at(Slot(found.slot)).record
        assert isinstance(record, ActivateRecord)
        listed = [each for each in world.members_seen(group) if each.mode == "active"]
        ready = [
            each
            for each in listed
            if any(one and one.version == found.version for one in (each.staged, each.live))
        ]
        told = (record.listed_count, record.staged_count, record.members_sha256)
        if told != (len(listed), len(ready), members_sha256(listed)):
            world.break_rule(
                f"{group.name}: slot {found.slot} counts {told[1]} of {told[0]} receivers; "
                f"{len(ready)} of {len(listed)} had said that they have version {found.version}"
            )


@dataclass
class Collector:
    """Retires and sweeps, now and then."""

    world: World
    store_id: StoreId

    def main(self, group: Group, number: int) -> None:
        """What the process does from its start to its end."""
        world = self.world
        chances = world.chances(f"collector/{number}")
        store = open_store(world, group, self.store_id)
        while not world.is_calm:
            world.turns.pause(1.0 + float(chances.random()) * 5.0)
            try:
                report = store.retire(keep_newest=int(chances.integers(1, 4)))
            except WeightStoreError as error:
                world.say(group.name, f"retire: {type(error).__name__}: {error.message}")
                continue
            world.counts["retires"] += bool(report.gone)
            world.say(group.name, f"retired {report.gone}, deleted {report.deleted_count} objects")
