"""What one run is made of: time, store, weather, and everything that anybody saw."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.digest import lanes_of, state_digest
from weightstore.errors import WeightStoreError
from weightstore.format.keys import LOG_PREFIX, RECEIVERS_PREFIX
from weightstore.format.member import Member, decode_member
from weightstore.format.records import ActivateRecord, VersionRecord, decode_record
from weightstore.format.rules import EMPTY_PREFIX, Invalid
from weightstore.history.log import Log
from weightstore.ids import Slot
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.receiver.live_state import Live, Ready, Staged, Whole
from weightstore.settings import Settings
from weightstore.testing.faults import Fault, Method
from weightstore.testing.history_check import Acknowledged, bits_sha256_of
from weightstore.testing.simulation.far_store import (
    CALM,
    FarBlobs,
    Sky,
    WatchedStore,
    Weather,
)
from weightstore.testing.simulation.turns import Group, Turns

Bits = dict[str, Units]
Share = Mapping[str, Box]
"""The part of each tensor that lives in one process."""

SCHEMA = Schema.build(
    [
        TensorSpec("bias", DType.F32, (40,)),
        TensorSpec("norm", DType.BF16, (200,)),
        TensorSpec("scale", DType.F64, ()),
        TensorSpec("weight", DType.BF16, (60, 70)),
    ]
)
TROUBLE_S = 12.0
"""So long things go wrong."""
SETTLE_S = 150.0
"""So long afterwards everybody may take to come to the end."""
MAX_STALENESS_S = 2.0
"""How long a receiver of the mode `active` relies on a look at the log."""
SETTINGS = Settings(
    thread_count=1,
    use_index=False,
    commit_timeout_s=4.0,
    warn_changed_ratio=1.0,
    full_after_chain_count=5,
    full_after_chain_ratio=1e9,
    activate_poll_s=0.3,
    activate_max_staleness_s=MAX_STALENESS_S,
    member_silent_s=4.0,
)


class TurnClock:
    """The clock of one process: virtual time, from an origin of its own."""

    def __init__(self, turns: Turns, origin_s: float) -> None:
        self._turns = turns
        self._origin_s = origin_s

    def monotonic_s(self) -> float:
        """Seconds from the process's own origin."""
        return self._turns.now_s + self._origin_s

    def unix_ms(self) -> int:
        """Milliseconds; no two processes agree on them."""
        return 1_700_000_000_000 + int((self._turns.now_s + self._origin_s) * 1000)

    def sleep(self, duration_s: float, /) -> None:
        """Give the turn away."""
        self._turns.pause(duration_s)


@dataclass(frozen=True, slots=True)
class Served:
    """One block of one engine that came to its end without an error.

    Attributes:
        who: Process.
        mode: Of its receiver.
        begun_s: Virtual time.
        ended_s: Virtual time.
        version: What it was told to serve.
        before: Hash of the live bits when it began.
        after: Hash of them when it ended.
        max_staleness_s: Of its receiver.
    """

    who: str
    mode: str
    begun_s: float
    ended_s: float
    version: int
    before: str
    after: str
    max_staleness_s: float


@dataclass(frozen=True, slots=True)
class SettledPut:
    """A put that has waited until the receivers it knew of served its version, or nothing.

    Attributes:
        who: Process that put.
        at_s: Virtual time.
        version: Of the put.
        slot: Of its activation.
        engines: Those that it knew of and whose process lived, by `engine_of`.
    """

    who: str
    at_s: float
    version: int
    slot: int
    engines: frozenset[str]


class Standing(Protocol):
    """A receiver, or an engine of several ranks."""

    @property
    def live(self) -> Live:
        """What its live memory holds."""
        ...

    @property
    def staged(self) -> Staged:
        """What is ready to be applied."""
        ...


@dataclass(slots=True)
class Claimed:
    """A receiver, and the last that it has said of itself."""

    receiver: Standing
    group: Group
    member: Member | None = None

    @property
    def counter(self) -> int:
        """Of the newest object that has arrived."""
        return self.member.counter if self.member else -1


class World:
    """Everything of one run. Also the store's watcher.

    Args:
        seed: Decides everything.
        keep_story: Keep a line of each event.
    """

    def __init__(self, seed: int, *, keep_story: bool = False) -> None:
        self.seed = seed
        self.turns = Turns(self.chances("turns"), TROUBLE_S + SETTLE_S)
        self.store = WatchedStore(self)
        weather = _weather(self.chances("weather"))
        self.sky = Sky(self.turns, self.chances("sky"), self, weather)
        self.is_calm = False
        self.story: list[tuple[float, str, str]] = []
        self.broken: list[str] = []
        self.counts: Counter[str] = Counter()
        self.acknowledged: list[Acknowledged] = []
        self.served: list[Served] = []
        self.settled: list[SettledPut] = []
        self.landed_s: dict[int, float] = {}
        self.bits: dict[str, Bits] = {}
        self.claims: dict[str, Claimed] = {}
        self.shares: dict[str, Share] = {}
        self.on_host: set[str] = set()
        self.channel_sky = Sky(
            self.turns, self.chances("channel"), self, replace(weather, outages=(), latency_s=0.002)
        )
        self._keep_story = keep_story
        self._members_seen: dict[str, dict[str, Member]] = {}

    def chances(self, what: str) -> np.random.Generator:
        """A source of chance of its own for one purpose."""
        words = hashlib.sha256(f"{self.seed}/{what}".encode()).digest()
        return np.random.default_rng(int.from_bytes(words[:8], "little"))

    def blobs(self, group: Group) -> FarBlobs:
        """The way of a process to the store."""
        return FarBlobs(self.store, self.sky, group)

    def clock(self, group: Group) -> TurnClock:
        """The clock of a process."""
        return TurnClock(self.turns, float(self.chances(f"clock/{group.name}").random()) * 1e4)

    def calm_down(self) -> None:
        """From now on nothing goes wrong any more."""
        self.is_calm = True
        self.sky.weather = self.channel_sky.weather = CALM

    def records(self) -> tuple[dict[int, VersionRecord], list[ActivateRecord]]:
        """Versions by number, and activations in order, as the log has them now."""
        versions: dict[int, VersionRecord] = {}
        activations: list[ActivateRecord] = []
        for step in Log(self.store, SETTINGS.limits).steps(EMPTY_PREFIX):
            record = step.stored.record
            if isinstance(step.verdict, Invalid):
                continue
            if isinstance(record, VersionRecord):
                versions[int(record.version)] = record
            elif isinstance(record, ActivateRecord):
                activations.append(record)
        return versions, activations

    def break_rule(self, what: str) -> None:
        """Note that something is not as it must be; the run ends."""
        self.broken.append(f"{self.turns.now_s:.3f} s: {what}")
        self.say("world", f"BROKEN: {what}")
        self.turns.finish()

    def say(self, who: str, what: str) -> None:
        """A line for the story of the run."""
        if self._keep_story:
            self.story.append((self.turns.now_s, who, what))

    # --- What the store tells ----------------------------------------------------------

    def written(self, key: str, data: bytes, /) -> None:
        """See `Watcher.written`."""
        if key.startswith(LOG_PREFIX):
            slot = int(key.removeprefix(LOG_PREFIX))
            self.landed_s[slot] = self.turns.now_s
            if self._keep_story:
                self.say("store", _record_text(data, slot))
        elif key.startswith(RECEIVERS_PREFIX):
            member = decode_member(data, what=key)
            known = self.claims.get(member.member_id)
            if known is not None and known.counter < member.counter:
                known.member = member
                self.check_claim(known)

    def answered(self, group: Group, method: Method, key: str, result: object, /) -> None:
        """See `Watcher.answered`."""
        if not key.startswith(RECEIVERS_PREFIX):
            return
        seen = self._members_seen.setdefault(group.name, {})
        if method is Method.LIST:
            seen.clear()
        elif method is Method.GET and isinstance(result, bytes):
            seen[key] = decode_member(result, what=key)

    def fault(self, group: Group, kind: str, what: str, /) -> None:
        """See `Watcher.fault`."""
        self.counts[kind] += 1
        self.say(group.name, f"{kind}: {what}")

    def killed(self, group: Group, /) -> None:
        """See `Watcher.killed`."""
        self.turns.kill(group)

    # --- What actors tell --------------------------------------------------------------

    def members_seen(self, group: Group) -> tuple[Member, ...]:
        """What a process has read of members since its last listing."""
        return tuple(self._members_seen.get(group.name, {}).values())

    def engines_seen(self, group: Group) -> frozenset[str]:
        """Engines that live and whose members a process has read since its last listing."""
        known = [self.claims.get(each.member_id) for each in self.members_seen(group)]
        living = [each.group for each in known if each is not None and not each.group.is_dead]
        return frozenset(engine_of(each.name) for each in living)

    def keep_bits(self, weights: Mapping[str, HostTensor]) -> str:
        """Note the bits that a trainer is about to put; their digest."""
        units = {name: each.units for name, each in weights.items()}
        digest = digest_of(units)
        self.bits.setdefault(digest, {name: each.copy() for name, each in units.items()})
        return digest

    def check_claim(self, claimed: Claimed) -> None:
        """A receiver that lives must not have said that more is staged than is."""
        member = claimed.member
        if member is None or member.staged is None or claimed.group.is_dead:
            return
        live, staged = claimed.receiver.live, claimed.receiver.staged
        has = {each.ref.version for each in (live,) if isinstance(each, Whole)}
        has |= {each.target.version for each in (staged,) if isinstance(each, Ready)}
        if member.staged.version in has:
            return
        if not isinstance(live, Whole):
            # Weights that are found damaged take what is staged on them along, and whether
            # others learn of it lies with the store.
            claimed.member = None
            return
        self.break_rule(
            f"{claimed.group.name} says that version {member.staged.version} is staged, and has "
            f"{sorted(has)}"
        )


def engine_of(who: str) -> str:
    """The engine that a process is: all ranks are one, any other process is one by itself."""
    return who.partition("-rank-")[0]


def digest_of(units: Mapping[str, NDArray[np.unsignedinteger]]) -> str:
    """The state digest of bits, worked out apart from any store."""
    table = np.array([lanes_of(units[spec.name]) for spec in SCHEMA.tensors], np.uint64)
    return str(state_digest(SCHEMA, table.reshape(-1, 2)))


def sha_of(units: Mapping[str, Units]) -> str:
    """One hash of all bits."""
    return bits_sha256_of({name: each.tobytes() for name, each in units.items()})


def part_of(bits: Bits, share: Share) -> Bits:
    """The bits of the parts of tensors."""
    found: Bits = {}
    for name, box in share.items():
        shape = SCHEMA.tensors[SCHEMA.index_of(name)].unit_shape
        region = tuple(
            slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True)
        )
        found[name] = np.ascontiguousarray(bits[name].reshape(shape)[region]).reshape(-1)
    return found


def tensors_of(bits: Bits) -> dict[str, HostTensor]:
    """Bits with their dtypes, as a trainer holds them."""
    return {spec.name: HostTensor(spec, bits[spec.name]) for spec in SCHEMA.tensors}


def _weather(chances: np.random.Generator) -> Weather:
    """Draw what goes wrong: in some runs little, in some everything."""

    def some(most: float) -> float:
        return float(chances.random()) ** 2 * most if float(chances.random()) < 0.6 else 0.0  # noqa: PLR2004 -- in more than half of the runs

    outages = []
    for _ in range(int(chances.integers(0, 4))):
        whom = str(chances.choice(["", "rollout", "rollout-1", "rollout-3", "trainer"]))
        first = float(chances.random()) * TROUBLE_S
        outages.append((first, first + float(chances.random()) * 6.0, whom))
    return Weather(
        faults=tuple((fault, some(0.04)) for fault in Fault),
        kill_ratio=some(0.02),
        stall_ratio=some(0.05),
        short_ratio=some(0.5),
        slow_ratio=some(0.3),
        latency_s=0.002 + some(0.15),
        outages=tuple(outages),
    )


def _record_text(data: bytes, slot: int) -> str:
    try:
        record = decode_record(data, slot=Slot(slot))
    except WeightStoreError:
        return f"slot {slot}: not a record"
    text = f"slot {record.slot}: {record.kind}"
    if isinstance(record, VersionRecord | ActivateRecord):
        text += f" of version {record.version}"
    return f"{text}, epoch {record.epoch}"
