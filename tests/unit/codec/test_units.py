"""The one form in which bits are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.codec.units import UNIT_WIDTHS, check_units
from weightstore.errors import InputRefusedError, LimitError


@pytest.mark.parametrize("width", UNIT_WIDTHS)
def test_every_width_is_accepted_up_to_the_limit(width: int) -> None:
    units = np.zeros(10, dtype=f"u{width}")
    check_units(units, 10, what="bits")
    with pytest.raises(LimitError, match="10 units; at most 9"):
        check_units(units, 9, what="bits")


@pytest.mark.parametrize(
    "units",
    [
        np.zeros(0, dtype=np.uint8),
        np.zeros(4, dtype=np.int16),
        np.zeros(4, dtype=np.float32),
        np.zeros(4, dtype=bool),
        np.zeros(4, dtype=">u4"),
        np.zeros((2, 2), dtype=np.uint8),
        np.zeros((), dtype=np.uint8),
        np.zeros(8, dtype=np.uint8)[::2],
    ],
    ids=lambda units: f"{units.dtype}-{units.shape}-{units.strides}",
)
def test_every_other_form_is_refused(units: NDArray[Any]) -> None:
    with pytest.raises(InputRefusedError, match="bits of a piece"):
        check_units(units, 10, what="bits")
