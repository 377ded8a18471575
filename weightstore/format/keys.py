"""Key grammar: the one place that builds and parses the names of stored objects.

No key is derived from content: what is in flight and what is garbage must be told apart
by the name. Grammar: run `[a-z0-9_.]{1,64}` (no `-`), session and commit 32 hexadecimal
digits, numbers decimal without leading zeros, slots 20 digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from weightstore.ids import Attempt, CommitId, Epoch, MemberId, RunId, SessionId, Slot, VersionId

FORMAT_KEY = "FORMAT"
HEAD_KEY = "head"
LOG_PREFIX = "log/"
MANIFESTS_PREFIX = "manifests/"
PACKS_PREFIX = "packs/"
ANCHORS_PREFIX = "anchors/"
RECEIPTS_PREFIX = "receipts/"
LAYOUTS_PREFIX = "layouts/"
RECEIVERS_PREFIX = "receivers/"
RANKS_PREFIX = "ranks/"
"""Where the ranks of engines talk that have no other place; nothing of the log leads there."""

_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
_LAUNCH = rf"(?P<run>(?=\.*[a-z0-9_])[a-z0-9_.]{{1,64}})-(?P<epoch>{_NUMBER})"
_VERSION = rf"(?P<version>{_NUMBER})"
_ATTEMPT = rf"(?P<attempt>{_NUMBER})"
_HEX = r"[0-9a-f]{32}"
# Printable ASCII without slashes of either kind; neither of the two names that lead elsewhere.
_FILE = r"(?!\.{1,2}\Z)[!-.0-\[\]-~]{1,255}"
_MEMBER_KEY = re.compile(rf"{RECEIVERS_PREFIX}({_HEX})\Z")
_TRAINER_KEYS = (
    re.compile(rf"{MANIFESTS_PREFIX}{_LAUNCH}/{_VERSION}-{_HEX}(?:\.digests|\.schema)?\Z"),
    re.compile(rf"{PACKS_PREFIX}{_LAUNCH}/{_VERSION}-{_ATTEMPT}-{_NUMBER}-{_HEX}\.safetensors\Z"),
    re.compile(rf"{ANCHORS_PREFIX}{_LAUNCH}-{_VERSION}-{_ATTEMPT}/{_FILE}\Z"),
    re.compile(rf"{RECEIPTS_PREFIX}{_LAUNCH}-{_HEX}/{_VERSION}-{_ATTEMPT}/(?:open|{_NUMBER})\Z"),
    re.compile(rf"{LAYOUTS_PREFIX}{_LAUNCH}-{_HEX}\Z"),
)


@dataclass(frozen=True, slots=True)
class TrainerKey:
    """What the name of a trainer's object says about who made it, and for which version."""

    run: RunId
    epoch: Epoch
    version: VersionId | None
    attempt: Attempt | None


def log_key(slot: Slot) -> str:
    """Key of a log record."""
    return f"{LOG_PREFIX}{slot:020d}"


def manifest_key(run: RunId, epoch: Epoch, version: VersionId, commit: CommitId) -> str:
    """Key of a version's manifest."""
    return f"{MANIFESTS_PREFIX}{run}-{epoch}/{version}-{commit}"


def digest_table_key(run: RunId, epoch: Epoch, version: VersionId, commit: CommitId) -> str:
    """Key of the binary table of per-tensor digests, beside the manifest."""
    return manifest_key(run, epoch, version, commit) + ".digests"


def schema_key(run: RunId, epoch: Epoch, version: VersionId, commit: CommitId) -> str:
    """Key of a schema, beside the manifest of the first version that has it."""
    return manifest_key(run, epoch, version, commit) + ".schema"


def pack_key(
    run: RunId, epoch: Epoch, version: VersionId, attempt: Attempt, rank: int, unique: str
) -> str:
    """Key of a pack; `unique` is 32 hexadecimal digits."""
    return f"{PACKS_PREFIX}{run}-{epoch}/{version}-{attempt}-{rank}-{unique}.safetensors"


def trainer_anchor_id(run: RunId, epoch: Epoch, version: VersionId, attempt: Attempt) -> str:
    """Id of an anchor that a trainer or an import writes; collected as a trainer object."""
    return f"{run}-{epoch}-{version}-{attempt}"


def anchor_key(anchor_id: str, file_name: str) -> str:
    """Key of one file of an anchor."""
    return f"{ANCHORS_PREFIX}{anchor_id}/{file_name}"


def receipt_key(
    run: RunId,
    epoch: Epoch,
    session: SessionId,
    version: VersionId,
    attempt: Attempt,
    rank: int | None,
) -> str:
    """Key of a rank's receipt, or with `rank=None` of the attempt's `open` object."""
    name = "open" if rank is None else str(rank)
    return f"{RECEIPTS_PREFIX}{run}-{epoch}-{session}/{version}-{attempt}/{name}"


def layout_key(run: RunId, epoch: Epoch, session: SessionId) -> str:
    """Key of a launch's statement of who owns which boxes."""
    return f"{LAYOUTS_PREFIX}{run}-{epoch}-{session}"


def member_key(member: MemberId) -> str:
    """Key of what one start of a receiver process says about itself."""
    return f"{RECEIVERS_PREFIX}{member}"


def parse_member_key(key: str) -> MemberId | None:
    """Whose object a name under `receivers/` is, or None if it is of no member."""
    found = _MEMBER_KEY.match(key)
    return MemberId(found[1]) if found else None


def parse_trainer_key(key: str) -> TrainerKey | None:
    """What a trainer object's name says, or None if the name is of no such object.

    A name that is not understood is never garbage: the caller leaves it alone.
    """
    for pattern in _TRAINER_KEYS:
        found = pattern.match(key)
        if found:
            parts = found.groupdict()
            return TrainerKey(
                run=RunId(parts["run"]),
                epoch=Epoch(int(parts["epoch"])),
                version=VersionId(int(parts["version"])) if "version" in parts else None,
                attempt=Attempt(int(parts["attempt"])) if "attempt" in parts else None,
            )
    return None
