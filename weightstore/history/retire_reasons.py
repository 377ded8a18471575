"""Why each version that a `retire` keeps stays: for people who wonder what holds the space."""

from __future__ import annotations

from weightstore.format import kept as kept_sets
from weightstore.format.kept import Kept
from weightstore.format.rules import Prefix
from weightstore.history.log import Log
from weightstore.history.retire import ChainOf, Keep, newest_kept
from weightstore.history.tags import list_tags
from weightstore.history.versions import records_of
from weightstore.ids import VersionId

ASKED = "asked for"
FILLED = "between others: a kept set has a bounded number of ranges"

Reasons = dict[VersionId, tuple[str, ...]]


def kept_reasons(log: Log, prefix: Prefix, keep: Keep, kept: Kept, *, chain_of: ChainOf) -> Reasons:
    """The reasons of every version of a planned kept set, rising.

    Args:
        log: The log.
        prefix: The tail that the plan was made at, or a later one.
        keep: What the user wanted to stay.
        kept: What stays by the plan.
        chain_of: Which versions a checkout reads.

    Raises:
        CorruptError: a manifest that the chains run through cannot be read.
    """
    direct = _direct(log, prefix, keep, kept)
    found: Reasons = {version: tuple(why) for version, why in direct.items()}
    stays = kept_sets.of_versions(direct)
    # Rising, so that a version inside two chains is told by the nearest one that needs it.
    for record in reversed(tuple(records_of(log, prefix, stays))):
        for version in chain_of(record):
            if version != record.version and version in found:
                break
            found.setdefault(version, (f"chain of {record.version}",))
    return {version: found.get(version, (FILLED,)) for version in kept_sets.iterate(kept)}


def _direct(log: Log, prefix: Prefix, keep: Keep, kept: Kept) -> dict[VersionId, list[str]]:
    """Versions that stay for their own sake."""
    now = prefix.now
    reasons: dict[VersionId, list[str]] = {}
    musts = (
        ("newest", now.newest),
        ("active", now.active),
        ("previous active", now.previous_active),
    )
    for why, one in musts:
        if one is not None:
            reasons.setdefault(one.version, []).append(why)
    for tag in list_tags(log, prefix):
        reasons.setdefault(tag.version, []).append(f"tag {tag.name}")
    asked = kept_sets.union(
        kept_sets.intersect(keep.versions, kept), newest_kept(kept, keep.newest_count)
    )
    for version in kept_sets.iterate(asked):
        reasons.setdefault(version, []).append(ASKED)
    # Somebody else may have put a version since the plan: it is kept, and not part of it.
    return {version: why for version, why in reasons.items() if kept_sets.contains(kept, version)}
