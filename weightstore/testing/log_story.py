"""The next valid record of every kind, at the end of a log that exists only as its prefix.

A test takes a valid record, changes one field with `model_copy`, and sees what the rules
say; nothing is stored anywhere.
"""

from __future__ import annotations

import hashlib
from typing import Any

from weightstore.format.records import (
    ActivateRecord,
    AltRecord,
    Base,
    ClaimRecord,
    FormatRecord,
    InitRecord,
    IntentRecord,
    Record,
    RetireRecord,
    TagRecord,
    VersionRecord,
    VoidAttempt,
    VoidIntent,
    VoidRecord,
    encode_record,
)
from weightstore.format.rules import EMPTY_PREFIX, Prefix, Valid, accept, next_version, validate
from weightstore.ids import (
    CommitId,
    RunId,
    SessionId,
    Sha256,
    Step,
    StoreId,
    TagName,
    VersionId,
)

RUN = RunId("grpo")
SESSION = SessionId("5" * 32)
ANCHOR_ID = "c-" + "a" * 32


def sha_of(text: str) -> Sha256:
    """A hash that tells contents of a test apart."""
    return Sha256(hashlib.sha256(text.encode()).hexdigest())


class LogStory:
    """A log by its prefix. Each method but `put` builds the record that would be valid next."""

    def __init__(self, prefix: Prefix = EMPTY_PREFIX) -> None:
        self.prefix = prefix

    def put(self, *records: Record) -> LogStory:
        """The story with records that were built for its end, one after the other."""
        for record in records:
            verdict = validate(self.prefix, record)
            assert isinstance(verdict, Valid), verdict
            sha256 = Sha256(hashlib.sha256(encode_record(record)).hexdigest())
            self.prefix = accept(self.prefix, record, sha256)
        return self

    def begin(self) -> LogStory:
        """The story with its `init` record."""
        return self.put(self.init())

    def claimed(self) -> LogStory:
        """The story with an open claim."""
        return self.put(self.opening())

    def published(self, count: int = 1) -> LogStory:
        """The story with more versions."""
        for _ in range(count):
            self.put(self.version())
        return self

    def init(self) -> InitRecord:
        """The first record."""
        return InitRecord(
            **self._common(), run=None, store_id=StoreId("0" * 32), format=1, features=()
        )

    def opening(self) -> ClaimRecord:
        """A claim of `RUN` that opens, over an open one by force."""
        now = self.prefix.now
        own = now.newest is not None and now.newest.run == RUN
        return self._claim().model_copy(
            update={
                "epoch": now.epoch + 1,
                "take_over": now.claim is not None,
                "last_step": now.newest.step if now.newest is not None and own else None,
            }
        )

    def closing(self) -> ClaimRecord:
        """A claim of `RUN` that closes the open one."""
        claim = self.prefix.now.claim
        last_step = claim.last_step if claim is not None else None
        return self._claim().model_copy(update={"action": "close", "last_step": last_step})

    def version(self) -> VersionRecord:
        """The next version, a delta where there is a base."""
        now = self.prefix.now
        number = next_version(now)
        last_step = now.claim.last_step if now.claim is not None else None
        base = None
        if now.newest is not None:
            base = Base(version=now.newest.version, digest=now.newest.digest)
        return VersionRecord(
            **self._common(),
            run=RUN,
            version=number,
            attempt=now.lowest_open_attempt,
            step=Step(0 if last_step is None else last_step + 1),
            base=base,
            schema_id=sha_of("schema"),
            digest=sha_of(f"version {number}"),
            manifest_size_bytes=100,
            manifest_sha256=sha_of(f"manifest {number}"),
            world_size=1,
        )

    def intent(self) -> IntentRecord:
        """An intent for the newest version."""
        return IntentRecord(**self._common(), run=None, version=self._newest(), anchor_id=ANCHOR_ID)

    def alt(self) -> AltRecord:
        """The alt of `intent`."""
        return AltRecord(
            **self._common(),
            run=None,
            version=self._newest(),
            form="full",
            anchor_id=ANCHOR_ID,
            manifest_size_bytes=100,
            manifest_sha256=sha_of("alt"),
        )

    def void_attempt(self) -> VoidRecord:
        """The end of the open attempt."""
        now = self.prefix.now
        what = VoidAttempt(
            version=next_version(now),
            attempt=now.lowest_open_attempt,
            attempt_commit_id=CommitId("a" * 32),
        )
        return VoidRecord(**self._common(), run=RUN, what=what)

    def void_intent(self) -> VoidRecord:
        """The end of `intent`."""
        return VoidRecord(**self._common(), run=None, what=VoidIntent(anchor_id=ANCHOR_ID))

    def tag(self) -> TagRecord:
        """A name for the newest version."""
        return TagRecord(
            **self._common(), run=None, name=TagName("best"), version=self._newest(), owner="me"
        )

    def activate(self) -> ActivateRecord:
        """Activation of the newest version."""
        return ActivateRecord(
            **self._common(),
            run=None,
            version=self._newest(),
            previous_activate_slot=self.prefix.now.last_slots.get("activate"),
            members_sha256=sha_of("members"),
            listed_count=2,
            staged_count=1,
        )

    def retire(self) -> RetireRecord:
        """The kept set as it is."""
        return RetireRecord(**self._common(), run=None, kept=self.prefix.now.kept)

    def format(self) -> FormatRecord:
        """One more feature."""
        return FormatRecord(**self._common(), run=None, format=1, features=("future",))

    def _claim(self) -> ClaimRecord:
        return ClaimRecord(
            **self._common(),
            run=RUN,
            action="open",
            take_over=False,
            rewind_to=None,
            last_step=None,
            host="node-1",
            process=7,
            boot_id="boot",
        )

    def _common(self) -> dict[str, Any]:
        return {
            "slot": self.prefix.next_slot,
            "parent_sha256": self.prefix.tail_sha256,
            "epoch": self.prefix.now.epoch,
            "session": SESSION,
            "commit_id": CommitId(f"{self.prefix.next_slot:032x}"),
            "written_unix_ms": 0,
            "now": self.prefix.now,
        }

    def _newest(self) -> VersionId:
        newest = self.prefix.now.newest
        return newest.version if newest is not None else VersionId(1)
