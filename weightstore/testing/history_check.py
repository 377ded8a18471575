"""Whether a store, as it is after everything, agrees with what its users were told.

Actors write down what they saw: what was acknowledged to them and what they read. When all
is over, whatever was cut, killed or damaged on the way, `check_history` holds that against
the log and the objects, and tells everything that does not fit.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from weightstore.errors import CorruptError, WeightStoreError
from weightstore.format import kept as kept_sets
from weightstore.format.keys import LOG_PREFIX, log_key
from weightstore.format.records import Record, VersionRecord
from weightstore.format.rules import EMPTY_PREFIX, Invalid, Prefix
from weightstore.history.chain import plan_checkout
from weightstore.history.checkout import checkout, verify_plan
from weightstore.history.log import Log
from weightstore.history.references import References
from weightstore.ids import Slot
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore


class Rule(enum.Enum):
    """What a history is held against."""

    LOG_READABLE = "every record of the log parses"
    LOG_GAPLESS = "no record lies beyond the end of the log"
    LOG_CHAIN = "each record names the bytes before it and is valid there"
    LOG_TAIL = "the quick way to the tail finds what reading everything finds"
    ONE_WINNER = "one record per slot was acknowledged, and it is the one there"
    ACKNOWLEDGED_PRESENT = "what was acknowledged is in the log, valid, exactly once"
    ACKNOWLEDGED_SAME = "what was acknowledged says in the log what its writer was told"
    VERSIONS_GAPLESS = "versions are 1, 2, 3 and so on"
    READ_COMMITTED = "what was read is a committed version, of the prefix that was seen"
    READ_SAME = "what was read has the digest that was committed"
    READ_FORWARD = "no reader went back"
    OBJECTS_WHOLE = "the objects of every kept version are there and verify"
    BITS_SAME = "every kept version checks out to the bits that were put or read"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that does not fit: the rule that it breaks, and what was found."""

    rule: Rule
    what: str

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.what}"


class HistoryViolation(AssertionError):  # noqa: N818 -- what a failed check says, no error of a call
    """The store and what was told of it do not agree.

    Attributes:
        violations: All of them, in the order of the checks.
    """

    def __init__(self, violations: Iterable[Violation]) -> None:
        self.violations = tuple(violations)
        lines = "".join(f"\n  {one}" for one in self.violations)
        super().__init__(f"{len(self.violations)} violations of the history:{lines}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A record whose writer was told that it is committed. Leave out what is not known.

    Attributes:
        kind: Of the record.
        commit_id: Of the record.
        slot: Where it was said to be.
        version: Made by it; for an acknowledged put.
        run: Of the put.
        step: Of the put.
        digest: State digest of the version.
        bits_sha256: `bits_sha256_of` the tensors that were put.
    """

    kind: str = "version"
    commit_id: str | None = None
    slot: int | None = None
    version: int | None = None
    run: str | None = None
    step: int | None = None
    digest: str | None = None
    bits_sha256: str | None = None

    @classmethod
    def of_record(cls, record: Record, *, bits_sha256: str | None = None) -> Acknowledged:
        """Everything that a record says, as its writer holds it."""
        told = cls(
            kind=record.kind,
            commit_id=record.commit_id,
            slot=record.slot,
            bits_sha256=bits_sha256,
        )
        if not isinstance(record, VersionRecord):
            return told
        return replace(
            told,
            version=record.version,
            run=record.run,
            step=record.step,
            digest=record.digest,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A version that a reader obtained.

    Attributes:
        reader: Who, as long as it remembers: a restarted process is another reader.
        order: Rising within one reader.
        version: What it obtained.
        digest: State digest that it was told.
        bits_sha256: `bits_sha256_of` the tensors that it got.
        next_slot: End of the log's prefix that it saw.
        is_latest: It asked for the newest version, not for one by number or tag.
    """

    reader: str
    order: int
    version: int
    digest: str | None = None
    bits_sha256: str | None = None
    next_slot: int | None = None
    is_latest: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that was told to anybody, and what was done to the store on purpose.

    Attributes:
        acknowledged: In any order; a repeat that was acknowledged again is fine.
        reads: In any order.
        rogue_slots: Slots that a test has filled with an invalid record itself.
        damaged_versions: Versions whose objects a test has damaged: they may fail to read,
            never give other bits.
    """

    acknowledged: tuple[Acknowledged, ...] = ()
    reads: tuple[Read, ...] = ()
    rogue_slots: frozenset[int] = frozenset()
    damaged_versions: frozenset[int] = frozenset()


class CheckVersion(Protocol):
    """How the objects of a version are checked."""

    def __call__(
        self, blobs: BlobStore, log: Log, record: VersionRecord, /, *, deep: bool
    ) -> str | None:
        """Check that they are there; with `deep` also the bits, and return `bits_sha256_of` them.

        Raises:
            WeightStoreError: what a reader of the version would meet.
        """
        ...


def check_history(
    blobs: BlobStore,
    history: History,
    *,
    deep: bool = False,
    limits: Limits | None = None,
    check_version: CheckVersion | None = None,
) -> Prefix:
    """Hold a store against what was told of it.

    Args:
        blobs: The store as it is now; nothing is written.
        history: What actors observed.
        deep: Also check every kept version out, bit by bit; else its objects' presence and
            sizes, and the bytes of its manifest.
        limits: Of the store's readers.
        check_version: For stores whose versions are not of the usual form.

    Returns:
        The whole log, summed up.

    Raises:
        HistoryViolation: everything that does not agree.
    """
    audit = _Audit(blobs, history, limits or Limits())
    audit.check_log()
    audit.check_acknowledged()
    audit.check_reads()
    audit.check_objects(check_version or check_stored_version, deep=deep)
    if audit.violations:
        raise HistoryViolation(audit.violations)
    return audit.prefix


def bits_sha256_of(bits: Mapping[str, bytes]) -> str:
    """One hash over the names and bits of tensors, in the order of names."""
    whole = hashlib.sha256()
    for name in sorted(bits):
        encoded = name.encode()
        whole.update(b"%d %d\n" % (len(encoded), len(bits[name])) + encoded)
        whole.update(bits[name])
    return whole.hexdigest()


def check_stored_version(
    blobs: BlobStore, log: Log, record: VersionRecord, /, *, deep: bool
) -> str | None:
    """Check the objects of a version as `weightstore.trainer` puts them.

    Raises:
        CorruptError: what a reader of it would meet.
    """
    for info in References(blobs, log, log.limits).objects_of(record):
        found = blobs.size(info.key)
        if found != info.size_bytes:
            raise CorruptError(f"{info.key} has {found} bytes, not {info.size_bytes}")
    if not deep:
        return None
    settings = Settings(thread_count=1, limits=log.limits)
    plan = plan_checkout(blobs, log, record, log.limits)
    verify_plan(blobs, plan, settings, scan=True)
    host = checkout(blobs, plan, settings)
    return bits_sha256_of({name: one.units.tobytes() for name, one in host.items()})


@dataclass(slots=True)
class _Audit:
    """One pass over a store; what was found so far."""

    blobs: BlobStore
    history: History
    limits: Limits
    violations: list[Violation] = field(default_factory=list)
    prefix: Prefix = EMPTY_PREFIX
    records: dict[int, Record] = field(default_factory=dict)
    versions: dict[int, VersionRecord] = field(default_factory=dict)

    def check_log(self) -> None:
        """Read every record, and look for some beyond the end."""
        log = Log(self.blobs, self.limits)
        try:
            for step in log.steps(EMPTY_PREFIX):
                record = step.stored.record
                self.prefix = step.after
                if not isinstance(step.verdict, Invalid):
                    self._take(record)
                elif record.slot not in self.history.rogue_slots:
                    self._add(Rule.LOG_CHAIN, f"record {record.slot}: {step.verdict.reason}")
            tail = Log(self.blobs, self.limits).tail()
            if tail != self.prefix:
                self._add(Rule.LOG_TAIL, f"found {tail}, read {self.prefix}")
        except WeightStoreError as error:
            self._add(Rule.LOG_READABLE, error.message)
        known = {log_key(Slot(slot)) for slot in range(self.prefix.next_slot)}
        for info in self.blobs.list(LOG_PREFIX):
            if info.key not in known:
                self._add(Rule.LOG_GAPLESS, f"{info.key} is beyond {self.prefix.next_slot}")

    def check_acknowledged(self) -> None:
        """Find every acknowledged record."""
        counts = Counter(record.commit_id for record in self.records.values())
        told: dict[int, str] = {}
        for one in self.history.acknowledged:
            record = self._record_of(one)
            if record is None or counts[record.commit_id] != 1:
                count = 0 if record is None else counts[record.commit_id]
                self._add(Rule.ACKNOWLEDGED_PRESENT, f"{one} is {count} times in the log")
            else:
                for name, said, found in _differences(one, record):
                    rule = Rule.ONE_WINNER if name == "slot" else Rule.ACKNOWLEDGED_SAME
                    self._add(rule, f"{one}: its {name} is {found}, told {said}")
            if one.slot is not None and one.commit_id is not None:
                first = told.setdefault(one.slot, one.commit_id)
                if first != one.commit_id:
                    self._add(
                        Rule.ONE_WINNER,
                        f"slot {one.slot} was told to {first} and to {one.commit_id}",
                    )

    def check_reads(self) -> None:
        """Find every version that was read, and follow each reader."""
        newest: dict[str, Read] = {}
        greatest_slots: dict[str, int] = {}
        for read in sorted(self.history.reads, key=lambda one: (one.reader, one.order)):
            self._check_read(read)
            if not read.is_latest:
                continue
            before = newest.setdefault(read.reader, read)
            # A reader that was not asked how far it saw has still seen what it told before.
            greatest = greatest_slots.get(read.reader, 0)
            slot = greatest if read.next_slot is None else read.next_slot
            if read.version < before.version or slot < greatest:
                self._add(
                    Rule.READ_FORWARD, f"{read} came after {before}, and after slot {greatest}"
                )
            greatest_slots[read.reader] = max(greatest, slot)
            newest[read.reader] = read

    def check_objects(self, check_version: CheckVersion, *, deep: bool) -> None:
        """Check what every kept version names, and its bits."""
        log = Log(self.blobs, self.limits)
        for version in kept_sets.iterate(self.prefix.now.kept):
            record = self.versions.get(version)
            if record is None:
                continue  # told by the check of the log
            try:
                found = check_version(self.blobs, log, record, deep=deep)
            except WeightStoreError as error:
                if version not in self.history.damaged_versions:
                    self._add(Rule.OBJECTS_WHOLE, f"version {version}: {error.message}")
                continue
            for said in self._bits_told_of(version):
                if found is not None and said != found:
                    self._add(Rule.BITS_SAME, f"version {version} is {found}, told {said}")

    def _take(self, record: Record) -> None:
        self.records[record.slot] = record
        if isinstance(record, VersionRecord):
            if record.version != len(self.versions) + 1:
                what = f"record {record.slot} makes {record.version}, the next is"
                self._add(Rule.VERSIONS_GAPLESS, f"{what} {len(self.versions) + 1}")
            self.versions[record.version] = record

    def _record_of(self, one: Acknowledged) -> Record | None:
        """The record that was acknowledged, by the most precise of what is known."""
        if one.commit_id is not None:
            found = (each for each in self.records.values() if each.commit_id == one.commit_id)
            return next(found, None)
        if one.version is not None:
            return self.versions.get(one.version)
        return self.records.get(one.slot) if one.slot is not None else None

    def _check_read(self, read: Read) -> None:
        record = self.versions.get(read.version)
        end = self.prefix.next_slot if read.next_slot is None else read.next_slot
        if record is None or not record.slot < end <= self.prefix.next_slot:
            self._add(Rule.READ_COMMITTED, f"{read}: no such version in the log below {end}")
        elif read.digest not in {None, record.digest}:
            self._add(Rule.READ_SAME, f"{read}: committed with {record.digest}")

    def _bits_told_of(self, version: int) -> Iterator[str]:
        told: Iterable[Acknowledged | Read] = chain(self.history.acknowledged, self.history.reads)
        hashes = (one.bits_sha256 for one in told if one.version == version)
        yield from sorted({one for one in hashes if one is not None})

    def _add(self, rule: Rule, what: str) -> None:
        self.violations.append(Violation(rule, what))


def _differences(one: Acknowledged, record: Record) -> Iterator[tuple[str, object, object]]:
    """Fields that were told and are others in the record: name, told and found."""
    if one.kind != record.kind:
        yield "kind", one.kind, record.kind
    names = ("slot", "run", "step", "digest", "version")
    for name in names[:1] if not isinstance(record, VersionRecord) else names:
        said, found = getattr(one, name), getattr(record, name)
        if said is not None and said != found:
            yield name, said, found
