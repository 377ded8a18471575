"""The facade: the only part that knows all the others."""

from weightstore.store.facade import WeightStore
from weightstore.store.views import (
    Checkout,
    LogRow,
    RetireReport,
    StoreState,
    TagInfo,
    VerifyReport,
    VersionDetails,
    VersionInfo,
)

__all__ = [
    "Checkout",
    "LogRow",
    "RetireReport",
    "StoreState",
    "TagInfo",
    "VerifyReport",
    "VersionDetails",
    "VersionInfo",
    "WeightStore",
]
