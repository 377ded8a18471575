"""Bounds and settings: every loop, queue, chain, message and retry is limited by a name here."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from weightstore.errors import InputRefusedError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Hard bounds. Stored bytes that pass one are refused before anything is allocated.

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
        limits: The hard bounds.

    Raises:
        InputRefusedError: a count or size is no whole number from 1, the time is not above
            0, a ratio is below 0, or `pack_size_bytes` passes the bound on packs.
    """

    thread_count: int = 2
    pack_size_bytes: int = 64 * MIB
    anchor_file_size_bytes: int = 1 * GIB
    full_after_chain_count: int = 64
    full_after_chain_ratio: float = 0.5
    commit_timeout_s: float = 60.0
    warn_changed_ratio: float = 0.5
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in _WHOLE_SETTINGS:
            _check_whole(name, getattr(self, name))
        for name in _RATIO_SETTINGS:
            ratio = getattr(self, name)
            if not (math.isfinite(ratio) and ratio >= 0):
                raise _refused(name, ratio, "a finite number from 0")
        if not (math.isfinite(self.commit_timeout_s) and self.commit_timeout_s > 0):
            raise _refused(
                "commit_timeout_s", self.commit_timeout_s, "a finite number of seconds above 0"
            )
        if self.pack_size_bytes > self.limits.pack_size_bytes:
            raise _refused(
                "pack_size_bytes",
                self.pack_size_bytes,
                f"at most limits.pack_size_bytes, {self.limits.pack_size_bytes}",
            )


_WHOLE_SETTINGS = (
    "thread_count",
    "pack_size_bytes",
    "anchor_file_size_bytes",
    "full_after_chain_count",
)
_RATIO_SETTINGS = ("full_after_chain_ratio", "warn_changed_ratio")


def _check_whole(name: str, value: object) -> None:
    if not (isinstance(value, int) and value >= 1):
        raise _refused(name, value, "a whole number from 1")


def _refused(name: str, value: object, expected: str) -> InputRefusedError:
    return InputRefusedError(
        f"the setting {name} is {value}, expected {expected}",
        do=f"Give another {name}.",
        facts={"setting": name},
    )
