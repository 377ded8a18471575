"""Which engine is the newest: generations rise by one, and the highest one holds."""

from __future__ import annotations

from weightstore.receiver.ranks.channel import RankChannel, engine_key

ENGINE_SIZE_BYTES = 4096
GENERATION_MAX = 1 << 40
"""Bounds the search; no leader begins so often."""


def is_begun(channel: RankChannel, generation: int) -> bool:
    """Whether a leader has begun this generation of an engine."""
    return channel.get(engine_key(generation), max_size_bytes=ENGINE_SIZE_BYTES) is not None


def newest_generation(channel: RankChannel, known: int) -> int:
    """The newest generation that was begun; one read if it is the known one.

    Args:
        channel: Of the engine.
        known: A generation that was begun, or 0.
    """
    if not is_begun(channel, known + 1):
        return known
    begun, step = known + 1, 1
    while begun + step < GENERATION_MAX and is_begun(channel, begun + step):
        begun, step = begun + step, 2 * step
    absent = begun + step
    while absent - begun > 1:
        middle = (begun + absent) // 2
        if is_begun(channel, middle):
            begun = middle
        else:
            absent = middle
    return begun
