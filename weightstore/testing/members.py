"""Member objects as receivers would write them, for whoever waits for receivers."""

from __future__ import annotations

from weightstore.format.member import Member, MemberVersion
from weightstore.format.records import VersionRecord
from weightstore.history.members import put_member
from weightstore.ids import MemberId, Slot
from weightstore.storage.blobs import BlobStore


def member_id(number: int) -> MemberId:
    """The id of a numbered member."""
    return MemberId(f"{number:032x}")


def version_of(record: VersionRecord) -> MemberVersion:
    """A version as a member says that it has it."""
    return MemberVersion(version=record.version, digest=record.digest)


def empty_member(number: int = 1) -> Member:
    """A receiver in the mode `active` that has just started."""
    return Member(
        member_id=member_id(number),
        name=f"rollout-{number}",
        host="node",
        process=100 + number,
        boot_id="b" * 32,
        mode="active",
        state="empty",
        live=None,
        staged=None,
        activate_slot=None,
        applied_slot=None,
        counter=0,
        written_unix_ms=1_700_000_000_000,
    )


class MemberActor:
    """A receiver that says what it is told to say, and has no weights.

    Args:
        blobs: The store.
        number: Of its id and name.
    """

    def __init__(self, blobs: BlobStore, number: int = 1) -> None:
        self._blobs = blobs
        self.member = empty_member(number)

    def say(self, **changes: object) -> Member:
        """Write the object anew, with its counter raised."""
        data = self.member.model_dump() | {"counter": self.member.counter + 1} | changes
        self.member = Member.model_validate(data)
        put_member(self._blobs, self.member)
        return self.member

    def stage(self, record: VersionRecord) -> Member:
        """Say that a version is staged."""
        return self.say(staged=version_of(record))

    def withdraw(self) -> Member:
        """Say that nothing is staged."""
        return self.say(staged=None)

    def apply(self, record: VersionRecord, slot: int) -> Member:
        """Say that a version is served by the activation at a slot."""
        return self.say(
            state="whole",
            live=version_of(record),
            staged=None,
            activate_slot=Slot(slot),
            applied_slot=Slot(slot),
        )
