"""From an open store to the host agent of this machine, or to what one has done."""

from __future__ import annotations

from os import PathLike

from weightstore import arguments
from weightstore.errors import StorageFailedError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.ids import StoreId
from weightstore.receiver.host_agent.agent_settings import HostAgentSettings
from weightstore.receiver.host_agent.client import AgentClient, NoAgentError
from weightstore.receiver.host_agent.messages import AgentStats
from weightstore.receiver.host_agent.server import HostAgent
from weightstore.receiver.host_agent.socket_place import check_socket_path
from weightstore.settings import Settings
from weightstore.store.reading import Components

_STATS_WAIT_S = 5.0


def host_agent(
    components: Components,
    store_id: StoreId,
    settings: Settings,
    socket: str | PathLike[str],
    memory_bytes: int | None,
) -> HostAgent:
    """A host agent that does not serve yet; enter it.

    Args:
        components: Of the store.
        store_id: Of the store.
        settings: Of the store's handle.
        socket: Where it will listen.
        memory_bytes: Of what it holds; None takes the default.

    Raises:
        InputRefusedError: an argument is of a wrong type or value.
    """
    place = arguments.expanded(arguments.path(socket, "socket"))
    check_socket_path(place)
    bounds = HostAgentSettings()
    if memory_bytes is not None:
        size = arguments.whole(memory_bytes, "memory_bytes", least=1, most=MAX_INTEGER)
        bounds = HostAgentSettings(memory_bytes=size)
    return HostAgent(
        components.blobs,
        store_id,
        place,
        agent_settings=bounds,
        settings=settings,
        clock=components.clock,
        entropy=components.entropy,
    )


def agent_stats(
    components: Components, store_id: StoreId, settings: Settings, socket: str | PathLike[str]
) -> AgentStats:
    """What the agent that listens at a path has done.

    Raises:
        InputRefusedError: the path is none.
        StorageFailedError: no agent of this store listens there.
    """
    place = arguments.expanded(arguments.path(socket, "socket"))
    client = AgentClient(
        place,
        lambda: store_id,
        clock=components.clock,
        size_bytes_max=settings.limits.small_object_size_bytes,
        wait_s=_STATS_WAIT_S,
        answer_s=_STATS_WAIT_S,
    )
    try:
        return client.stats()
    except NoAgentError as error:
        raise StorageFailedError(
            str(error),
            do="Start one with `weightstore host`, or give the path where one listens.",
            facts={"path": str(place)},
        ) from error
    finally:
        client.close()
