"""How one receiver works; changes no bit of what it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weightstore.arguments import shown
from weightstore.errors import InputRefusedError
from weightstore.settings import MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverSettings:
    """Bounds and times of a receiver.

    Attributes:
        pool_ratio: Share of all elements for which there is room to stage a change of them.
        pool_size_bytes: Room in bytes; None takes `pool_ratio`.
        launch_size_bytes: Bytes of a change that are written by one launch, about.
        block_timeout_s: How long a change waits for open serving blocks. One that is still
            open then raises when it ends.
        scan_refit_count: After so many refits every element was looked at by the rolling scan.

    Raises:
        InputRefusedError: a number is out of bounds.
    """

    pool_ratio: float = 0.03
    pool_size_bytes: int | None = None
    launch_size_bytes: int = 64 * MIB
    block_timeout_s: float = 30.0
    scan_refit_count: int = 8

    def __post_init__(self) -> None:
        checks = (
            ("pool_ratio", self.pool_ratio, 0.0),
            ("pool_size_bytes", self.pool_size_bytes or 0, 0),
            ("launch_size_bytes", self.launch_size_bytes, 1),
            ("block_timeout_s", self.block_timeout_s, 0.0),
            ("scan_refit_count", self.scan_refit_count, 1),
        )
        for name, value, least in checks:
            if not _is_from(value, least):
                raise InputRefusedError(
                    f"the setting {name} is {shown(value)}, expected a number from {least}",
                    do=f"Give another {name}.",
                    facts={"setting": name},
                )


def _is_from(value: object, least: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value >= least
