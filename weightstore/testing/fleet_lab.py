"""Receivers that follow one store on virtual time, each over storage of its own temper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from weightstore.clock import Clock
from weightstore.errors import BlobOutcomeUnknownError, NotReadyError, StorageFailedError
from weightstore.format.member import Member
from weightstore.history.activation import activate
from weightstore.history.log import Log
from weightstore.history.members import list_members
from weightstore.ids import Slot
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, Units
from weightstore.receiver.follower import Follower
from weightstore.receiver.host_live import place_arrays
from weightstore.receiver.placement import Placement
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.refits import At
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.blobs import BlobStore
from weightstore.testing.faults import Call, Method, RecordingBlobs
from weightstore.testing.receiver_lab import Bits, ReceiverLab
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock

_Result = TypeVar("_Result")

ACTIVE = ReceiverSettings(
    mode="active", max_staleness_s=2.0, poll_s=0.5, stage_hold_s=4.0, heartbeat_s=1.0
)
LATEST = ReceiverSettings(mode="latest", poll_s=0.5)


class MoodyBlobs(RecordingBlobs):
    """A store that fails where it is told to, and whose calls take virtual time.

    Attributes:
        fails: Which calls are turned away.
        loses: Of which writes the answer is lost.
        latency_s: Of each call.
        before: Called before each call.
    """

    def __init__(self, inner: BlobStore, clock: VirtualClock) -> None:
        super().__init__(inner)
        self._clock = clock
        self.fails: Callable[[Call], bool] = lambda _: False
        self.loses: Callable[[Call], bool] = lambda _: False
        self.before: Callable[[Call], None] = lambda _: None
        self.latency_s = 0.0

    def break_down(self) -> None:
        """Turn every call away."""
        self.fails = lambda _: True

    def refuse_writes(self, *methods: Method) -> None:
        """Turn writes of some kinds away."""
        self.fails = lambda call: call.method in methods

    def mend(self) -> None:
        """Work again."""
        self.fails = lambda _: False

    def _happen(self, call: Call, effect: Callable[[], _Result]) -> _Result:
        self.before(call)
        if self.fails(call):
            raise StorageFailedError(f"{call.method.value} {call.key}: turned away")
        try:
            found = effect()
        finally:
            # The answer comes late: what it says was so before.
            self._clock.sleep(self.latency_s)
        if self.loses(call):
            raise BlobOutcomeUnknownError(f"{call.method.value} {call.key}: no answer")
        return found


@dataclass
class Rollout:
    """One receiver of a fleet, with its follower.

    Attributes:
        receiver: It.
        follower: Moves it; no thread runs.
        arrays: Its live memory.
        blobs: Its way to the store.
    """

    receiver: Receiver
    follower: Follower
    arrays: Bits
    blobs: MoodyBlobs

    def served(self) -> int | None:
        """The version that a block is given now; None where it is refused."""
        try:
            with self.receiver.serving() as version:
                return version
        except NotReadyError:
            return None

    def steps(self, count: int = 1) -> None:
        """Follow so many steps; no time passes."""
        for _ in range(count):
            self.follower.step()


class FleetLab:
    """A store with versions, an activator, and any number of receivers.

    Args:
        lab: The store and what its versions hold.
    """

    def __init__(self, lab: ReceiverLab) -> None:
        self.lab = lab
        self.clock = lab.versions.store.clock
        self._start_count = 0

    def rollout(
        self,
        settings: ReceiverSettings = ACTIVE,
        *,
        at: At = "step",
        arrays: Bits | None = None,
        clock: Clock | None = None,
    ) -> Rollout:
        """Start a receiver; over memory that another one has left, if it is given.

        Args:
            settings: Of the receiver.
            at: When it writes weights.
            arrays: Live memory; None makes new.
            clock: A real one where threads are to run; None takes the virtual one.
        """
        self._start_count += 1
        blobs = MoodyBlobs(self.lab.blobs, self.clock)
        held = self.lab.arrays() if arrays is None else arrays
        used = self.lab.versions.store.settings
        targets: dict[str, Units | HostTensor] = dict(held)

        def place(schema: Schema) -> Placement:
            return self.lab.fused(place_arrays(schema, targets, {}))

        receiver = Receiver(
            VersionSource(blobs, Log(blobs, used.limits), used),
            place,
            clock=clock or self.clock,
            settings=settings,
            entropy=SeededEntropy(f"start {self._start_count}"),
        )
        return Rollout(receiver, receiver.follow(at=at), held, blobs)

    def activate(self, version: int) -> Slot:
        """Name a version in the log, whoever has it staged."""
        store = self.lab.versions.store
        found = activate(
            store.writer(),
            self.lab.blobs,
            version=version,
            clock=self.clock,
            timeout_s=0.0,
            poll_s=0.1,
            silent_s=1.0,
        )
        return found.slot

    def member(self, rollout: Rollout) -> Member | None:
        """What a receiver says about itself; None where its object is not there."""
        listed = list_members(self.lab.blobs, self.lab.versions.store.settings.limits)
        assert not listed.unreadable
        wanted = rollout.follower.membership.member_id
        return next((each for each in listed.members if each.member_id == wanted), None)

    def staged_of(self, rollout: Rollout) -> int | None:
        """The version that a receiver says is staged."""
        member = self.member(rollout)
        return member.staged.version if member and member.staged else None
