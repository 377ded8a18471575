"""Bounds and settings: every loop, queue, chain, message and retry is limited by a name here."""

from __future__ import annotations

from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Hard bounds. Stored bytes that pass one are refused before anything is allocated."""

    record_size_bytes: int = 64 * KIB
    manifest_size_bytes: int = 64 * MIB
    schema_size_bytes: int = 512 * MIB
    digest_table_size_bytes: int = 1 * GIB
    receipt_size_bytes: int = 64 * MIB
    small_object_size_bytes: int = 64 * KIB
    pack_size_bytes: int = 1 * GIB
    safetensors_header_size_bytes: int = 100 * MIB
    anchor_index_size_bytes: int = 512 * MIB
    asset_size_bytes: int = 1 * GIB
    tensor_count: int = 4_000_000
    tensor_dim_count: int = 64
    tensor_name_size_bytes: int = 1024
    piece_element_count: int = 8 * 1024 * KIB
    piece_size_bytes: int = 64 * MIB
    bundle_member_count: int = 65_536
    bundle_tensor_element_count: int = 64 * KIB
    chain_count: int = 4096
    open_intent_count: int = 64
    kept_range_count: int = 256
    tag_record_count: int = 1_000_000
    list_page_count: int = 1_000_000


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
    """

    thread_count: int = 2
    pack_size_bytes: int = 64 * MIB
    anchor_file_size_bytes: int = 1 * GIB
    full_after_chain_count: int = 64
    full_after_chain_ratio: float = 0.5
    commit_timeout_s: float = 60.0
    warn_changed_ratio: float = 0.5
    limits: Limits = field(default_factory=Limits)
