"""Bounds and settings: every loop, queue, chain, message and retry is limited by a name here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, TypeGuard

from weightstore.arguments import TIMEOUT_MAX_S, check_instance, shown
from weightstore.errors import InputRefusedError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIME_MIN_S = 0.001
"""No time that is waited is shorter: the sums of a clock may lose less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Hard bounds. Stored bytes that pass one are refused before anything is allocated.

    The first group bounds what is stored; the second what one process does: none of these
    changes a stored byte, and each may differ between processes.

    Attributes:
        member_size_bytes: Of what a receiver says about itself; a longer one is not read.
        member_count: Objects under `receivers/` that are looked at; those beyond are not.
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
    member_size_bytes: int = 16 * KIB
    member_count: int = 4096

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
            check_count(f"limits.{each.name}", getattr(self, each.name), 1)


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
        activate_timeout_s: How long a put with `wait="active"` waits for receivers that have
            not staged the version before it activates it all the same.
        activate_max_staleness_s: The longest `max_staleness_s` of any receiver of the store.
            So long after an activation the put no longer waits: whoever has not read it
            serves nothing then.
        activate_poll_s: Between two looks at what receivers say about themselves.
        member_silent_s: A receiver that has said nothing new for so long is not waited for.
        warn_changed_ratio: A put that changes more than this share of all elements warns.
        detect_on: "device" compares large torch tensors with copies of the baseline beside them
            and takes only what changed to the host, at the price of the baseline's size in
            device memory; "host" compares all on the host.
        use_index: Keep an index of the log, which spares most reads of old records. It can be
            deleted at any time.
        cache_dir: Where the index lies for a store on a network, or one that this process
            may not write to; by default `.cache/weightstore` in the user's home directory.
        limits: The hard bounds.

    Raises:
        InputRefusedError: a setting is of another type, a count or size is no whole number
            from 1, a time is not above 0 (those of activations: not from a millisecond), a
            ratio is below 0, or
            `pack_size_bytes` passes the bound on packs.
    """

    thread_count: int = 2
    pack_size_bytes: int = 64 * MIB
    anchor_file_size_bytes: int = 1 * GIB
    full_after_chain_count: int = 64
    full_after_chain_ratio: float = 0.5
    commit_timeout_s: float = 60.0
    activate_timeout_s: float = 30.0
    activate_max_staleness_s: float = 10.0
    activate_poll_s: float = 0.2
    member_silent_s: float = 5.0
    warn_changed_ratio: float = 0.5
    detect_on: Literal["host", "device"] = "host"
    use_index: bool = True
    cache_dir: Path | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in _WHOLE_SETTINGS:
            check_count(name, getattr(self, name), 1)
        for name in _RATIO_SETTINGS:
            check_ratio(name, getattr(self, name))
        self._check_times()
        if self.detect_on not in _DETECT_ON:
            raise _refused("detect_on", self.detect_on, " or ".join(map(repr, _DETECT_ON)))
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

    def _check_times(self) -> None:
        if not (_is_finite(self.commit_timeout_s) and self.commit_timeout_s > 0):
            raise _refused(
                "commit_timeout_s", self.commit_timeout_s, "a finite number of seconds above 0"
            )
        for name in _TIME_SETTINGS:
            check_seconds(name, getattr(self, name), TIME_MIN_S)


def check_count(name: str, value: object, least: int) -> None:
    """Refuse a setting that is no count.

    Raises:
        InputRefusedError: it is no whole number from `least`.
    """
    if isinstance(value, bool) or not (isinstance(value, int) and value >= least):
        raise _refused(name, value, f"a whole number from {least}")


def check_ratio(name: str, value: object) -> None:
    """Refuse a setting that is no share of something.

    Raises:
        InputRefusedError: it is no finite number from 0.
    """
    if not (_is_finite(value) and value >= 0):
        raise _refused(name, value, "a finite number from 0")


def check_seconds(name: str, value: object, least: float) -> None:
    """Refuse a setting that is no time which can be waited.

    Raises:
        InputRefusedError: it is no number from `least` that a thread can count.
    """
    if not (_is_finite(value) and least <= value <= TIMEOUT_MAX_S):
        raise _refused(name, value, f"a number of seconds from {least} to {TIMEOUT_MAX_S:g}")


_DETECT_ON = ("host", "device")
_WHOLE_SETTINGS = (
    "thread_count",
    "pack_size_bytes",
    "anchor_file_size_bytes",
    "full_after_chain_count",
)
_TIME_SETTINGS = (
    "activate_timeout_s",
    "activate_max_staleness_s",
    "activate_poll_s",
    "member_silent_s",
)
_RATIO_SETTINGS = ("full_after_chain_ratio", "warn_changed_ratio")


def _is_finite(value: object) -> TypeGuard[int | float]:
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
