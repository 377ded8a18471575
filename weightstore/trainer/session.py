"""A trainer's session: one claim, one baseline, one put at a time in the background."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from weightstore.errors import InputRefusedError, StoreClosedError
from weightstore.format.records import MAX_INTEGER
from weightstore.ids import Epoch, RunId, SessionId, Step
from weightstore.trainer.binding import Missing
from weightstore.trainer.inputs import Inputs, TensorSource, device_fence, open_source
from weightstore.trainer.pending import PendingVersion
from weightstore.trainer.publisher import Publisher
from weightstore.trainer.put_request import PutRequest


class TrainerSession:
    """Puts the steps of one run, as the store's owner.

    Made by `trainer.attach.open_trainer`; a context manager. May be used from any thread,
    one call at a time.

    Args:
        publisher: The claim, the baseline and the way to the store.
        at_end: Closes the claim, and lets go of lock, threads and baseline.
        name_rules: Wrapper prefixes to strip from given names.
    """

    def __init__(
        self, publisher: Publisher, *, at_end: ExitStack, name_rules: Sequence[str] = ()
    ) -> None:
        self._publisher = publisher
        self._at_end = at_end
        self._name_rules = tuple(name_rules)
        self._background = ThreadPoolExecutor(1, thread_name_prefix="weightstore-put")
        self._last: PendingVersion | None = None
        self._is_closed = False
        self._lock = threading.Lock()

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
    ) -> PendingVersion:
        """Begin to put a step. Waits only for the verdict of the put before.

        Args:
            step: The trainer's count, from 0; above the run's newest, or a repeat.
            tensors: A mapping, a stream of (name, tensor), or a path to safetensors. They
                must not change until `captured` has returned.
            anchor: Also store the full form, as a Hugging Face checkpoint.
            missing: With "unchanged", tensors that are not given did not change.
            new_schema: Allow other names, shapes or dtypes, as a full version.

        Returns:
            The handle; errors of the put come out of its `captured` and `result`.

        Raises:
            StoreClosedError: the session is closed.
            InputRefusedError: the step is no number that a version can have.
        """
        number = _checked_step(step)
        source = dict(tensors) if isinstance(tensors, Mapping) else tensors
        await_devices = device_fence(source.values()) if isinstance(source, dict) else None
        with self._lock:
            self._refuse_closed()
            if self._last is not None:
                self._last.wait()
            pending = PendingVersion(number)

            def open_inputs() -> Inputs:
                if await_devices is not None:
                    await_devices()
                return open_source(source, name_rules=self._name_rules)

            request = PutRequest(
                step=number,
                open_inputs=open_inputs,
                anchor=anchor,
                missing=missing,
                new_schema=new_schema,
            )
            self._last = pending
            self._background.submit(_work, self._publisher, request, pending)
            return pending

    def close(self) -> None:
        """Wait for the last put, then close the claim. A second call does nothing.

        After a crash: the claim is open, and the next trainer takes it over.

        Raises:
            WeightStoreError: the claim could not be closed.
        """
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
        self.close()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise StoreClosedError(
                "this trainer session is closed", do="Open another with `store.trainer(run)`."
            )


def _checked_step(step: int) -> Step:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number <= MAX_INTEGER:
        raise InputRefusedError(
            f"{step!r} is no step", do=f"Give a whole number from 0 to {MAX_INTEGER}."
        )
    return Step(number)


def _work(publisher: Publisher, request: PutRequest, pending: PendingVersion) -> None:
    try:
        report = publisher.put(request, captured=pending.mark_captured)
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the caller's thread raises it
        pending.fail(error)
    else:
        pending.succeed(report)
