"""weightstore: a transactional, versioned store for the weights of a policy in training.

`WeightStore.open(...)` is the beginning of everything; errors are in `weightstore.errors`.
"""

import importlib
import typing

from weightstore.errors import WeightStoreError

if typing.TYPE_CHECKING:
    from weightstore.settings import Limits, Settings
    from weightstore.store import (
        Box,
        Checkout,
        DoctorReport,
        EngineRank,
        EngineSettings,
        MigrationPlan,
        Receiver,
        ReceiverSettings,
        VersionInfo,
        WeightStore,
        examine,
        migrate_store,
        plan_migration,
    )

    __version__: str

__all__ = [
    "Box",
    "Checkout",
    "DoctorReport",
    "EngineRank",
    "EngineSettings",
    "Limits",
    "MigrationPlan",
    "Receiver",
    "ReceiverSettings",
    "Settings",
    "VersionInfo",
    "WeightStore",
    "WeightStoreError",
    "examine",
    "migrate_store",
    "plan_migration",
]

_HOMES = {
    "Box": "weightstore.store",
    "Checkout": "weightstore.store",
    "DoctorReport": "weightstore.store",
    "EngineRank": "weightstore.store",
    "EngineSettings": "weightstore.store",
    "Limits": "weightstore.settings",
    "MigrationPlan": "weightstore.store",
    "Receiver": "weightstore.store",
    "ReceiverSettings": "weightstore.store",
    "Settings": "weightstore.settings",
    "VersionInfo": "weightstore.store",
    "WeightStore": "weightstore.store",
    "examine": "weightstore.store",
    "migrate_store": "weightstore.store",
    "plan_migration": "weightstore.store",
}


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used.

        The command line must have hold of Ctrl-C before it loads what takes half a second,
        and this module is loaded before any other of the package.
        """
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("weightstore")
        if name in {"settings", "store"}:
            return importlib.import_module(f"weightstore.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'weightstore' has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
