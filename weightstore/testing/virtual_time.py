"""A clock that only moves when somebody sleeps, and names that replay from a seed."""

from __future__ import annotations

import hashlib
import threading


class VirtualClock:
    """Time that costs no time: `sleep` moves it on and returns at once."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s
        self._lock = threading.Lock()
        self.slept_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary origin."""
        return self._now_s

    def unix_ms(self) -> int:
        """Milliseconds since 1970, the same second again and again."""
        return 1_700_000_000_000 + int(self._now_s * 1000)

    def sleep(self, duration_s: float, /) -> None:
        """Let time pass."""
        with self._lock:
            self._now_s += duration_s
            self.slept_s += duration_s


class SeededEntropy:
    """Names that never repeat within one seed, and are the same in every run."""

    def __init__(self, seed: int | str = 0) -> None:
        self._seed = seed
        self._count = 0
        self._lock = threading.Lock()

    def hex128(self) -> str:
        """32 hexadecimal digits."""
        with self._lock:
            self._count += 1
            text = f"{self._seed}/{self._count}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]
