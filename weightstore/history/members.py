"""The objects that receivers write about themselves: put, removed, listed within bounds.

They carry liveness and no truth. What is no member is named and passed over: it never stops an
activation, and nothing beyond its bound is read. What may be a member and was not read is told
apart, for those who must have heard all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from weightstore.clock import Clock
from weightstore.errors import BlobNotFoundError, CorruptError, CorruptObjectError, UnavailableError
from weightstore.format.keys import RECEIVERS_PREFIX, member_key, parse_member_key
from weightstore.format.member import Member, decode_member, encode_member
from weightstore.ids import MemberId
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobInfo, BlobStore


@dataclass(frozen=True, slots=True)
class MemberList:
    """What is under `receivers/`.

    Attributes:
        members: Sorted by id.
        unreadable: Keys of objects that are no member, or damaged.
        unread: Keys of objects that the storage did not give, the first one beyond the bound, and
            the folder if it cannot be listed: what nobody has looked at may be a member.
    """

    members: tuple[Member, ...]
    unreadable: tuple[str, ...]
    unread: tuple[str, ...] = ()


class SilenceWatch:
    """Notices members that have stopped writing, by this process's own clock.

    Kept from one activation to the next, so that a receiver that died is waited for once.
    Safe from several threads and after a fork: it keeps no lock, and two looks at once may
    only forget what one of them saw. Holds as much as one listing.

    Args:
        clock: Measures how long a counter stands still.
        silent_s: After so long a member counts as silent.
    """

    def __init__(self, clock: Clock, silent_s: float) -> None:
        self._clock = clock
        self._silent_s = silent_s
        self._seen: dict[MemberId, tuple[int, float]] = {}

    def silent(self, members: Iterable[Member]) -> frozenset[MemberId]:
        """Those of a listing whose counter has not risen for too long."""
        now_s = self._clock.monotonic_s()
        before = self._seen
        seen = {each.member_id: _seen(each, before, now_s) for each in members}
        self._seen = seen
        return frozenset(
            member_id
            for member_id, (_, since_s) in seen.items()
            if now_s - since_s >= self._silent_s
        )


def put_member(blobs: BlobStore, member: Member) -> None:
    """Say what a receiver is now. The one process that it is about calls this, one at a time.

    After a crash: the old object or the new one; after power loss any bytes or none.
    """
    blobs.overwrite(member_key(member.member_id), encode_member(member))


def remove_member(blobs: BlobStore, member_id: MemberId) -> None:
    """Take a member off the list. One that lives comes back with its next write.

    After a crash: it is there or not.
    """
    blobs.delete(member_key(member_id))


def list_members(blobs: BlobStore, limits: Limits) -> MemberList:
    """Every member that can be read; at most `limits.member_count` objects are looked at.

    Raises:
        UnavailableError: the storage does not list.
    """
    members: list[Member] = []
    unreadable: list[str] = []
    unread: list[str] = []
    try:
        listed = blobs.list(RECEIVERS_PREFIX)
        for info in islice(listed, limits.member_count):
            try:
                members += _read(blobs, info, limits)
            except CorruptError:
                unreadable.append(info.key)
            except UnavailableError:
                unread.append(info.key)
        unread += (info.key for info in islice(listed, 1))
    except CorruptError:
        # Something else stands where the folder should be: nobody knows who is listed.
        unread.append(RECEIVERS_PREFIX)
    return MemberList(
        tuple(sorted(members, key=lambda each: each.member_id)),
        tuple(sorted(unreadable)),
        tuple(sorted(unread)),
    )


def _read(blobs: BlobStore, info: BlobInfo, limits: Limits) -> Iterator[Member]:
    """The member of a key; nothing if it has left since."""
    member_id = parse_member_key(info.key)
    if member_id is None:
        raise CorruptObjectError(f"{info.key} is the key of no member")
    try:
        data = blobs.get(info.key, max_size_bytes=limits.member_size_bytes)
    except BlobNotFoundError:
        return
    member = decode_member(data, what=info.key)
    if member.member_id != member_id:
        raise CorruptObjectError(f"{info.key} says that it is member {member.member_id}")
    yield member


def _seen(
    member: Member, before: dict[MemberId, tuple[int, float]], now_s: float
) -> tuple[int, float]:
    """The highest counter of a member so far, and since when."""
    known = before.get(member.member_id)
    return (member.counter, now_s) if known is None or member.counter > known[0] else known
