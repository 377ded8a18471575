"""How an engine of several ranks works; changes no bit of what it writes."""

from __future__ import annotations

from dataclasses import dataclass, field

from weightstore.arguments import check_instance
from weightstore.errors import InputRefusedError
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.settings import MIB, TIME_MIN_S, check_count, check_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """Times and bounds of one rank of an engine, and of the leader in rank 0.

    Attributes:
        stage_timeout_s: How long the leader waits for every rank to attach or to stage.
        answer_timeout_s: How long it waits for every other answer; longer than the ranks'
            `block_timeout_s`. A rank that has not answered then is gone.
        poll_s: Between two looks of the leader while it waits.
        idle_poll_s: Between two looks of a rank while nothing is asked of it. Four of them lie
            in each pause.
        message_size_bytes: Of one answer; a longer one is refused.
        failure_count: Looks one after the other that the channel fails before a rank's loop
            ends with that error.
        receiver: Of the rank's own receiver.

    Raises:
        InputRefusedError: a number is out of bounds.
    """

    stage_timeout_s: float = 600.0
    answer_timeout_s: float = 60.0
    poll_s: float = 0.002
    idle_poll_s: float = 0.005
    message_size_bytes: int = 256 * MIB
    failure_count: int = 1000
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)

    def __post_init__(self) -> None:
        check_instance(self.receiver, ReceiverSettings, "receiver", "Give a ReceiverSettings.")
        for name in ("stage_timeout_s", "answer_timeout_s", "poll_s", "idle_poll_s"):
            check_seconds(name, getattr(self, name), TIME_MIN_S)
        for name in ("message_size_bytes", "failure_count"):
            check_count(name, getattr(self, name), 1)
        if self.answer_timeout_s <= self.receiver.block_timeout_s:
            raise InputRefusedError(
                f"answer_timeout_s is {self.answer_timeout_s}, not above the receiver's "
                f"block_timeout_s of {self.receiver.block_timeout_s}",
                do="A rank must not count as gone while it waits for a serving block.",
                facts={"setting": "answer_timeout_s"},
            )
