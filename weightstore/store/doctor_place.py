"""Findings about the directory of a store: disk, permissions, owner, leftovers."""

from __future__ import annotations

from collections.abc import Iterator

from weightstore.arguments import counted
from weightstore.format.keys import (
    FORMAT_KEY,
    HEAD_KEY,
    LOG_PREFIX,
    RANKS_PREFIX,
    RECEIVERS_PREFIX,
)
from weightstore.format.records import Now, OpenClaim
from weightstore.history.members import list_members
from weightstore.history.sweep import SWEPT_PREFIXES
from weightstore.settings import MIB, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.machine import boot_id, host_name
from weightstore.storage.owner_lock import is_owner_dead
from weightstore.storage.place_survey import PlaceSurvey
from weightstore.storage.probe import PROBE_PREFIX
from weightstore.store.findings import Finding, error, note, ok, size_said, some, warning

FREE_SIZE_BYTES_MIN = 16 * MIB
"""Below this not even small objects can be counted on."""
FREE_FILE_COUNT_MIN = 1000
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_KNOWN_NAMES = frozenset(
    key.removesuffix("/")
    for key in (
        FORMAT_KEY,
        HEAD_KEY,
        LOG_PREFIX,
        *SWEPT_PREFIXES,
        RECEIVERS_PREFIX,
        RANKS_PREFIX,
    )
)


def findings_of_place(survey: PlaceSurvey) -> Iterator[Finding]:
    """What the operating system says about the directory itself."""
    kind = survey.file_system or "unknown"
    if survey.file_system in _VOLATILE:
        yield warning(
            "file_system",
            f"the store lies in memory ({kind}): it does not survive a restart",
            "Keep it on a disk: copy the directory while no trainer runs.",
        )
    elif not survey.is_local:
        yield warning(
            "file_system",
            f"the file system is {kind}, which is not known to be a local disk",
            "Keep the store on ext4, XFS or btrfs; others are not tested.",
        )
    else:
        yield ok("file_system", f"a local file system ({kind})")
    yield from _permission_findings(survey)
    if survey.irregular:
        yield warning(
            "files",
            f"links, pipes or devices are in the store: {some(survey.irregular)}",
            "Remove them: a store holds plain files in plain folders.",
        )


def _permission_findings(survey: PlaceSurvey) -> Iterator[Finding]:
    if survey.unreadable:
        yield error(
            "permissions",
            f"this process may not read {some(survey.unreadable)}",
            "Give its user permission to read all files and folders of the store.",
        )
    if survey.is_mounted_read_only:
        yield note("permissions", "mounted read-only: versions can be read, nothing be put")
    elif "." in survey.unwritable:
        yield note("permissions", "this process may only read here")
    elif survey.unwritable:
        yield warning(
            "permissions",
            f"this process may write to the store, but not to {some(survey.unwritable)}",
            "Give the trainer's user permission to write to all folders of the store.",
        )
    elif not survey.unreadable:
        yield ok("permissions", "this process may read and write")


def owner_findings(
    blobs: LocalBlobStore, now: Now, survey: PlaceSurvey, quoted: str
) -> Iterator[Finding]:
    """Who owns the store, and whether that owner lives."""
    claim = now.claim
    if claim is None:
        yield ok("owner", "no trainer owns the store")
        return
    who = f"run {claim.run} on {claim.host}, process {claim.process}"
    if is_alive(claim, survey):
        yield ok("owner", f"{who}, owns the store and lives")
    elif is_owner_dead(blobs, claim.session, claim.boot_id):
        yield warning(
            "owner",
            f"{who}, owned the store and is dead",
            "Start the trainer again: on this machine it takes the store over by itself.",
        )
    elif claim.host == host_name() and claim.boot_id and claim.boot_id != boot_id():
        yield warning(
            "owner",
            f"{who}, owned the store until this machine was started anew",
            f"Take it over with the next put: weightstore put {quoted} ... --take-over",
        )
    else:
        yield note(
            "owner",
            f"{who}, owns the store; whether it lives cannot be told from here",
            f"If it is surely gone: weightstore put {quoted} ... --take-over",
        )


def is_alive(claim: OpenClaim, survey: PlaceSurvey) -> bool:
    """Whether a living process of this machine surely holds the claim."""
    return any(lock.session == claim.session and lock.is_held for lock in survey.locks)


def receiver_findings(blobs: BlobStore, settings: Settings) -> Iterator[Finding]:
    """What receivers say about themselves; an activation passes over what nobody can read."""
    found = list_members(blobs, settings.limits)
    if found.unread:
        yield warning(
            "receivers",
            f"objects that may be receivers could not be read: {some(found.unread)}",
            "Give this process permission to read them; where there are more than "
            f"{settings.limits.member_count}, forget those that are gone.",
        )
    if found.unreadable:
        yield warning(
            "receivers",
            f"objects that are no receiver, or damaged: {some(found.unreadable)}",
            "Delete them: a receiver that lives writes its object again within seconds.",
        )
    if not (found.unread or found.unreadable):
        yield ok("receivers", f"{counted(len(found.members), 'receiver')} listed")


def space_findings(
    survey: PlaceSurvey, newest_size_bytes: int | None, settings: Settings
) -> Iterator[Finding]:
    """Whether the next puts have room."""
    free = survey.free_size_bytes
    wanted = settings.pack_size_bytes + (newest_size_bytes or 0)
    said = f"{size_said(free)} are free, the store has {size_said(survey.size_bytes)}"
    do = "Free space on the disk, or let old versions go: weightstore retire --dry-run"
    if survey.is_mounted_read_only:
        return
    if free < FREE_SIZE_BYTES_MIN:
        yield error("space", said, do)
    elif free < wanted:
        yield warning("space", f"{said}; a pack and a full form need {size_said(wanted)}", do)
    else:
        yield ok("space", said)
    files = survey.free_file_count
    if files is not None and files < FREE_FILE_COUNT_MIN:
        yield warning("space", f"only {files} files can still be made on this file system", do)


def leftover_findings(survey: PlaceSurvey, now: Now, command: str) -> Iterator[Finding]:
    """What processes left behind that were cut."""
    left = [each for each in survey.temporary if not each.is_written]
    if left:
        size_bytes = sum(each.size_bytes for each in left)
        yield note(
            "temporary",
            f"{len(left)} unfinished files of {size_said(size_bytes)}: "
            f"{some([each.path for each in left])}",
            f"They go with the next retire: {command}",
        )
    claimed = now.claim.session if now.claim is not None else None
    locks = [
        f"locks/{lock.session}"
        for lock in survey.locks
        if lock.is_held is False and lock.session != claimed
    ]
    if locks:
        yield note(
            "locks",
            f"{len(locks)} lock files of processes that are gone: {some(locks, at_most=2)}",
            "They are harmless; remove them while no trainer starts.",
        )


def name_findings(blobs: BlobStore, survey: PlaceSurvey) -> Iterator[Finding]:
    """What is in the directory besides a store's objects."""
    probe_count = 0
    foreign: dict[str, None] = {}
    for info in blobs.list(""):
        top = info.key.partition("/")[0]
        if info.key.startswith(PROBE_PREFIX):
            probe_count += 1
        elif top not in _KNOWN_NAMES:
            foreign[top] = None
    if survey.index_size_bytes:
        yield ok(
            "index", f"a local index of {size_said(survey.index_size_bytes)}; it can be rebuilt"
        )
    if probe_count:
        left = counted(probe_count, "object of a cut probe is", "objects of a cut probe are")
        yield note("names", f"{left} under {PROBE_PREFIX}")
    if foreign:
        yield note(
            "names", f"no release puts these here, and none touches them: {some([*foreign])}"
        )
