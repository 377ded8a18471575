"""The table of everything that parses stored bytes, in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from weightstore.testing.fuzz.agent_decoders import agent_decoders
from weightstore.testing.fuzz.binary_decoders import binary_decoders
from weightstore.testing.fuzz.codec_decoders import codec_decoders
from weightstore.testing.fuzz.decoder import Decoder
from weightstore.testing.fuzz.json_decoders import json_decoders
from weightstore.testing.fuzz.live_decoders import live_decoders
from weightstore.testing.fuzz.migration_decoders import migration_decoders
from weightstore.testing.fuzz.store_decoders import store_decoders
from weightstore.testing.real_versions import three_versions

_GROUPS: dict[str, Callable[[Path], Iterator[Decoder]]] = {
    "json": lambda _: json_decoders(three_versions()),
    "binary": lambda _: binary_decoders(three_versions()),
    "codec": lambda _: codec_decoders(),
    "store": lambda folder: store_decoders(three_versions(), folder),
    "agent": lambda _: agent_decoders(three_versions()),
    "live": lambda folder: live_decoders(three_versions(), folder),
    "migrations": migration_decoders,
}
GROUPS = tuple(_GROUPS)


def decoders_of(group: str, folder: Path) -> tuple[Decoder, ...]:
    """The decoders of one group.

    Args:
        group: One of `GROUPS`.
        folder: An empty one, for what only files can hold.
    """
    return tuple(_GROUPS[group](folder))


def all_decoders(folder: Path) -> dict[str, Decoder]:
    """Every decoder by its name.

    Args:
        folder: An empty one, for what only files can hold.
    """
    found = [decoder for group in GROUPS for decoder in decoders_of(group, folder)]
    table = {decoder.name: decoder for decoder in found}
    assert len(table) == len(found), "two decoders have one name"
    return table
