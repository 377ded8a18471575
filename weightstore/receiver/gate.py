"""The serving gate: readers in blocks, one writer that stops them.

A block is one engine step or one admission. While it is open, the weights are wholly the
version that it was given; if the writer could not wait for its end, the block says so when
it ends, and what was computed in it must be thrown away. (P4)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from weightstore.errors import Fact, NotReadyError
from weightstore.ids import VersionId
from weightstore.receiver.live_state import VersionRef


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """From which token on a sample was computed with a version."""

    version: VersionId
    first_token: int


class SampleVersions:
    """The versions that one sample was computed with, in order. One thread at a time."""

    def __init__(self) -> None:
        self._served: list[ServedVersion] = []

    def add(self, version: VersionId, first_token: int) -> None:
        """Note the version of the block that computed the tokens from `first_token` on."""
        if not self._served or self._served[-1].version != version:
            self._served.append(ServedVersion(version, first_token))

    @property
    def served(self) -> tuple[ServedVersion, ...]:
        """Each version once for each time that it came."""
        return tuple(self._served)


class ServingGate:
    """Who may compute with the weights now. Safe from any thread; does no I/O."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ref: VersionRef | None = None
        self._closed_because = "the receiver is empty"
        self._block_count = 0
        self._stop_count = 0
        self._newest: VersionId | None = None

    @property
    def open_version(self) -> VersionRef | None:
        """The version that may be served; None while the gate is closed."""
        return self._ref

    @contextmanager
    def serving(
        self, *, exact: int | None = None, at_least: int | None = None, max_lag: int | None = None
    ) -> Iterator[VersionId]:
        """Hold the weights still for a block, or refuse.

        Args:
            exact: Serve this version only.
            at_least: Serve this version or a newer one.
            max_lag: Serve at most so many versions behind the newest that was heard of.

        Raises:
            NotReadyError: at the beginning: empty, dirty, changing, or another version; at
                the end: the weights changed inside the block.
        """
        with self._changed:
            ref = self._checked(exact, at_least, max_lag)
            stop_count = self._stop_count
            self._block_count += 1
        try:
            yield ref.version
        finally:
            with self._changed:
                self._block_count -= 1
                was_stopped = self._stop_count != stop_count
                self._changed.notify_all()
        if was_stopped:
            raise NotReadyError(
                f"the weights of version {ref.version} were changed inside a serving block",
                do="Throw away what the block computed, and compute it again.",
                facts={"version": ref.version},
            )

    def close(self, reason: str, timeout_s: float) -> bool:
        """Let no new block begin and wait for open ones, but not for ever.

        Blocks that are still open then raise when they end.

        Returns:
            Whether all had ended.
        """
        with self._changed:
            self._ref = None
            self._closed_because = reason
            all_ended = self._changed.wait_for(lambda: self._block_count == 0, timeout_s)
            self._stop_count += 1
            return all_ended

    def shut(self, reason: str) -> None:
        """Stop serving at once: open blocks raise when they end."""
        self.close(reason, 0)

    def open(self, ref: VersionRef) -> None:
        """Let blocks begin on a version that is wholly there."""
        with self._changed:
            self._ref = ref
            self._changed.notify_all()

    def hear_of(self, newest: VersionId | None) -> None:
        """Note the newest committed version, for `max_lag`."""
        with self._changed:
            if newest is not None:
                self._newest = max(newest, self._newest or newest)

    def _checked(self, exact: int | None, at_least: int | None, max_lag: int | None) -> VersionRef:
        ref = self._ref
        if ref is None:
            raise NotReadyError(f"no version may be served: {self._closed_because}")
        version = ref.version
        facts: dict[str, Fact] = {"version": version}
        if exact is not None and version != exact:
            raise NotReadyError(f"version {version} is live, {exact} was asked for", facts=facts)
        if at_least is not None and version < at_least:
            raise NotReadyError(
                f"version {version} is live, at least {at_least} was asked for", facts=facts
            )
        newest = self._newest or version
        if max_lag is not None and newest - version > max_lag:
            raise NotReadyError(
                f"version {version} is live, {newest - version} behind version {newest}; at most "
                f"{max_lag} was asked for",
                facts={**facts, "newest": newest},
            )
        return ref
