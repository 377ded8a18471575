"""Where the time of detecting and encoding one step goes, on one core.

python -m tools.bench.encode_parts
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from typing import Any, cast
from unittest.mock import patch

from tools.bench.bandwidth import Reading
from tools.bench.published_step import piece_inputs
from tools.bench.step_bytes import make_data
from tools.bench.turns import in_turns, timed
from tools.bench.weights import training_steps
from weightstore.codec import encoding
from weightstore.codec.codec import PieceCodec
from weightstore.codec.frames import FrameCoder
from weightstore.codec.kernels import Kernels, load_kernels

TURN_COUNT = 15
PARTS = {
    "find_changes": "finding the changes",
    "lane_deltas": "digest differences",
    "pack_gap_bytes": "gaps and differences into streams",
    "pack_gap_words": "gaps and differences into streams",
    "pack_ulp": "gaps and differences into streams",
    "pack_zigzag": "gaps and differences into streams",
    "split_planes": "gaps and differences into streams",
    "compress": "zstd",
    "hash_streams": "hash of each piece",
    "choose_coding": "choosing the coding",
}
"""Name of a function to the part that it is."""
REST = "the rest"


class Watch:
    """Adds up seconds by part, of calls that do not hold one another."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner_s = [0.0]

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose own time is counted."""

        def watched(*given: Any, **named: Any) -> Any:  # noqa: ANN401 -- as the function's
            start_s = perf_counter()
            self._inner_s.append(0.0)
            try:
                return function(*given, **named)
            finally:
                spent_s = perf_counter() - start_s
                self.seconds[PARTS[name]] += spent_s - self._inner_s.pop()
                self._inner_s[-1] += spent_s

        return watched


class WatchedKernels:
    """Kernels whose calls are counted."""

    def __init__(self, watch: Watch) -> None:
        self._inner = load_kernels()
        self._watch = watch

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever kernels have
        found = getattr(self._inner, name)
        return self._watch.around(name, found) if name in PARTS else found


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Count what is no kernel, too."""
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(FrameCoder, "compress", watch.around("compress", FrameCoder.compress))
        )
        for name in ("hash_streams", "choose_coding"):
            function = watch.around(name, vars(encoding)[name])
            stack.enter_context(patch.object(encoding, name, function))
        yield


def main() -> None:
    """Print the share of each part, and what reading alone takes."""
    data = make_data("training step", training_steps(1, is_small=False))
    inputs = piece_inputs(data.before, data.after)
    watch, reading = Watch(), Reading(inputs)
    # Its methods are found when they are asked for, so no type says that it has all of them.
    worker = PieceCodec(kernels=cast("Kernels", WatchedKernels(watch))).worker()
    for each in inputs:
        each.encode(worker)  # compiles
    watch.seconds.clear()
    with watching(watch):
        taken = in_turns(
            {
                "watched": timed(lambda: [each.encode(worker) for each in inputs]),
                "reading": timed(reading.by_one),
            },
            TURN_COUNT,
        )
    whole_s = sum(taken["watched"])
    parts = {**watch.seconds, REST: whole_s - sum(watch.seconds.values())}
    for name, spent_s in sorted(parts.items(), key=lambda part: -part[1]):
        sys.stdout.write(f"{name:40} {spent_s / whole_s:6.1%}\n")
    share = median(taken["reading"]) / median(taken["watched"])
    sys.stdout.write(f"{'(reading both versions alone)':40} {share:6.1%}\n")


if __name__ == "__main__":
    main()
