"""Time and randomness: the only module that reads either.

Everything else takes a `Clock` or an `Entropy`, so that tests run on virtual time and
replay from a seed.
"""

from __future__ import annotations

import os
import time
from typing import Protocol, runtime_checkable


@runtime_checkable
class Clock(Protocol):
    """What the product may know of time. No correctness path compares wall clocks."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Milliseconds since 1970, for display alone."""
        ...

    def sleep(self, duration_s: float, /) -> None:
        """Wait."""
        ...


@runtime_checkable
class Entropy(Protocol):
    """Where unguessable, never repeated names come from."""

    def hex128(self) -> str:
        """32 hexadecimal digits."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Milliseconds since 1970, for display alone."""
        return time.time_ns() // 1_000_000

    def sleep(self, duration_s: float, /) -> None:
        """Wait."""
        # The one real wait: whatever waits takes a `Clock`, and a test's clock only counts.
        time.sleep(duration_s)


class SystemEntropy:
    """The kernel's random source; safe after fork, since nothing is kept in the process."""

    def hex128(self) -> str:
        """32 hexadecimal digits."""
        return os.urandom(16).hex()
