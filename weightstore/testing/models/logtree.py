"""Every log that a model can reach, as a tree over the product's own rules.

A node is a prefix of the log; an edge is one record. Records are built by the product's
models and judged and summed up by `format.rules`, once per (prefix, record), so that a
search over hundreds of thousands of states pays for each judgement once. A record's hash
is a number of its own here: the rules compare hashes and never look into them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from weightstore.format.kept import Kept
from weightstore.format.records import (
    ActivateRecord,
    AltRecord,
    Base,
    ClaimRecord,
    FormatRecord,
    InitRecord,
    IntentRecord,
    KeptRange,
    Kind,
    Now,
    Record,
    RetireRecord,
    TagRecord,
    VersionRecord,
    VoidAttempt,
    VoidIntent,
    VoidRecord,
)
from weightstore.format.rules import EMPTY_PREFIX, Prefix, Rule, accept, broken_rules, pass_over
from weightstore.ids import (
    Attempt,
    CommitId,
    Epoch,
    SessionId,
    Sha256,
    Slot,
    Step,
    StoreId,
    TagName,
    VersionId,
)

ROOT = 0
PRELUDE = -1


def sha_of(content: int) -> Sha256:
    """The hash that stands for a content, which models name by a number."""
    return Sha256(f"{content % 2**64:064x}")


class Plan(NamedTuple):
    """A record without what its place in the log adds: slot, parent hash and `now`.

    `who`, `made_from` and `names` are the model's own: who wrote it, the content that the
    delta was really taken from, and the objects that the manifest names.
    """

    kind: Kind
    who: int
    commit: int
    epoch: int
    run: str | None = None
    session: int = 0
    version: int = 0
    attempt: int = 0
    step: int = 0
    digest: int = 0
    base: tuple[int, int] | None = None
    action: Literal["open", "close"] = "open"
    take_over: bool = False
    rewind_to: int | None = None
    last_step: int | None = None
    anchor_id: str = ""
    tag: str = ""
    kept: tuple[tuple[int, int], ...] = ()
    link: int | None = None
    made_from: tuple[int | None, ...] = ()
    names: frozenset[tuple[int, ...]] = frozenset()


def retire_plan(who: int, commit: int, kept: Kept, *, epoch: int = 1) -> Plan:
    """A retire record. Plans hold plain numbers, since they are hashed all the time."""
    return Plan("retire", who, commit, epoch, kept=tuple((one.first, one.last) for one in kept))


def trainer_plan(kind: Kind, who: int, commit: int, *, epoch: int = 1, session: int = 1) -> Plan:
    """A record of a trainer of run `r`; the caller replaces what the kind needs."""
    return Plan(kind, who, commit, epoch, run="r", session=session)


class Entry(NamedTuple):
    """A record of a path: the node before it, what it is, whether it counts."""

    before: int
    plan: Plan
    is_valid: bool


class LogTree:
    """Prefixes by number, grown on demand. `removed` are rules that a mutation leaves out."""

    def __init__(self, removed: frozenset[Rule] = frozenset()) -> None:
        self._removed = removed
        self._prefixes = [EMPTY_PREFIX]
        self._paths: list[tuple[Entry, ...]] = [()]
        self._valid: list[tuple[Plan, ...]] = [()]
        self._commits: list[frozenset[int]] = [frozenset()]
        self._children: dict[tuple[int, Plan], int] = {}
        self._verdicts: dict[tuple[int, Plan], Rule | None] = {}

    def now(self, node: int) -> Now:
        """The state that a prefix adds up to."""
        return self._prefixes[node].now

    def length(self, node: int) -> int:
        """Records in a prefix, which is also its next slot."""
        return self._prefixes[node].next_slot

    def path(self, node: int) -> tuple[Entry, ...]:
        """Every record of a prefix, oldest first."""
        return self._paths[node]

    def valid(self, node: int) -> tuple[Plan, ...]:
        """Every record of a prefix that counts, oldest first."""
        return self._valid[node]

    def commits(self, node: int) -> frozenset[int]:
        """Commit ids of the records that count."""
        return self._commits[node]

    def find(self, node: int, commit: int) -> Entry | None:
        """The record of a commit id that counts."""
        for entry in self._paths[node]:
            if entry.is_valid and entry.plan.commit == commit:
                return entry
        return None

    def broken(self, node: int, plan: Plan) -> Rule | None:
        """The first rule that a record breaks at the end of a prefix."""
        key = (node, plan)
        if key not in self._verdicts:
            prefix = self._prefixes[node]
            rules = (one.rule for one in broken_rules(prefix, _build(prefix, plan)))
            left = (rule for rule in rules if rule not in self._removed)
            self._verdicts[key] = next(left, None)
        return self._verdicts[key]

    def child(self, node: int, plan: Plan) -> int:
        """The prefix with one more record."""
        key = (node, plan)
        if key not in self._children:
            self._children[key] = self._grow(node, plan)
        return self._children[key]

    def prelude(self, *plans: Plan) -> int:
        """The node after an `init` record and these, all of which must be valid."""
        node = self.child(ROOT, Plan("init", PRELUDE, PRELUDE, 0))
        for plan in plans:
            assert self.broken(node, plan) is None, (plan, self.broken(node, plan))
            node = self.child(node, plan)
        return node

    def trained(self, *later: Plan) -> int:
        """The node after a claim, whole version 1 and these, for models of what follows."""
        first = trainer_plan("version", PRELUDE, 2)._replace(version=1, attempt=1, digest=1)
        return self.prelude(trainer_plan("claim", PRELUDE, 1), first, *later)

    def _grow(self, node: int, plan: Plan) -> int:
        prefix = self._prefixes[node]
        child = len(self._prefixes)
        sha256 = Sha256(f"{child:064x}")
        is_valid = self.broken(node, plan) is None
        if is_valid:
            self._prefixes.append(accept(prefix, _build(prefix, plan), sha256))
        else:
            self._prefixes.append(pass_over(prefix, sha256))
        self._paths.append((*self._paths[node], Entry(node, plan, is_valid)))
        own = (plan,) if is_valid else ()
        self._valid.append((*self._valid[node], *own))
        self._commits.append(self._commits[node] | {one.commit for one in own})
        return child


def _build(prefix: Prefix, plan: Plan) -> Record:
    common: dict[str, Any] = {
        "slot": prefix.next_slot,
        "parent_sha256": prefix.tail_sha256,
        "epoch": Epoch(plan.epoch),
        "run": plan.run,
        "session": SessionId(f"{plan.session:032x}"),
        "commit_id": CommitId(f"{plan.commit % 2**64:032x}"),
        "written_unix_ms": 0,
        "now": prefix.now,
    }
    return _BUILDERS[plan.kind](common, plan)


def _init(common: dict[str, Any], _: Plan) -> Record:
    return InitRecord(**common, store_id=StoreId("0" * 32), format=1, features=())


def _claim(common: dict[str, Any], plan: Plan) -> Record:
    return ClaimRecord(
        **common,
        action=plan.action,
        take_over=plan.take_over,
        rewind_to=_step(plan.rewind_to),
        last_step=_step(plan.last_step),
        host="",
        process=0,
        boot_id="",
    )


def _version(common: dict[str, Any], plan: Plan) -> Record:
    base = None
    if plan.base is not None:
        base = Base(version=VersionId(plan.base[0]), digest=sha_of(plan.base[1]))
    return VersionRecord(
        **common,
        version=VersionId(plan.version),
        attempt=Attempt(plan.attempt),
        step=Step(plan.step),
        base=base,
        schema_id=sha_of(0),
        digest=sha_of(plan.digest),
        manifest_size_bytes=0,
        manifest_sha256=sha_of(plan.commit),
        world_size=1,
    )


def _alt(common: dict[str, Any], plan: Plan) -> Record:
    return AltRecord(
        **common,
        version=VersionId(plan.version),
        form="full",
        anchor_id=plan.anchor_id,
        manifest_size_bytes=0,
        manifest_sha256=sha_of(plan.commit),
    )


def _intent(common: dict[str, Any], plan: Plan) -> Record:
    return IntentRecord(**common, version=VersionId(plan.version), anchor_id=plan.anchor_id)


def _void(common: dict[str, Any], plan: Plan) -> Record:
    if plan.anchor_id:
        return VoidRecord(**common, what=VoidIntent(anchor_id=plan.anchor_id))
    what = VoidAttempt(
        version=VersionId(plan.version),
        attempt=Attempt(plan.attempt),
        attempt_commit_id=CommitId("0" * 32),
    )
    return VoidRecord(**common, what=what)


def _tag(common: dict[str, Any], plan: Plan) -> Record:
    version = VersionId(plan.version) if plan.version else None
    return TagRecord(**common, name=TagName(plan.tag), version=version, owner="")


def _activate(common: dict[str, Any], plan: Plan) -> Record:
    return ActivateRecord(
        **common,
        version=VersionId(plan.version),
        previous_activate_slot=None if plan.link is None else Slot(plan.link),
        members_sha256=sha_of(0),
        listed_count=0,
        staged_count=0,
    )


def _retire(common: dict[str, Any], plan: Plan) -> Record:
    kept = (KeptRange(first=VersionId(first), last=VersionId(last)) for first, last in plan.kept)
    return RetireRecord(**common, kept=tuple(kept))


def _format(common: dict[str, Any], _: Plan) -> Record:
    return FormatRecord(**common, format=1, features=("x",))


def _step(step: int | None) -> Step | None:
    return None if step is None else Step(step)


_BUILDERS: dict[Kind, Callable[[dict[str, Any], Plan], Record]] = {
    "init": _init,
    "claim": _claim,
    "version": _version,
    "alt": _alt,
    "intent": _intent,
    "void": _void,
    "tag": _tag,
    "activate": _activate,
    "retire": _retire,
    "format": _format,
}
