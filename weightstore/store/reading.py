"""The reading half of the facade: finding, describing, checking out and verifying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING

from weightstore import arguments
from weightstore.clock import Clock, Entropy
from weightstore.codec.codec import PieceCodec
from weightstore.errors import ObjectMissingError, StoreClosedError
from weightstore.format.records import VersionRecord
from weightstore.format.rules import Prefix, is_kept
from weightstore.history import chain, checkout, diff, export, tags, versions
from weightstore.history.delta_path import VersionRef
from weightstore.history.existence import check_kept
from weightstore.history.log import Log
from weightstore.history.log_index import LogIndex
from weightstore.history.manifests import SchemaCache
from weightstore.history.overwrite_set import OverwriteSet, plan_path_between
from weightstore.history.progress import Progress, no_progress
from weightstore.ids import StoreId
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.partial import remove_abandoned_partials
from weightstore.store import reporting
from weightstore.store.views import (
    Checkout,
    LogRow,
    StoreState,
    TagInfo,
    VerifyReport,
    VersionDetails,
    VersionDiff,
    VersionInfo,
)

if TYPE_CHECKING:
    import torch

Selector = int | str
"""A version's number, `"latest"`, `"active"`, `"tag:name"` or `"run@step"`."""


@dataclass(frozen=True, slots=True)
class Components:
    """What a store handle is made of; tests replace single ones."""

    blobs: BlobStore
    clock: Clock
    entropy: Entropy
    index: LogIndex | None = None


class StoreReader:
    """Everything that needs no claim and no write permission.

    Args:
        components: Blobs, clock and entropy.
        store_id: Nonce of the store.
        settings: How this process uses it.
    """

    def __init__(self, components: Components, store_id: StoreId, *, settings: Settings) -> None:
        self.store_id = store_id
        self._components = components
        self._blobs = components.blobs
        self._settings = settings
        self._log = Log(components.blobs, settings.limits, components.index)
        self._schemas: SchemaCache = {}
        self._is_closed = False

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._blobs.location

    def checkout(
        self, selector: Selector = "latest", *, progress: Progress = no_progress
    ) -> Checkout:
        """Load a version into private memory: `.tensors` for torch, `.host` without it.

        Raises:
            SelectorError: the selector cannot be parsed.
            VersionNotFoundError: it was never committed.
            VersionGoneError: it was retired; the error names the newest kept one.
            CorruptError: stored bytes fail a check; nothing is returned.
        """
        arguments.function(progress, "progress")
        prefix, record = self._find(selector)
        with self._gone_if_retired(record):
            host = checkout.checkout(self._blobs, self._plan(record), self._settings, progress)
        return Checkout(self._info(prefix, record), host)

    def checkout_into(
        self,
        selector: Selector,
        state_dict: Mapping[str, torch.Tensor],
        *,
        progress: Progress = no_progress,
    ) -> VersionInfo:
        """Load a version into live tensors, in place; every storage stays where it is.

        Everything stored is verified in a first pass; the second writes.

        Raises:
            SchemaMismatchError: the tensors do not fit; all differences are listed, and
                nothing was written.
            TargetUnusableError: it failed after the first write: load the target anew.
        """
        arguments.check_mapping(state_dict, "state_dict", "Give `model.state_dict()`.")
        arguments.function(progress, "progress")
        from weightstore.receiver.torch_targets import plan_targets  # noqa: PLC0415 -- torch is late

        prefix, record = self._find(selector)
        with self._gone_if_retired(record):
            plan = self._plan(record)
            targets = plan_targets(plan.schema, state_dict)
            checkout.checkout_into(self._blobs, plan, targets.units, self._settings, progress)
            targets.finish()
        return self._info(prefix, record)

    def checkout_to_file(
        self, selector: Selector, path: str | PathLike[str], *, progress: Progress = no_progress
    ) -> VersionInfo:
        """Write a version's weights into one safetensors file.

        After a crash: no file, or the whole file.

        Raises:
            InputRefusedError: the file exists, or would lie in the store.
        """
        target = arguments.path(path, "path")
        export.check_outside(self._blobs, target)
        # Both once more by the writer, but then only after all weights were read. What killed
        # writers have left goes first, also where this one is refused.
        remove_abandoned_partials(arguments.expanded(target))
        export.check_free_file(target)
        taken = self.checkout(selector, progress=progress)
        export.write_safetensors_file(taken.host, target, self._components.entropy)
        return taken.info

    def export(
        self,
        selector: Selector,
        directory: str | PathLike[str],
        *,
        progress: Progress = no_progress,
    ) -> VersionInfo:
        """Write a version as a Hugging Face checkpoint that `from_pretrained` loads.

        After a crash: no directory, or the whole one.

        Raises:
            InputRefusedError: the directory exists and is not empty, or would lie in the
                store; or a stored file has a name that loaders run.
        """
        target = arguments.path(directory, "directory")
        arguments.function(progress, "progress")
        export.check_outside(self._blobs, target)
        prefix, record = self._find(selector)
        with self._gone_if_retired(record):
            export.export_checkpoint(
                self._blobs,
                self._plan(record),
                target,
                entropy=self._components.entropy,
                settings=self._settings,
                progress=progress,
            )
        return self._info(prefix, record)

    def verify(
        self, selector: Selector = "latest", *, scan: bool = False, progress: Progress = no_progress
    ) -> VerifyReport:
        """Read a version's objects again and check sizes, hashes, streams and digests.

        Args:
            selector: The version.
            scan: Also rebuild all weights and digest every element.
            progress: Told of bytes read.

        Raises:
            CorruptError: the first thing that is wrong.
        """
        scan = arguments.flag(scan, "scan")
        arguments.function(progress, "progress")
        record = self._find(selector)[1]
        with self._gone_if_retired(record):
            # Without the cache: it holds the schema, and not that this version's object does. (P1)
            plan = chain.plan_checkout(self._blobs, self._log, record, self._settings.limits)
            checkout.verify_plan(self._blobs, plan, self._settings, progress, scan=scan)
        return reporting.verify_report(plan, scanned=scan)

    def diff(
        self,
        old: Selector,
        new: Selector = "latest",
        *,
        counts: bool = False,
        progress: Progress = no_progress,
    ) -> VersionDiff:
        """Compare two versions tensor by tensor.

        Memory: the largest tensor (or bundle of small ones) twice, and the buffers of one
        block and one piece.

        Args:
            old: The version to start from.
            new: The version to compare with it; it may be the older one.
            counts: Only count what changed; between neighbours the counts come from the
                packs, and no weights are read. False also measures how far values moved.
            progress: Told of bytes compared.

        Raises:
            VersionGoneError: one of them was retired.
            CorruptError: stored bytes fail a check.
        """
        counts = arguments.flag(counts, "counts")
        arguments.function(progress, "progress")
        wanted = arguments.selector(new)
        prefix, before = self._find(old)
        after = versions.find_version(self._log, prefix, wanted)
        with self._gone_if_retired(before, after):
            found = diff.diff_versions(
                self._blobs,
                self._plan(before),
                self._plan(after),
                self._settings,
                progress,
                counts=counts,
            )
        return reporting.version_diff(self._info(prefix, before), self._info(prefix, after), found)

    def overwrite_set(self, version: Selector, base: Selector) -> OverwriteSet:
        """The change from one version to another as absolute values: heals any mixture of them.

        Iterate it for the parts, `(name, positions, bits)`: canonical unit indices and the
        new bits there. Units that it does not name are equal in both versions.

        Args:
            version: The version to come to.
            base: The version to come from, which may be the later one.

        Returns:
            The set; `is_whole` where no deltas lead from one to the other, with the reason.

        Raises:
            VersionGoneError: one of them was retired, now or while it is iterated.
            CorruptError: stored bytes fail a check, now or while it is iterated.
        """
        wanted = arguments.selector(base)
        prefix, record = self._find(version)
        before = versions.find_version(self._log, prefix, wanted)
        limits = self._settings.limits
        guard = partial(self._gone_if_retired, record, before)
        with guard():
            path = plan_path_between(
                self._blobs, self._log, before, record, limits, cache=self._schemas
            )
            plan = self._plan(record)
        start, codec = VersionRef.of(before), PieceCodec(limits=limits)
        return OverwriteSet(self._blobs, plan, start, path, limits=limits, codec=codec, guard=guard)

    def versions(self) -> Iterator[VersionInfo]:
        """Every committed version, newest first; retired ones too."""
        for listed in versions.list_versions(self._log, self._tail()):
            yield reporting.version_info(listed.record, kept=listed.kept)

    def version(self, selector: Selector = "latest") -> VersionInfo:
        """The version that a selector names."""
        return self._info(*self._find(selector))

    def describe(self, selector: Selector = "latest") -> VersionDetails:
        """What a version consists of."""
        record = self._find(selector)[1]
        with self._gone_if_retired(record):
            limits = self._settings.limits
            return reporting.version_details(self._blobs, record, limits, self._schemas)

    def tags(self) -> tuple[TagInfo, ...]:
        """Every tag that is set, by name."""
        listed = tags.list_tags(self._log, self._tail())
        return tuple(TagInfo(tag.name, tag.version, tag.owner) for tag in listed)

    def state(self) -> StoreState:
        """The newest state of the store."""
        return reporting.store_state(self.location, self.store_id, self._tail())

    def log(self) -> Iterator[LogRow]:
        """The log's records, newest first."""
        yield from reporting.log_rows(self._log, self._tail())

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise StoreClosedError("this store handle is closed", do="Open the store again.")

    def _tail(self) -> Prefix:
        self._refuse_closed()
        return self._log.tail()

    def _find(self, selector: Selector) -> tuple[Prefix, VersionRecord]:
        wanted = arguments.selector(selector)
        prefix = self._tail()
        return prefix, versions.find_version(self._log, prefix, wanted)

    def _plan(self, record: VersionRecord) -> chain.CheckoutPlan:
        limits = self._settings.limits
        return chain.plan_checkout(self._blobs, self._log, record, limits, cache=self._schemas)

    @contextmanager
    def _gone_if_retired(self, *records: VersionRecord) -> Iterator[None]:
        """Tell a version that was retired under its reader from one that is damaged (P9)."""
        try:
            yield
        except ObjectMissingError:
            now = self._log.tail().now
            for record in records:
                check_kept(now, record.version)
            raise

    def _info(self, prefix: Prefix, record: VersionRecord) -> VersionInfo:
        return reporting.version_info(record, kept=is_kept(prefix.now, record.version))
