"""Findings about kept versions: what is missing, what still reads, what could be deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weightstore.arguments import counted
from weightstore.format import kept as kept_sets
from weightstore.format.keys import parse_trainer_key
from weightstore.format.rules import Prefix
from weightstore.history.chain import CheckoutPlan, plan_checkout
from weightstore.history.log import Log
from weightstore.history.presence import Presence, look_up_objects, readable
from weightstore.history.progress import Progress
from weightstore.history.references import References
from weightstore.history.retire import unless_retired_meanwhile
from weightstore.history.sweep import SWEPT_PREFIXES, sweep
from weightstore.history.verify_each import verify_each
from weightstore.history.versions import latest, records_of
from weightstore.ids import VersionId
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.store.findings import Finding, error, note, ok, size_said, some

_RESTORE = "Restore it from another copy of the store"


class Examination:
    """Looks at the versions that a log keeps.

    Args:
        blobs: The store.
        log: Its log.
        prefix: As much of the log as could be read.
        settings: Threads and limits.

    Attributes:
        kept_count: Versions that are kept.
        newest_size_bytes: Full size of the newest version, once it was planned.
    """

    def __init__(self, blobs: BlobStore, log: Log, prefix: Prefix, settings: Settings) -> None:
        self._blobs = blobs
        self._log = log
        self._prefix = prefix
        self._settings = settings
        self._references = References(blobs, log, settings.limits)
        self._presence: list[Presence] = []
        self._damaged: set[VersionId] = set()
        self.kept_count = kept_sets.count(prefix.now.kept)
        self.newest_size_bytes: int | None = None

    def presence_findings(self) -> Iterator[Finding]:
        """Whether all objects of all kept versions are there, with their sizes."""
        records = list(records_of(self._log, self._prefix, self._prefix.now.kept))
        self._presence = list(look_up_objects(self._blobs, reversed(records), self._references))
        if any(each.problems for each in self._presence):
            # Who retires beside this deletes what this log still takes for kept.
            kept = self._log.tail().now.kept
            self._presence = [
                each for each in self._presence if kept_sets.contains(kept, each.version)
            ]
        self._damaged = {each.version for each in self._presence if each.problems}
        for each in self._presence:
            if each.problems:
                yield self._damage("versions", each.version, some(each.problems))
        if not self._damaged:
            count = sum(each.object_count for each in self._presence)
            kept_count = len(self._presence)
            named = f"{counted(kept_count, 'kept version')}: {counted(count, 'object')}, all there"
            yield ok("versions", named)

    def newest_findings(self) -> Iterator[Finding]:
        """Whether the newest version can be planned: its chain, its tables, its digest."""
        newest = self._prefix.now.newest
        if newest is None:
            yield ok("newest", "no version was put yet")
            return

        def planned(prefix: Prefix) -> CheckoutPlan:
            record = latest(self._log, prefix)
            return plan_checkout(self._blobs, self._log, record, self._settings.limits)

        plan = unless_retired_meanwhile(self._log, planned)
        self.newest_size_bytes = plan.schema.size_bytes
        yield ok("newest", f"{plan}")

    def deep_findings(self, progress: Progress) -> Iterator[Finding]:
        """Whether every stored byte of every kept version is what was committed."""
        records = list(records_of(self._log, self._prefix, self._prefix.now.kept))
        outcomes = list(verify_each(self._blobs, reversed(records), self._settings, progress))
        if any(problem is not None for _, problem in outcomes):
            kept = self._log.tail().now.kept  # as in `presence_findings`
            outcomes = [pair for pair in outcomes if kept_sets.contains(kept, pair[0])]
        problems = [(version, problem) for version, problem in outcomes if problem is not None]
        new = [pair for pair in problems if pair[0] not in self._damaged]
        self._damaged.update(version for version, _ in problems)
        for version, problem in new:
            yield self._damage("deep", version, problem.message)
        if not problems:
            yield ok("deep", f"every object of {len(outcomes)} kept versions has its hash")

    def garbage_findings(self, quoted: str) -> Iterator[Finding]:
        """What could be deleted, and what is in flight."""
        if self._damaged:
            yield note("garbage", "not looked for: kept versions are damaged, so nothing may go")
            return
        found = sweep(self._blobs, self._log, objects_of=self._references.objects_of, dry_run=True)
        if found.deleted_count:
            yield note(
                "garbage",
                f"{counted(found.deleted_count, 'object')} "
                f"({size_said(found.deleted_size_bytes)}) of "
                "retired versions and of attempts that have ended",
                f"Delete them: weightstore retire {quoted} --keep {max(self.kept_count, 1)}",
            )
        else:
            yield ok("garbage", "nothing is left that no version needs")
        if found.unknown_count:
            unknown = counted(found.unknown_count, "object has a name", "objects have names")
            yield note("garbage", f"{unknown} that no release gives")
        yield from self._attempt_findings()

    def _attempt_findings(self) -> Iterator[Finding]:
        """Objects of versions that may still come: of a put that runs, or was cut."""
        before = _newest_version(self._prefix)
        found = [
            (key, info.size_bytes)
            for folder in SWEPT_PREFIXES
            for info in self._blobs.list(folder)
            if (key := parse_trainer_key(info.key)) is not None and (key.version or 0) > before
        ]
        # Only now, since what was put before the listing ended is no attempt any more.
        tail = self._log.tail()
        newest = _newest_version(tail)
        sizes_bytes = [
            size_bytes
            for key, size_bytes in found
            if key.epoch == tail.now.epoch and (key.version or 0) > newest
        ]
        if sizes_bytes:
            yield note(
                "attempt",
                f"{counted(len(sizes_bytes), 'object')} ({size_said(sum(sizes_bytes))}) of "
                f"version {newest + 1}, which is being put or was cut",
                "Nothing, if a trainer runs; else the next trainer's claim lets them go.",
            )

    def _damage(self, check: str, version: VersionId, what: str) -> Finding:
        return error(check, f"version {version}: {what}", f"{_RESTORE}; {self._what_reads()}.")

    def _what_reads(self) -> str:
        whole = readable(self._presence, self._damaged)
        if not whole:
            return "no kept version can be checked out until then"
        return f"versions that can be checked out: {_ranges(whole)}"


def _newest_version(prefix: Prefix) -> int:
    return 0 if prefix.now.newest is None else prefix.now.newest.version


def _ranges(versions: Sequence[VersionId]) -> str:
    parts = kept_sets.of_versions(versions)
    return some(
        [
            f"{part.first}-{part.last}" if part.first < part.last else f"{part.first}"
            for part in reversed(parts)
        ]
    )
