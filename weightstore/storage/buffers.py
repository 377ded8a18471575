"""Any object's memory as plain bytes."""

from __future__ import annotations

from typing_extensions import Buffer


def byte_view(data: Buffer) -> memoryview:
    """The bytes of a C-contiguous buffer of any item type, without a copy.

    An empty buffer of several dims cannot be cast by Python; it is no bytes all the same.
    """
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
