"""What the environment says: read here and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from weightstore.settings import Settings


def environment_settings() -> Settings:
    """Settings with the user's cache directory, as `XDG_CACHE_HOME` names it.

    That it is empty or relative means, by its specification, that it is not set.
    """
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(cache_home).is_absolute():
        return Settings()
    return Settings(cache_dir=Path(cache_home) / "weightstore")
