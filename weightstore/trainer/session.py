"""A trainer's session: one claim, one baseline, one put at a time in the background."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from weightstore.errors import StoreClosedError
from weightstore.history.closing import closing_after
from weightstore.history.progress import Progress, no_progress
from weightstore.ids import Epoch, RunId, SessionId
from weightstore.settings import Limits
from weightstore.storage.machine import process_id, refuse_fork
from weightstore.trainer.binding import Missing
from weightstore.trainer.inputs import Inputs, TensorSource, device_fence, open_source
from weightstore.trainer.metering import metered
from weightstore.trainer.pending import PendingVersion
from weightstore.trainer.publisher import Publisher
from weightstore.trainer.put_request import PutArguments, PutRequest, parse_put


class TrainerSession:
    """Puts the steps of one run, as the store's owner.

    Made by `trainer.attach.open_trainer`; a context manager. May be used from any thread,
    one call at a time.

    Args:
        publisher: The claim, the baseline and the way to the store.
        at_end: Closes the claim, and lets go of lock, threads and baseline.
        limits: Bounds on headers of given files.
        name_rules: Wrapper prefixes to strip from given names.
    """

    def __init__(
        self,
        publisher: Publisher,
        *,
        at_end: ExitStack,
        limits: Limits,
        name_rules: Sequence[str] = (),
    ) -> None:
        self._publisher = publisher
        self._at_end = at_end
        self._limits = limits
        self._name_rules = tuple(name_rules)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="weightstore-put")
        self._last: PendingVersion | None = None
        self._beginning: PendingVersion | None = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._process = process_id()
        self._start_worker()

    @property
    def run(self) -> RunId:
        """The run whose steps are put."""
        return self._publisher.claim.run

    @property
    def epoch(self) -> Epoch:
        """The number of this claim."""
        return self._publisher.claim.epoch

    @property
    def session(self) -> SessionId:
        """The nonce of this launch."""
        return self._publisher.claim.session

    def put_step(
        self,
        step: int,
        tensors: TensorSource,
        *,
        anchor: bool = False,
        missing: Missing = "refuse",
        new_schema: bool = False,
        progress: Progress = no_progress,
    ) -> PendingVersion:
        """Begin to put a step. Waits only for the verdict of the put before.

        Args:
            step: The trainer's count, from 0; above the run's newest, or a repeat.
            tensors: A mapping, a stream of (name, tensor), or a path to safetensors. They
                must not change until `captured` has returned.
            anchor: Also store the full form, as a Hugging Face checkpoint.
            missing: With "unchanged", tensors that are not given did not change.
            new_schema: Allow other names, shapes or dtypes, as a full version.
            progress: Told of bytes read (but not of a stream's), and of a full form written;
                called from threads of the put, never from two at once.

        Returns:
            The handle; errors of the put come out of its `captured` and `result`.

        Raises:
            StoreClosedError: the session is closed.
            InputRefusedError: an argument is of a wrong type or value, such as a step that
                no version can have.
        """
        return self.begin(
            parse_put(
                step,
                tensors,
                anchor=anchor,
                missing=missing,
                new_schema=new_schema,
                progress=progress,
            )
        )

    def begin(self, given: PutArguments) -> PendingVersion:
        """Begin to put a step whose arguments are checked already; else as `put_step`.

        Raises:
            StoreClosedError: the session is closed.
        """
        self._refuse_fork()
        tensors = given.tensors
        source = dict(tensors) if isinstance(tensors, Mapping) else tensors
        await_devices = device_fence(source.values()) if isinstance(source, dict) else None
        with self._lock:
            self._refuse_closed()
            self._await_last()
            pending = PendingVersion(given.step)
            opened = ExitStack()

            def open_inputs() -> Inputs:
                if await_devices is not None:
                    await_devices()
                inputs = open_source(
                    source, at_end=opened, limits=self._limits, name_rules=self._name_rules
                )
                return metered(inputs, given.progress)

            request = given.request(open_inputs)
            # Remembered before it is under way: an interrupt may strike once it is.
            self._beginning = self._last = pending
            self._background.submit(_work, self._publisher, request, pending, opened)
            self._beginning = None
            return pending

    def close(self) -> None:
        """Wait for the last put, then close the claim. A second call does nothing.

        After a crash: the claim is open, and the next trainer takes it over.

        Raises:
            WeightStoreError: the claim could not be closed.
        """
        if process_id() != self._process:
            # The claim and the background thread are the parent's; it goes on with them.
            return
        with self._lock:
            self._is_closed = True
            self._background.shutdown(wait=True)
            # The claim's end ends an attempt that has no verdict yet, so it is not voided.
            self._at_end.close()

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

    def _start_worker(self) -> None:
        """Start the one thread, so that no interrupt of a put can leave a second one."""
        try:
            self._background.submit(int).result()
        except BaseException as error:
            # Nobody will have this session to close it.
            self._background.shutdown(wait=False)
            with closing_after(error):
                self._at_end.close()
            raise

    def _await_last(self) -> None:
        """Wait for the put before; one whose call was interrupted may never have begun."""
        if self._beginning is not None:
            self._beginning.abandon()
            self._beginning.wait()
            self._beginning = None
        if self._last is not None:
            self._last.wait()

    def _refuse_fork(self) -> None:
        """A forked child has no background thread: a put there would wait for ever."""
        do = "Put from the process that made the session."
        refuse_fork(self._process, "this trainer session", do)

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise StoreClosedError(
                "this trainer session is closed", do="Open another with `store.trainer(run)`."
            )


def _work(
    publisher: Publisher, request: PutRequest, pending: PendingVersion, opened: ExitStack
) -> None:
    if not pending.start():
        return
    try:
        with opened:
            report = publisher.put(request, captured=pending.mark_captured)
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the caller's thread raises it
        pending.fail(error)
    else:
        pending.succeed(report)
