"""weightstore: a transactional, versioned store for the weights of a policy in training.

`WeightStore.open(...)` is the beginning of everything; errors are in `weightstore.errors`.
"""

from weightstore.errors import WeightStoreError
from weightstore.settings import Limits, Settings
from weightstore.store import Checkout, VersionInfo, WeightStore

__all__ = ["Checkout", "Limits", "Settings", "VersionInfo", "WeightStore", "WeightStoreError"]
