"""How long the phases of a put took, and its report."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from weightstore.clock import Clock
from weightstore.format.manifest import Manifest
from weightstore.format.records import VersionRecord
from weightstore.trainer.pending import PutReport


class PutWatch:
    """Times the phases of one put."""

    def __init__(self, clock: Clock, captured: Callable[[], None]) -> None:
        self._clock = clock
        self._on_captured = captured
        self._times_s = [self._clock.monotonic_s()]

    def captured(self) -> None:
        """The given tensors were read."""
        self._times_s.append(self._clock.monotonic_s())
        self._on_captured()

    def written(self) -> None:
        """Everything but the record is stored."""
        self._times_s.append(self._clock.monotonic_s())

    def report(
        self,
        record: VersionRecord,
        *,
        unit_count: int,
        notes: tuple[str, ...],
        manifest: Manifest | None = None,
        own_size_bytes: int = 0,
        changed_count: int = 0,
        device_bytes: int = 0,
        repeated: bool = False,
    ) -> PutReport:
        """What the put did, with the time until now as the last phase."""
        times_s = [*self._times_s, self._clock.monotonic_s()]
        spans_s = [end - start for start, end in pairwise(times_s)] + [0.0, 0.0]
        delta = manifest.delta if manifest else None
        full = manifest.full if manifest else None
        assert record.run is not None
        return PutReport(
            version=record.version,
            run=record.run,
            step=record.step,
            repeated=repeated,
            changed_count=changed_count,
            unit_count=unit_count,
            piece_count=delta.piece_count if delta else 0,
            wire_size_bytes=own_size_bytes + (delta.size_bytes if delta else 0),
            full_size_bytes=full.size_bytes if full else 0,
            device_bytes=device_bytes,
            detect_s=spans_s[0],
            write_s=spans_s[1],
            commit_s=spans_s[2],
            notes=notes,
        )
