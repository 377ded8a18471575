"""How one receiver works; changes no bit of what it writes."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import get_args

from weightstore import arguments
from weightstore.errors import InputRefusedError
from weightstore.receiver.serve_policy import Mode, ModeName, ServePolicy
from weightstore.settings import MIB, TIME_MIN_S, check_count, check_ratio, check_seconds

_COUNT_SETTINGS = {"launch_size_bytes": 1, "scan_refit_count": 1, "max_lag": 0}
_TIME_SETTINGS = {
    "block_timeout_s": 0.0,
    "max_staleness_s": 0.0,
    "poll_s": TIME_MIN_S,
    "retry_max_s": TIME_MIN_S,
    "heartbeat_s": 0.0,
    "stage_hold_s": 0.0,
    "agent_wait_s": TIME_MIN_S,
    "agent_answer_s": TIME_MIN_S,
}
"""From where on each is a number that can work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceiverSettings:
    """Bounds and times of a receiver.

    Attributes:
        pool_ratio: Share of all elements for which there is room to stage a change of them.
        pool_size_bytes: Room in bytes; None takes `pool_ratio`.
        launch_size_bytes: Bytes of a change that are written by one launch, about.
        block_timeout_s: How long a change waits for open serving blocks. One that is still
            open then raises when it ends.
        scan_refit_count: After so many refits every element was looked at by the rolling scan.
        mode: By what it serves: `controller`, whatever is wholly there; `active`, the version
            that the newest activation names; `latest`, the newest version.
        max_lag: In the mode `latest`, versions that it may be behind the newest and still serve.
        max_staleness_s: In the mode `active`, how long one look at the log is relied on: so long
            after an activation nobody serves another version.
        poll_s: A follower looks at the log so often.
        retry_max_s: After failures a follower waits longer each time, but not above this.
        heartbeat_s: A follower writes its member object at least so often.
        stage_hold_s: In the mode `active`, how long a version that was staged ahead is kept for
            its activation before a newer one takes its place.
        name: For people, in lists of receivers; empty takes host and process.
        agent_socket: Where the host agent of this machine listens (`weightstore host`), which
            reads and decodes packs for all ranks here; None does both in this process.
        agent_wait_s: How long one pack of the agent is waited for before it is read and
            decoded in this process.
        agent_answer_s: How long each of its other answers is waited for, which take it no work,
            and how much longer than that a pack. An agent that hangs is then left alone for a
            time that doubles.

    Raises:
        InputRefusedError: a setting is out of bounds or of a wrong type.
    """

    pool_ratio: float = 0.03
    pool_size_bytes: int | None = None
    launch_size_bytes: int = 64 * MIB
    block_timeout_s: float = 30.0
    scan_refit_count: int = 8
    mode: ModeName = "controller"
    max_lag: int = 0
    max_staleness_s: float = 5.0
    poll_s: float = 0.5
    retry_max_s: float = 5.0
    heartbeat_s: float = 1.5
    stage_hold_s: float = 10.0
    name: str = ""
    agent_socket: str | PathLike[str] | None = None
    agent_wait_s: float = 10.0
    agent_answer_s: float = 2.0

    def __post_init__(self) -> None:
        check_ratio("pool_ratio", self.pool_ratio)
        if self.pool_size_bytes is not None:
            check_count("pool_size_bytes", self.pool_size_bytes, 0)
        for name, least_count in _COUNT_SETTINGS.items():
            check_count(name, getattr(self, name), least_count)
        for name, least_s in _TIME_SETTINGS.items():
            check_seconds(name, getattr(self, name), least_s)
        arguments.choice(self.mode, "mode", get_args(ModeName))
        arguments.text(self.name, "name")
        if self.agent_socket is not None:
            arguments.path(self.agent_socket, "agent_socket")
        if self.policy.mode is Mode.ACTIVE and self.poll_s >= self.max_staleness_s:
            raise InputRefusedError(
                f"in the mode active poll_s ({self.poll_s}) must be below max_staleness_s "
                f"({self.max_staleness_s}): the receiver would stop serving between two looks",
                do="Give a smaller poll_s or a larger max_staleness_s.",
                facts={"setting": "poll_s"},
            )

    @property
    def policy(self) -> ServePolicy:
        """What the receiver may serve."""
        return ServePolicy(Mode(self.mode), self.max_lag, self.max_staleness_s)
