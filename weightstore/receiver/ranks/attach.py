"""From what a caller holds to one rank of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path

from weightstore import arguments
from weightstore.clock import Clock, Entropy
from weightstore.errors import InputRefusedError
from weightstore.layout.boxes import Box
from weightstore.receiver.attach import LiveTargets, attach_receiver
from weightstore.receiver.membership import Membership, Standing
from weightstore.receiver.ranks.channel import BlobChannel, MemoryChannel, RankChannel
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.leader import Leader
from weightstore.receiver.ranks.messages import RANK_COUNT_MAX
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.receiver.ranks.roll_call import RollCall
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.local import LocalBlobStore

ChannelPlace = str | PathLike[str] | RankChannel
"""A directory that all ranks of one engine see, and no other engine; or a channel."""


def attach_rank(
    source: VersionSource,
    targets: LiveTargets,
    *,
    boxes: Mapping[str, Box] | None,
    rank: int,
    rank_count: int,
    channel: ChannelPlace,
    settings: EngineSettings | None,
    clock: Clock,
    entropy: Entropy,
) -> EngineRank:
    """Make one rank of an engine. Writes no weight.

    After a crash: the channel's directory is there or not.

    Args:
        source: The store.
        targets: Name to live tensor of this rank.
        boxes: Name to the part of the tensor that lives here; without units: nothing of it.
        rank: From 0.
        rank_count: Ranks of the engine.
        channel: To the others.
        settings: Times and bounds.
        clock: For waits.
        entropy: Names this process and, in rank 0, engines.

    Raises:
        InputRefusedError: an argument is of a wrong type, or arrays cannot be written.
        VersionNotFoundError: the store holds no version yet.
        SchemaMismatchError: the targets do not fit the newest version; everything is listed.
    """
    rank_count = arguments.whole(rank_count, "rank_count", least=1, most=RANK_COUNT_MAX)
    rank = arguments.whole(rank, "rank", least=0, most=rank_count - 1)
    used = EngineSettings() if settings is None else settings
    arguments.check_instance(used, EngineSettings, "settings", "Give an EngineSettings.")
    receiver = attach_receiver(
        source, targets, boxes=boxes, settings=used.receiver, clock=clock, entropy=entropy
    )
    return make_rank(
        receiver,
        source,
        _channel(channel, entropy),
        rank=rank,
        rank_count=rank_count,
        settings=used,
        clock=clock,
        entropy=entropy,
    )


def make_rank(
    receiver: Receiver,
    source: VersionSource,
    channel: RankChannel,
    *,
    rank: int,
    rank_count: int,
    settings: EngineSettings,
    clock: Clock,
    entropy: Entropy,
) -> EngineRank:
    """One rank of an engine around the receiver of its weights; rank 0 gets the leader."""
    leader = None
    if rank == 0:
        roll_call = RollCall(channel, rank_count, clock=clock, entropy=entropy, settings=settings)
        leader = Leader(roll_call, source, clock=clock, settings=settings)

    def new_membership(stand: Callable[[], Standing]) -> Membership:
        return Membership(
            source.blobs,
            clock,
            entropy,
            stand,
            name=settings.receiver.name,
            heartbeat_s=settings.receiver.heartbeat_s,
            rank_count=rank_count,
        )

    return EngineRank(
        receiver,
        RankWork(receiver.exclusive, source, clock, receiver.reporter, receiver.poll),
        channel,
        rank=rank,
        rank_count=rank_count,
        process_id=entropy.hex128(),
        clock=clock,
        settings=settings,
        leader=leader,
        new_membership=new_membership,
    )


def _channel(given: ChannelPlace, entropy: Entropy) -> RankChannel:
    if isinstance(given, BlobChannel | MemoryChannel):
        return given
    if isinstance(given, str | PathLike):
        place = arguments.path_text(given, "channel")
        return BlobChannel(LocalBlobStore(Path(place), create=True, entropy=entropy))
    if all(callable(getattr(given, name, None)) for name in ("put", "get", "keys", "delete")):
        return given
    raise InputRefusedError(
        f"channel is {arguments.shown(given)}, neither a directory nor a channel",
        do="Give a directory that all ranks of this engine see, such as one in /dev/shm.",
    )
