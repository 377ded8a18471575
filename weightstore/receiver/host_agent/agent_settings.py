"""How one host agent works; changes no bit of what it hands out."""

from __future__ import annotations

from dataclasses import dataclass, fields

from weightstore.settings import GIB, TIME_MIN_S, check_count, check_seconds

PROTOCOL_NUMBER = 1
"""Agents and ranks of different numbers do not talk to each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostAgentSettings:
    """Bounds of a host agent.

    Attributes:
        memory_bytes: Of all segments and of the packs that are being decoded. The decoders'
            buffers of one piece a thread come on top.
        segment_count: Segments that are kept; each holds one file descriptor.
        build_count: Packs that are read and decoded at once.
        queue_count: Packs that are being decoded or wait for it; a rank that asks for one
            more is told that the agent is busy.
        connection_count: Open connections; one more is closed at once.
        schema_count: Parsed schemas that are kept.
        frame_timeout_s: From the first byte of a message to its last.
        memory_wait_s: How long a pack waits for memory that ranks hold, before the one that asks
            for it is told that the agent is busy.
        wait_s_max: A request is answered after this time at the latest.

    Raises:
        InputRefusedError: a bound is no whole number from 1, or a time is none that can be waited.
    """

    memory_bytes: int = 4 * GIB
    segment_count: int = 512
    build_count: int = 2
    queue_count: int = 64
    connection_count: int = 256
    schema_count: int = 4
    frame_timeout_s: float = 10.0
    memory_wait_s: float = 0.5
    wait_s_max: float = 60.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type == "float":
                check_seconds(each.name, value, TIME_MIN_S)
            else:
                check_count(each.name, value, 1)
