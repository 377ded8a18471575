"""Feeding damaged inputs to a decoder, and judging what comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weightstore.clock import Clock, SystemClock
from weightstore.errors import WeightStoreError
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.mutating import Mutator

INPUT_TIME_S_MAX = 10.0
"""Far above what any input takes, so that a busy machine fails no run; a hang fails it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many inputs were decoded, and how many were refused by a typed error."""

    decoded_count: int
    refused_count: int

    @property
    def input_count(self) -> int:
        """All inputs."""
        return self.decoded_count + self.refused_count


def run(decoder: Decoder, seed: int, count: int, *, clock: Clock | None = None) -> Outcome:
    """Feed a decoder its good inputs, then damaged ones.

    Args:
        decoder: What is fed.
        seed: The same seed gives the same inputs.
        count: Damaged inputs.
        clock: Watches that nothing hangs.

    Raises:
        AssertionError: an input ended in another error than a `WeightStoreError`, took too
            long, or was decoded to something that it is not; names the input.
    """
    watch = clock or SystemClock()
    for data in decoder.seeds:
        decoder.decode(data)
    decoded_count = 0
    for data in damaged(decoder, seed, count):
        start_s = watch.monotonic_s()
        decoded_count += judge(decoder, data)
        took_s = watch.monotonic_s() - start_s
        if took_s > INPUT_TIME_S_MAX:
            raise AssertionError(f"{decoder.name}: {took_s:.1f} s for {shown(data)}")
    return Outcome(decoded_count, count - decoded_count)


def damaged(decoder: Decoder, seed: int, count: int) -> Iterator[bytes]:
    """Damaged inputs of a decoder, the same for the same seed."""
    for number in range(count):
        yield damaged_input(decoder, seed, number)


def damaged_input(decoder: Decoder, seed: int, number: int) -> bytes:
    """One of the inputs of `damaged`."""
    mutator = Mutator(seed, number)
    data = decoder.seeds[number % len(decoder.seeds)]
    return mutator.mutate(data, decoder.seeds, decoder.form)


def judge(decoder: Decoder, data: bytes) -> bool:
    """Whether an input was decoded; it was refused by a typed error if not.

    Raises:
        AssertionError: anything else happened.
    """
    try:
        decoder.decode(data)
    except WeightStoreError:
        return False
    except Exception as error:
        raise AssertionError(
            f"{decoder.name}: {type(error).__name__}: {error} for {shown(data)}"
        ) from error
    return True


def shown(data: bytes) -> str:
    """An input for a message: its size, and its bytes if they are few."""
    part = data if len(data) <= 4_000 else data[:4_000]  # noqa: PLR2004 -- readable
    return f"{len(data)} bytes beginning with {part!r}"
