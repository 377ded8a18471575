"""The one form in which bits enter the codec."""

from __future__ import annotations

from weightstore.codec.lanes import Units
from weightstore.errors import InputRefusedError, LimitError

UNIT_WIDTHS = (1, 2, 4, 8)


def check_units(units: Units, unit_count_max: int, *, what: str) -> None:
    """Refuse anything but 1 to `unit_count_max` unsigned units in one contiguous run.

    Raises:
        InputRefusedError: dtype, dimensions or layout are wrong, or there is no unit.
        LimitError: there are too many.
    """
    is_plain = units.ndim == 1 and units.flags.c_contiguous and units.dtype.isnative
    if not is_plain or units.dtype.kind != "u" or units.size == 0:
        raise InputRefusedError(
            f"{what} of a piece are {units.dtype} of shape {units.shape}",
            do="Pass a non-empty, contiguous, unsigned array of one dimension.",
            facts={"dtype": str(units.dtype), "shape": units.shape},
        )
    if units.size > unit_count_max:
        raise LimitError(
            f"{what} of a piece are {units.size} units; at most {unit_count_max} are allowed",
            do="Cut the box into flat runs first.",
            facts={"unit_count": units.size, "unit_count_max": unit_count_max},
        )
