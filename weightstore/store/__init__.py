"""The facade: the only part that knows all the others.

`WeightStore` needs a store that can be opened; `examine`, `plan_migration` and `migrate_store`
need none.
"""

from weightstore.history.diff import SchemaChange, TensorChange
from weightstore.store.doctor import examine
from weightstore.store.facade import WeightStore
from weightstore.store.findings import DoctorReport, Finding, Severity
from weightstore.store.migrating import MigrationPlan, migrate_store, plan_migration
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
    "DoctorReport",
    "Finding",
    "ImportedVersion",
    "KeptVersion",
    "LogRow",
    "MigrationPlan",
    "RetireReport",
    "SchemaChange",
    "Severity",
    "SkippedFile",
    "StoreState",
    "TagInfo",
    "TensorChange",
    "VerifyReport",
    "VersionDetails",
    "VersionDiff",
    "VersionInfo",
    "WeightStore",
    "examine",
    "migrate_store",
    "plan_migration",
]
