"""How high the memory of this process rises over what it held at a certain point."""

from __future__ import annotations

from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


class PeakMemory:
    """Begins at the memory that the process holds when this is made."""

    def __init__(self) -> None:
        CLEAR.write_text(RESET_PEAK, encoding="ascii")
        self._before = _status_bytes("VmRSS")

    def extra_bytes(self) -> int:
        """The highest since then, over what was held then."""
        return _status_bytes("VmHWM") - self._before


def _status_bytes(field: str) -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.removesuffix("kB")) * 1024
    raise SystemExit(f"{STATUS} does not tell {field}")
