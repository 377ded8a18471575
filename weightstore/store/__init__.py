"""The facade: the only part that knows all the others.

`WeightStore` needs a store that can be opened; `examine`, `plan_migration` and `migrate_store`
need none.
"""

from weightstore.history.diff import SchemaChange, TensorChange
from weightstore.history.overwrite_set import OverwritePart, OverwriteSet
from weightstore.layout.boxes import Box
from weightstore.receiver.host_agent.messages import AgentStats
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.receiver.host_files.host_files import HostFiles, Recovery
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.store.doctor import examine
from weightstore.store.facade import WeightStore
from weightstore.store.findings import DoctorReport, Finding, Severity
from weightstore.store.migrating import MigrationPlan, migrate_store, plan_migration
from weightstore.store.views import (
    Activation,
    Checkout,
    ImportedVersion,
    KeptVersion,
    LogRow,
    ReceiverInfo,
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
    "Activation",
    "AgentStats",
    "Box",
    "Checkout",
    "DoctorReport",
    "EngineRank",
    "EngineSettings",
    "Finding",
    "HostAgent",
    "HostFiles",
    "ImportedVersion",
    "KeptVersion",
    "LogRow",
    "MigrationPlan",
    "OverwritePart",
    "OverwriteSet",
    "Receiver",
    "ReceiverInfo",
    "ReceiverSettings",
    "Recovery",
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
