"""The facade: the only part that knows all the others."""

from weightstore.history.diff import SchemaChange, TensorChange
from weightstore.store.facade import WeightStore
from weightstore.store.views import (
    Checkout,
    ImportedVersion,
    KeptVersion,
    LogRow,
    RetireReport,
    SkippedFile,
    StoreState,
    TagInfo,
    VerifyReport,
    VersionDetails,
    VersionDiff,
    VersionInfo,
)

__all__ = [
    "Checkout",
    "ImportedVersion",
    "KeptVersion",
    "LogRow",
    "RetireReport",
    "SchemaChange",
    "SkippedFile",
    "StoreState",
    "TagInfo",
    "TensorChange",
    "VerifyReport",
    "VersionDetails",
    "VersionDiff",
    "VersionInfo",
    "WeightStore",
]
