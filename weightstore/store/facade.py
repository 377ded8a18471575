"""`WeightStore`: one handle on a store, for trainers, readers and people."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from weightstore import arguments
from weightstore.clock import SystemClock, SystemEntropy
from weightstore.format import kept as kept_sets
from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.rules import is_kept, next_version
from weightstore.history import retire
from weightstore.history.closing import closing_after
from weightstore.history.existence import check_committed
from weightstore.history.progress import Progress, no_progress
from weightstore.history.references import References
from weightstore.ids import SessionId, StoreId, VersionId, parse_run_id
from weightstore.receiver.host_agent.messages import AgentStats
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.settings import Settings
from weightstore.storage.machine import process_id
from weightstore.store import hosting, opening, reporting, retiring
from weightstore.store.marking import StoreMarker
from weightstore.store.reading import Components
from weightstore.store.views import ImportedVersion, RetireReport
from weightstore.trainer.cast_rules import CastRules

if TYPE_CHECKING:
    from weightstore.trainer.inputs import TensorSource
    from weightstore.trainer.session import TrainerSession


class WeightStore(StoreMarker):
    """A transactional, versioned store for weights. Use `WeightStore.open`.

    Reading needs no claim. Writing claims the store for one run (`trainer`); the claim is
    given up by `close`, by leaving the `with` block, or by the death of the process.
    Methods may be called from several threads; a trainer session from one at a time.
    """

    def __init__(
        self,
        components: Components,
        store_id: StoreId,
        *,
        settings: Settings,
        cast: Mapping[str, str],
    ) -> None:
        super().__init__(components, store_id, settings=settings)
        self._cast = dict(cast)
        self._own_lock = threading.Lock()
        self._own_lock_process = process_id()
        self._own_trainer: TrainerSession | None = None

    @classmethod
    def open(
        cls,
        location: str | PathLike[str],
        *,
        create: bool = False,
        cast: Mapping[str, str] | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """Open a store in a local directory.

        Args:
            location: The directory.
            create: Make the store if the directory is new or empty.
            cast: Declared lossy casts for puts: name pattern to dtype, such as
                `{"*": "bf16"}` for a trainer that holds fp32 weights.
            settings: How this process uses the store.

        Raises:
            NotAStoreError: there is no store, and `create` is false.
            InputRefusedError: the directory holds something else, or an argument is of a
                wrong type.
            DTypeRefusedError: a cast is not possible.
            UpgradeRequiredError: the store was made by a newer release.
        """
        place = arguments.path_text(location, "location")
        create = arguments.flag(create, "create")
        used = Settings() if settings is None else settings
        arguments.check_instance(used, Settings, "settings", "Give a weightstore.Settings.")
        casts = {} if cast is None else arguments.texts_by_text(cast, "cast")
        CastRules.parse(casts)  # refused here, before a store is made
        clock, entropy = SystemClock(), SystemEntropy()
        blobs, store_id = opening.open_local(
            place, create=create, settings=used, clock=clock, entropy=entropy
        )
        index = opening.index_of(blobs, store_id, used)
        components = Components(blobs, clock, entropy, index)
        return cls(components, store_id, settings=used, cast=casts)

    def close(self) -> None:
        """Give up the claim of `put_step`, if there is one. A second call does nothing."""
        with self._own():
            self._is_closed = True
            session, self._own_trainer = self._own_trainer, None
        try:
            if session is not None:
                session.close()
        finally:
            if self._components.index is not None:
                self._components.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with closing_after(error):
            self.close()

    def trainer(
        self,
        run: str,
        *,
        take_over: bool = False,
        rewind_to: int | None = None,
        resume: TensorSource | None = None,
        baseline_path: str | PathLike[str] | None = None,
        name_rules: Sequence[str] = (),
    ) -> TrainerSession:
        """Claim the store for a run and make the baseline that changes are found against.

        Args:
            run: Name of the training run.
            take_over: Fence a trainer that holds the claim and cannot be proved dead.
            rewind_to: Steps above this one will become new versions (the trainer resumed
                from an older checkpoint).
            resume: The trainer's weights now; if they equal the newest version they become
                the baseline without reading the store.
            baseline_path: Keep the baseline in this memory-mapped file instead of RAM.
            name_rules: Wrapper prefixes to strip from names, such as `("module.",)`; a
                wrapped name is refused without a rule.

        Raises:
            InputRefusedError: an argument is of a wrong type or value.
            StoreOwnedError: another trainer owns the store.
            StoreClosedError: this handle is closed.
        """
        self._refuse_closed()
        place = None if baseline_path is None else arguments.path(baseline_path, "baseline_path")
        from weightstore.trainer.attach import open_trainer  # noqa: PLC0415 -- may bring torch

        return open_trainer(
            self._blobs,
            self._log,
            clock=self._components.clock,
            entropy=self._components.entropy,
            settings=self._settings,
            run=parse_run_id(arguments.text(run, "run")),
            session=SessionId(self._components.entropy.hex128()),
            take_over=arguments.flag(take_over, "take_over"),
            rewind_to=rewind_to,
            cast=self._cast,
            resume=resume,
            baseline_path=place,
            name_rules=arguments.texts(name_rules, "name_rules"),
        )

    def put_step(
        self,
        step: int,
        tensors: TensorSource,
        *,
        run: str = "main",
        anchor: bool = False,
        missing: Literal["refuse", "unchanged"] = "refuse",
        new_schema: bool = False,
        wait: Literal["active"] | None = None,
    ) -> VersionId:
        """Record the weights of a step and return the committed version's number.

        The first call claims the store for `run`; `close` gives it up. Repeating a step
        with the same bytes returns the version that it already is.

        Args:
            step: The trainer's count; rises within a run.
            tensors: A state dict, a stream of (name, tensor), or a path to safetensors.
            run: Name of the training run.
            anchor: Also store the full form, as a Hugging Face checkpoint.
            missing: With "unchanged", tensors that are not given did not change.
            new_schema: Allow other names, shapes or dtypes, as a full version.
            wait: With "active", also activate the version and return when every listed
                receiver of the mode `active` serves it, or can serve no other. Whatever is
                not reached is a warning: the version is committed.

        Raises:
            InputRefusedError: an argument is of a wrong type or value.
            SchemaMismatchError: names, shapes or dtypes differ; every difference is listed.
            StepConflictError: this step is committed with other bytes.
            StepOrderError: the step is below the newest and was never committed.
            StoreOwnedError: another trainer owns the store.
            FencedError: a newer claim came; stop this trainer.
        """
        self._refuse_closed()
        from weightstore.trainer.put_request import parse_put  # noqa: PLC0415 -- as for `trainer`

        # Before the claim too, so that a slip of the caller leaves no trace in the log.
        given = parse_put(step, tensors, anchor=anchor, missing=missing, new_schema=new_schema)
        if wait is not None:
            arguments.choice(wait, "wait", ("active",))
        session = self._own_session(parse_run_id(arguments.text(run, "run")))
        version = session.begin(given).result()
        if wait is not None:
            self._activate_committed(version)
        return version

    def import_checkpoint(
        self,
        path: str | PathLike[str],
        *,
        run: str = "base",
        step: int = 0,
        take_over: bool = False,
        new_schema: bool = False,
        progress: Progress = no_progress,
    ) -> ImportedVersion:
        """Copy a safetensors file or Hugging Face directory in as a full version.

        Claims the store for the copy and closes the claim. Repeating it with the same
        files is a no-op that returns the version. Files of a directory that were not taken
        over are in the result's `skipped`, each with the reason.

        Raises:
            InputRefusedError: the files are no readable safetensors checkpoint.
            SchemaMismatchError: they are of another model than the newest version; with
                `new_schema` they become the newest version all the same.
            StoreOwnedError: a trainer owns the store.
        """
        before = self._tail().now
        from weightstore.trainer.importing import import_checkpoint  # noqa: PLC0415 -- may bring torch

        record, skipped = import_checkpoint(
            self._components.blobs,
            self._log,
            clock=self._components.clock,
            entropy=self._components.entropy,
            settings=self._settings,
            path=arguments.path(path, "path"),
            run=parse_run_id(arguments.text(run, "run")),
            step=step,
            take_over=arguments.flag(take_over, "take_over"),
            new_schema=arguments.flag(new_schema, "new_schema"),
            progress=arguments.function(progress, "progress"),
        )
        # Told from what was there before: a look at the log now could fail, and the import
        # has not.
        kept = record.version >= next_version(before) or is_kept(before, record.version)
        return reporting.imported_version(reporting.version_info(record, kept=kept), skipped)

    def retire(
        self,
        *,
        keep_newest: int = 1,
        keep_versions: Sequence[int] = (),
        dry_run: bool = False,
    ) -> RetireReport:
        """Let versions go and delete what only they needed.

        The newest, the active and the tagged versions always stay, each with its chain.

        Args:
            keep_newest: So many of the newest versions stay, at least one.
            keep_versions: These stay too.
            dry_run: Change nothing; report what would go.

        Raises:
            InputRefusedError: an argument is of a wrong type or value.
            RetireRefusedError: an object of a version that stays is missing.
            VersionNotFoundError: a version to keep was never committed.
            VersionGoneError: a version to keep is retired already.
        """
        newest_count = arguments.whole(keep_newest, "keep_newest", least=1, most=MAX_INTEGER)
        wanted = arguments.wholes(keep_versions, "keep_versions")
        dry_run = arguments.flag(dry_run, "dry_run")
        now = self._tail().now
        keep = retire.Keep(
            newest_count=newest_count,
            versions=kept_sets.of_versions(check_committed(now, each) for each in wanted),
        )
        references = References(self._blobs, self._log, self._settings.limits)
        return retiring.retire_and_sweep(
            self._writer(), self._blobs, keep, references, dry_run=dry_run
        )

    def host_agent(
        self, socket: str | PathLike[str], *, memory_bytes: int | None = None
    ) -> HostAgent:
        """Read and decode each pack once for all receivers of this machine, while it is entered.

        Args:
            socket: Where they find it: their `ReceiverSettings.agent_socket`.
            memory_bytes: Bound on what it holds; None takes 4 GiB.

        Raises:
            InputRefusedError: an argument is of a wrong type or value.
            StoreBusyError: when it is entered: an agent serves at this path already.
        """
        self._refuse_closed()
        parts = (self._components, self.store_id, self._settings)
        return hosting.host_agent(*parts, socket, memory_bytes)

    def host_agent_stats(self, socket: str | PathLike[str]) -> AgentStats:
        """What the host agent that listens at a path has done, and what it holds.

        Raises:
            StorageFailedError: no agent of this store listens there.
        """
        self._refuse_closed()
        return hosting.agent_stats(self._components, self.store_id, self._settings, socket)

    def _own_session(self, run: str) -> TrainerSession:
        """The session behind `put_step`; two threads at once share one claim."""
        with self._own():
            session = self._own_trainer
            if session is not None and session.run != run:
                self._own_trainer = None
                session.close()
                session = None
            if session is None:
                session = self._own_trainer = self.trainer(run)
            return session

    def _own(self) -> threading.Lock:
        """The lock of the own session; in a forked child one that no thread of the parent holds."""
        if self._own_lock_process != process_id():
            self._own_lock, self._own_lock_process = threading.Lock(), process_id()
        return self._own_lock
