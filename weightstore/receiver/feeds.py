"""From the settings of a receiver to the feed of its packs."""

from __future__ import annotations

from weightstore import arguments
from weightstore.clock import Clock
from weightstore.errors import BlobNotFoundError, NotAStoreError
from weightstore.format.format_file import decode_format_file
from weightstore.format.keys import FORMAT_KEY
from weightstore.ids import StoreId
from weightstore.receiver.host_agent.agent_feed import AgentFeed
from weightstore.receiver.host_agent.client import AgentClient
from weightstore.receiver.piece_feed import OwnFeed, PieceFeed
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.version_source import VersionSource


def feed_of(source: VersionSource, settings: ReceiverSettings, clock: Clock) -> PieceFeed:
    """The feed of a receiver; asks nobody yet.

    Args:
        source: The store.
        settings: Say where the host agent listens, if there is one.
        clock: For deadlines and back-off.
    """
    blobs, limits = source.blobs, source.settings.limits
    if settings.agent_socket is None:
        return OwnFeed(blobs, limits)

    def store_id() -> StoreId:
        try:
            data = blobs.get(FORMAT_KEY, max_size_bytes=limits.small_object_size_bytes)
        except BlobNotFoundError as error:
            raise NotAStoreError(f"{blobs.location} has no {FORMAT_KEY}") from error
        return decode_format_file(data, location=blobs.location).store_id

    client = AgentClient(
        arguments.expanded(arguments.path(settings.agent_socket, "agent_socket")),
        store_id,
        clock=clock,
        size_bytes_max=limits.small_object_size_bytes,
        wait_s=settings.agent_wait_s,
        answer_s=settings.agent_answer_s,
    )
    return AgentFeed(blobs, limits, client)
