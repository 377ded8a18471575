"""What a shell offers after the store: its tags, steps and versions."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import typer

from weightstore.cli.environment import environment_settings
from weightstore.errors import WeightStoreError
from weightstore.store import WeightStore

VERSION_COUNT = 30
"""So many of the newest versions are offered: a shell waits for the answer."""


def complete_selector(context: typer.Context, incomplete: str) -> list[str]:
    """Selectors of versions that are kept, for what was typed so far."""
    return [word for word in _selectors(context) if word.startswith(incomplete)]


def _selectors(context: typer.Context) -> list[str]:
    """Everything that names a kept version; nothing where the store cannot be read."""
    place = context.params.get("store")
    if not isinstance(place, str | Path):
        return []
    try:
        with WeightStore.open(place, settings=environment_settings()) as store:
            active = ["active"] if store.state().active is not None else []
            tags = [f"tag:{tag.name}" for tag in store.tags()]
            kept = [each for each in islice(store.versions(), VERSION_COUNT) if each.kept]
    except WeightStoreError:
        # A shell that completes a word is no place for an error; the command will say it.
        return []
    steps = [f"{each.run}@{each.step}" for each in kept]
    return ["latest", *active, *tags, *dict.fromkeys(steps), *(str(each.version) for each in kept)]
