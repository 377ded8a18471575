"""Writing a staged change over live memory, and looking at what has landed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from weightstore.errors import LiveWeightsError
from weightstore.receiver.change import StagedChange
from weightstore.receiver.placement import Placement
from weightstore.receiver.reports import Phase, Tally
from weightstore.receiver.rolling_scan import damaged_tensors


def write_change(
    placement: Placement,
    change: StagedChange,
    launch_size_bytes: int,
    tally: Tally,
    *,
    is_redo: bool,
) -> None:
    """Scatter a change, launch by launch.

    After a crash: each unit holds its old or its new bits; do it again as a redo.

    Args:
        placement: Where it goes.
        change: What to write.
        launch_size_bytes: Written at a time, about.
        tally: Counts.
        is_redo: New bits may be there already.

    Raises:
        LiveWeightsError: a unit held neither, so somebody else has written (P8), or fewer
            units were written than the change has.
    """
    written_count, strange_count = 0, 0
    for index, part in change.launches(launch_size_bytes):
        storage = placement.storages[index]
        counts = storage.scatter(part, redo=is_redo)
        tally.wrote(counts.written_count, counts.written_count * storage.width_bytes)
        written_count += counts.written_count
        strange_count += counts.strange_count
    if strange_count:
        raise LiveWeightsError(
            f"{strange_count} of {change.count} changed units did not hold what this receiver "
            "had left there: somebody else wrote the weights",
            facts={"strange_count": strange_count, "changed_count": change.count},
        )
    if written_count != change.count:
        raise LiveWeightsError(
            f"{written_count} units were written, the change has {change.count}",
            facts={"expected": change.count, "found": written_count},
        )


def check_lanes(
    placement: Placement,
    numbers: Sequence[int],
    expected: NDArray[np.uint64],
    thread_count: int,
    tally: Tally,
) -> None:
    """Look at destinations and compare their digests.

    Raises:
        LiveWeightsError: some differ; names their tensors.
    """
    with tally.phase(Phase.VERIFY):
        names = damaged_tensors(placement, numbers, expected, thread_count)
    if names:
        raise LiveWeightsError(
            f"{len(names)} tensors, the first {names[0]!r}, do not have the digests of the "
            "version that was written",
            facts={"tensors": names, "written_count": tally.applied_count},
        )
