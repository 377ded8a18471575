"""A fleet that is waited for: receivers that say what a script tells them, on virtual time."""

from __future__ import annotations

from collections.abc import Callable

from weightstore.format.records import ActivateRecord
from weightstore.history.activation import Activated, Applied, activate, wait_applied
from weightstore.history.log import Log
from weightstore.history.members import SilenceWatch
from weightstore.history.retire import Keep, retire
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.members import MemberActor
from weightstore.testing.toy_store import ToyStore
from weightstore.testing.virtual_time import VirtualClock

TIMEOUT_S = 30.0
SILENT_S = 5.0
POLL_S = 0.5
STALENESS_S = 10.0


class ScriptedClock(VirtualClock):
    """Lets things happen at their time, while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self._origin_s = self.monotonic_s()
        self._script: list[tuple[float, Callable[[], object]]] = []

    @property
    def passed_s(self) -> float:
        """Since the beginning."""
        return self.monotonic_s() - self._origin_s

    def at(self, time_s: float, happens: Callable[[], object]) -> None:
        """Schedule something."""
        self._script.append((time_s, happens))
        self._script.sort(key=lambda entry: entry[0])

    def sleep(self, duration_s: float, /) -> None:
        """Let time pass, and what is due happen."""
        super().sleep(duration_s)
        while self._script and self._script[0][0] <= self.passed_s:
            self._script.pop(0)[1]()


class WaitedFleet:
    """A store of four versions, three receivers, an activator, and a clock with a script.

    Args:
        blobs: What the activator sees; None is the store itself.
    """

    def __init__(self, blobs: BlobStore | None = None) -> None:
        self.inner = MemoryBlobStore()
        trainer_side = ToyStore(self.inner, "trainer")
        trainer_side.create()
        trainer = trainer_side.trainer()
        self.records = [trainer.put(step, b"%d" % step, full=True) for step in range(4)]
        self.blobs = blobs or self.inner
        self.receivers = [MemberActor(self.inner, number) for number in (1, 2, 3)]
        self.clock = ScriptedClock()
        self.store = self.handle("activator")

    def handle(
        self,
        seed: str,
        blobs: BlobStore | None = None,
        limits: Limits | None = None,
    ) -> ToyStore:
        """Another process's view of the store, on the same clock."""
        settings = Settings(commit_timeout_s=5.0, limits=limits or Limits())
        store = ToyStore(blobs or self.blobs, seed, settings)
        store.clock = self.clock
        return store

    def activate(
        self,
        version: int,
        *,
        store: ToyStore | None = None,
        timeout_s: float = TIMEOUT_S,
        require_staged: bool = False,
        watch: SilenceWatch | None = None,
    ) -> Activated:
        """Activate a version; as the product's `activate`."""
        store = store or self.store
        return activate(
            store.writer(),
            store.blobs,
            version=version,
            clock=self.clock,
            timeout_s=timeout_s,
            poll_s=POLL_S,
            silent_s=SILENT_S,
            require_staged=require_staged,
            watch=watch,
        )

    def wait(self, activated: Activated) -> Applied:
        """Wait after an activation; as the product's `wait_applied`."""
        return wait_applied(
            self.store.writer(),
            self.store.blobs,
            activated=activated,
            clock=self.clock,
            max_staleness_s=STALENESS_S,
            poll_s=POLL_S,
        )

    def keep_alive(self, *numbers: int, until_s: float = 40.0) -> None:
        """Some receivers write their objects now, and go on doing so."""
        for number in numbers:
            self.receivers[number].say()
            for second in range(1, int(until_s)):
                self.clock.at(float(second), self.receivers[number].say)

    def records_in_log(self) -> list[ActivateRecord]:
        """Every `activate` record that counts, newest first."""
        log = Log(self.inner, Limits())
        found = [stored.record for stored in log.records_of_kind(log.tail(), "activate")]
        assert all(isinstance(record, ActivateRecord) for record in found)
        return [record for record in found if isinstance(record, ActivateRecord)]

    def retire_to(self, newest_count: int) -> None:
        """Keep only so many of the newest versions."""
        store = ToyStore(self.inner, f"collector-{newest_count}")
        retire(
            store.writer(),
            store.blobs,
            Keep(newest_count=newest_count),
            chain_of=store.chain_of,
            objects_of=store.objects_of,
        )
