"""Bounds and settings: every loop, queue, chain, message and retry is limited by a name here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

from weightstore.arguments import check_instance, shown
from weightstore.errors import InputRefusedError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Hard bounds. Stored bytes that pass one are refused before anything is allocated.

    The first group bounds what is stored; the second what one process does: none of these
    changes a stored byte, and each may differ between processes.

    Attributes:
        hint_size_bytes: Of `head`; a longer one is no hint.
        walk_back_count: Records that a reader goes back to find two that agree.
        tail_step_count: New records that a reader takes one by one before it looks for the
            tail afresh.
        cached_record_count: Parsed records that one handle keeps.
        box_pair_count: Pairs of boxes of one tensor that are compared for overlaps.
        put_try_count: Tries of a put whose answer is lost.
        delete_try_count: Tries of a deletion whose answer is lost.
        failed_send_count: Times that a record is sent to a storage that fails and has
            taken nothing.
        replan_count: Times that a plan of what to keep is made anew because somebody else
            retired versions meanwhile.
        claim_try_count: Looks at a claim that was refused for an owner of the past.
        owner_lock_try_count: Tries to lock the file of a session while others look at it.
        index_size_bytes: The index of a log never grows above this.
        index_miss_count: Reads that the index could not answer before it is extended.
        index_extension_count: Records that it is extended by at once.
        index_clear_count: Times that one handle deletes a damaged index before it goes on
            without one.
        open_file_count: Files of one checkpoint that stay open; those beyond are opened for
            each range.

    Raises:
        InputRefusedError: a bound is no whole number from 1.
    """

    record_size_bytes: int = 64 * KIB
    manifest_size_bytes: int = 64 * MIB
    schema_size_bytes: int = 512 * MIB
    digest_table_size_bytes: int = 1 * GIB
    small_object_size_bytes: int = 64 * KIB
    pack_size_bytes: int = 1 * GIB
    safetensors_header_size_bytes: int = 100 * MIB
    anchor_index_size_bytes: int = 512 * MIB
    asset_size_bytes: int = 1 * GIB
    tensor_count: int = 4_000_000
    piece_element_count: int = 8 * 1024 * KIB
    piece_size_bytes: int = 64 * MIB
    bundle_member_count: int = 65_536
    chain_count: int = 4096
    open_intent_count: int = 64
    kept_range_count: int = 256
    tag_record_count: int = 1_000_000

    hint_size_bytes: int = 20
    walk_back_count: int = 64
    tail_step_count: int = 16
    cached_record_count: int = 256
    box_pair_count: int = 1024 * KIB
    put_try_count: int = 4
    delete_try_count: int = 3
    failed_send_count: int = 4
    replan_count: int = 8
    claim_try_count: int = 3
    owner_lock_try_count: int = 32
    index_size_bytes: int = 8 * GIB
    index_miss_count: int = 32
    index_extension_count: int = 256
    index_clear_count: int = 3
    open_file_count: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            _check_whole(f"limits.{each.name}", getattr(self, each.name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How one process uses a store; changes no stored meaning.

    Attributes:
        thread_count: Pieces and block hashes worked on at once.
        pack_size_bytes: A pack is closed when its streams pass this.
        anchor_file_size_bytes: A shard file of an anchor is closed before it passes this.
        full_after_chain_count: A put also writes the full form when the chain of deltas
            would become longer than this.
        full_after_chain_ratio: The same when the chain's bytes would pass this share of
            the full bytes.
        commit_timeout_s: How long a put resolves an unanswered record before it reports
            `CommitUnknownError`.
        warn_changed_ratio: A put that changes more than this share of all elements warns.
        use_index: Keep an index of the log, which spares most reads of old records. It can be
            deleted at any time.
        cache_dir: Where the index lies for a store on a network, or one that this process
            may not write to; by default `.cache/weightstore` in the user's home directory.
        limits: The hard bounds.

    Raises:
        InputRefusedError: a setting is of another type, a count or size is no whole number
            from 1, the time is not above 0, a ratio is below 0, or
            `pack_size_bytes` passes the bound on packs.
    """

    thread_count: int = 2
    pack_size_bytes: int = 64 * MIB
    anchor_file_size_bytes: int = 1 * GIB
    full_after_chain_count: int = 64
    full_after_chain_ratio: float = 0.5
    commit_timeout_s: float = 60.0
    warn_changed_ratio: float = 0.5
    use_index: bool = True
    cache_dir: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in _WHOLE_SETTINGS:
            _check_whole(name, getattr(self, name))
        for name in _RATIO_SETTINGS:
            ratio = getattr(self, name)
            if not (_is_finite(ratio) and ratio >= 0):
                raise _refused(name, ratio, "a finite number from 0")
        if not (_is_finite(self.commit_timeout_s) and self.commit_timeout_s > 0):
            raise _refused(
                "commit_timeout_s", self.commit_timeout_s, "a finite number of seconds above 0"
            )
        check_instance(self.use_index, bool, "use_index", "Give True or False.")
        if self.cache_dir is not None:
            check_instance(self.cache_dir, Path, "cache_dir", "Give a Path, or None.")
        check_instance(self.limits, Limits, "limits", "Give a weightstore.Limits.")
        if self.pack_size_bytes > self.limits.pack_size_bytes:
            raise _refused(
                "pack_size_bytes",
                self.pack_size_bytes,
                f"at most limits.pack_size_bytes, {shown(self.limits.pack_size_bytes)}",
            )


_WHOLE_SETTINGS = (
    "thread_count",
    "pack_size_bytes",
    "anchor_file_size_bytes",
    "full_after_chain_count",
)
_RATIO_SETTINGS = ("full_after_chain_ratio", "warn_changed_ratio")


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not (isinstance(value, int) and value >= 1):
        raise _refused(name, value, "a whole number from 1")


def _is_finite(value: object) -> bool:
    """Whether it is a number that arithmetic with floats can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _refused(name: str, value: object, expected: str) -> InputRefusedError:
    return InputRefusedError(
        f"the setting {name} is {shown(value)}, expected {expected}",
        do=f"Give another {name}.",
        facts={"setting": name},
    )
