"""The part of the facade for engines: receivers, ranks, and directories that are followed."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from weightstore import arguments
from weightstore.format.keys import RANKS_PREFIX
from weightstore.ids import parse_engine_name
from weightstore.layout.boxes import Box
from weightstore.receiver.attach import LiveTargets, attach_receiver
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.host_files.opening import open_host_files
from weightstore.receiver.ranks.attach import attach_rank
from weightstore.receiver.ranks.channel import BlobChannel, RankChannel
from weightstore.receiver.ranks.engine_rank import EngineRank
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource
from weightstore.store.reading import StoreReader


class EngineReader(StoreReader):
    """Reading into what engines compute with or load; needs no claim."""

    def receiver(
        self,
        targets: LiveTargets,
        *,
        boxes: Mapping[str, Box] | None = None,
        settings: ReceiverSettings | None = None,
    ) -> Receiver:
        """Attach to live weights, to bring version after version into them in place.

        The receiver is empty until its first `refit`, `recover` or `adopt`; nothing is written
        before.

        Args:
            targets: Name to live tensor: the parameters and buffers themselves, such as
                `dict(model.named_parameters())`; or name to bits in host memory.
            boxes: Name to the part of the tensor that the live one is, in units; a box without
                units says that nothing of a tensor lives here.
            settings: Pool, launches and times.

        Raises:
            InputRefusedError: an argument is of a wrong type, or an array cannot be written.
            VersionNotFoundError: the store holds no version yet.
            SchemaMismatchError: the targets do not fit the newest version; all differences
                are listed.
        """
        self._refuse_closed()
        source = VersionSource(self._blobs, self._log, self._settings)
        return attach_receiver(
            source,
            targets,
            boxes=boxes,
            settings=settings,
            clock=self._components.clock,
            entropy=self._components.entropy,
        )

    def host_files(
        self, directory: str | PathLike[str], *, settings: ReceiverSettings | None = None
    ) -> HostFiles:
        """Keep a checkpoint directory at a version in place, for an engine that reloads files.

        What an earlier process has left of it is healed first. Its `refit` writes versions.

        Args:
            directory: What the engine is given; nothing yet, or what this has made before.
            settings: Room to stage a change, and the rolling scan.

        Raises:
            InputRefusedError: something else has the name, or it would lie in the store.
            FolderBusyError: another process follows into it.
        """
        self._refuse_closed()
        source = VersionSource(self._blobs, self._log, self._settings)
        parts = self._components
        return open_host_files(
            source,
            self.store_id,
            directory,
            settings=settings,
            clock=parts.clock,
            entropy=parts.entropy,
        )

    def engine(
        self,
        targets: LiveTargets,
        *,
        rank: int,
        rank_count: int,
        channel: str | PathLike[str] | RankChannel | StoreReader,
        boxes: Mapping[str, Box] | None = None,
        name: str = "engine",
        settings: EngineSettings | None = None,
    ) -> EngineRank:
        """Attach one rank of an engine to its live weights.

        Rank 0 leads: its `.leader.refit()` brings a version to every rank at once. The others
        call `serve_rounds`. No rank serves a version before all have applied it.

        After a crash: the channel's directory is there or not.

        Args:
            targets: Name to live tensor of this rank, as of `receiver`.
            rank: From 0.
            rank_count: Ranks of the engine; each is a process, or a thread of its own.
            channel: Where the ranks talk: a directory that they all see, best in memory such
                as under `/dev/shm`; or a store, where they are on several machines and may
                write there. Each engine has one of its own; in a store, by its name.
            boxes: Name to the part of the tensor that lives on this rank, in units. Every
                element must live on one rank, or in equal boxes on several.
            name: Of the engine, as of a run; tells apart the engines that talk over a store.
            settings: Times, bounds, and the settings of the rank's receiver.

        Raises:
            InputRefusedError: an argument is of a wrong type or value, or an array cannot be
                written.
            NameRefusedError: the name breaks the grammar of runs.
            VersionNotFoundError: the store holds no version yet.
            SchemaMismatchError: the targets do not fit the newest version; all differences
                are listed.
        """
        self._refuse_closed()
        prefix = f"{RANKS_PREFIX}{parse_engine_name(arguments.text(name, 'name'))}/"
        place = BlobChannel(channel._blobs, prefix) if isinstance(channel, StoreReader) else channel  # noqa: SLF001 -- of the same class
        return attach_rank(
            VersionSource(self._blobs, self._log, self._settings),
            targets,
            boxes=boxes,
            rank=rank,
            rank_count=rank_count,
            channel=place,
            settings=settings,
            clock=self._components.clock,
            entropy=self._components.entropy,
        )
