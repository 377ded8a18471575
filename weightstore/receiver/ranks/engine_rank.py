"""`EngineRank`: one rank of an engine. It does what the leader asks, and serves its own weights.

A rank follows the newest engine that a leader has begun. It closes its gate when it sees a newer
one, and whatever was asked in the name of an older one is never done: a rank that was away for
any time changes nothing. It answers for its process alone: a process that takes the place of
another waits for the next engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from weightstore.clock import Clock
from weightstore.errors import (
    BlobExistsError,
    CorruptObjectError,
    InputRefusedError,
    StoreClosedError,
    UnavailableError,
    UnknownOutcomeError,
)
from weightstore.ids import VersionId
from weightstore.receiver.follower import Follower
from weightstore.receiver.live_check import LiveCheck
from weightstore.receiver.live_state import Dirty, Live, Ready
from weightstore.receiver.live_weights import Callback
from weightstore.receiver.membership import Membership, Standing
from weightstore.receiver.ranks.channel import (
    RankChannel,
    answer_key,
    engine_key,
    given_up_key,
    lost_key,
    order_key,
)
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.followed import FollowedEngine
from weightstore.receiver.ranks.leader import Leader
from weightstore.receiver.ranks.looking import Stop, looking
from weightstore.receiver.ranks.messages import (
    NO_TABLES,
    Answer,
    Engine,
    Order,
    Part,
    counts_of,
    decode,
    encode,
    failure_of,
    ref_of,
    version_text,
)
from weightstore.receiver.ranks.newest import newest_generation
from weightstore.receiver.ranks.rank_work import RankWork
from weightstore.receiver.ranks.stepping import OWN_ENGINE, stepping
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_status import ReceiverStatus, ReportCallback
from weightstore.receiver.serve_policy import Mode, TailView
from weightstore.storage import machine


class EngineRank:
    """One rank of an engine. `step` and `serve_rounds` by one thread; serve from any.

    Args:
        receiver: Of the rank's own weights.
        work: On the same weights.
        channel: To the other ranks.
        rank: From 0; rank 0 has the leader.
        rank_count: Ranks of the engine.
        process_id: Nonce of this process's start.
        clock: For waits.
        settings: Times and bounds.
        leader: In rank 0.
        new_membership: Makes what tells others of the engine.
    """

    def __init__(
        self,
        receiver: Receiver,
        work: RankWork,
        channel: RankChannel,
        *,
        rank: int,
        rank_count: int,
        process_id: str,
        clock: Clock,
        settings: EngineSettings,
        leader: Leader | None,
        new_membership: Callable[[Callable[[], Standing]], Membership],
    ) -> None:
        self.rank = rank
        self.rank_count = rank_count
        self._receiver = receiver
        self._work = work
        self._channel = channel
        self._process_id = process_id
        self._clock = clock
        self._settings = settings
        self._leader = leader
        self._new_membership = new_membership
        self._followed: FollowedEngine | None = None
        self._generation = 0
        self._engine: Engine | None = None
        self._turn = 0
        # By part, the turn that left something here that may be given up.
        self._kept: dict[Part, int] = {}
        self._answer: tuple[str, bytes] | None = None
        self._failed_count = 0
        self._own_process = machine.process_id()
        if leader is not None:
            leader.own_step = self.step

    @property
    def leader(self) -> Leader:
        """Decides for all ranks; in rank 0.

        Raises:
            InputRefusedError: this is another rank.
        """
        if self._leader is None:
            raise InputRefusedError(
                f"rank {self.rank} does not lead", do="Ask rank 0, and call `serve_rounds` here."
            )
        return self._leader

    @property
    def generation(self) -> int:
        """Number of the engine that this rank follows; 0 before the first."""
        return self._generation

    @property
    def engine_id(self) -> str | None:
        """Of the engine that this rank follows; None before the first."""
        return self._engine.engine_id if self._engine else None

    @property
    def live(self) -> Live:
        """What this rank's memory holds."""
        return self._receiver.live

    @property
    def version(self) -> VersionId | None:
        """The version that is wholly in this rank's memory, served or not; None if none is."""
        return self._receiver.version

    def serving(
        self,
        *,
        exact: int | None = None,
        min: int | None = None,  # noqa: A002 -- the word of requests that ask for it
        max_lag: int | None = None,
    ) -> AbstractContextManager[VersionId]:
        """Compute with this rank's weights for one engine step; as `Receiver.serving`.

        Raises:
            NotReadyError: also while any other rank has not applied what this one has.
        """
        return self._receiver.serving(exact=exact, min=min, max_lag=max_lag)

    def status(self) -> ReceiverStatus:
        """What is known of this rank now, with the sums of its own part of each refit.

        Waits for nothing. What a refit did on all ranks is in the leader's report.
        """
        return self._receiver.status()

    def on_report(self, callback: ReportCallback) -> None:
        """Call a function with the report of this rank's part of each refit, done or failed.

        It is told after the rank has answered, in the thread that calls `step`. The pause is from
        the closing of this rank's gate to its opening, or to the failure. A refit that was given
        up after this gate was closed is a failure here too (`RankFailedError`), told when the rank
        is asked for the next. What the function raises is logged and changes nothing; it must not
        ask the engine for anything.
        """
        self._receiver.on_report(callback)

    def on_applied(self, callback: Callback) -> None:
        """Call a function after each change of version, when every rank has applied it."""
        self._receiver.on_applied(callback)

    def invalidate(self, reason: str = "somebody else wrote the weights") -> None:
        """Give up what is known of this rank's weights; the next refit writes them whole."""
        self._receiver.invalidate(reason)

    def verify(self, *, tensors: Sequence[str] | None = None) -> LiveCheck:
        """Look at every element of this rank, or of some tensors; as `Receiver.verify`.

        Raises:
            NotReadyError, InputRefusedError, LiveWeightsError: as `Receiver.verify`.
        """
        return self._receiver.verify(tensors=tensors)

    def follow(self) -> Follower:
        """Follow the log for all ranks: as a context in the background, or `follow().run()`.

        As of `Receiver.follow`, in rank 0; the other ranks' `serve_rounds` look at the log
        for their own gates alone. Others see the engine as one receiver.

        Raises:
            InputRefusedError: this is another rank, or the engine is followed already.
            StoreClosedError: this is a forked child; the engine is its parent's.
        """
        self._refuse_fork()
        if self._followed is None:
            self._followed = FollowedEngine(self.leader, self._receiver)
        if self._followed.membership is not None:
            raise InputRefusedError(
                "this engine is followed already", do="Close its follower first."
            )
        membership = self._new_membership(self._followed.standing)
        return self._followed.follow(membership, self._clock)

    def poll(self) -> TailView:
        """Look at the tail of the log, for the gate of a mode that needs it.

        Raises:
            UnavailableError, CorruptLogError: it cannot be read; earlier looks still count.
        """
        return self._receiver.poll()

    def step(self) -> bool:
        """Do what is asked next.

        After a crash: as before it, or after it; the leader notices that the process is gone.

        Returns:
            Whether there was anything.

        Raises:
            UnavailableError, UnknownOutcomeError: of the channel; call it again.
            CorruptObjectError: somebody else writes to the channel.
            StoreClosedError: this is a forked child; the rank is its parent's.
        """
        self._refuse_fork()
        with stepping(self):
            has_worked = self._step()
            # After the answer, for which the leader waits.
            self._work.tell()
        return has_worked

    def _step(self) -> bool:
        newest = newest_generation(self._channel, self._generation)
        if newest != self._generation:
            self._enter(newest)
            return True
        if self._answer is not None:
            self._put_answer()
            return True
        if self._engine is None:
            return False
        key = order_key(self._generation, self._turn + 1)
        data = self._channel.get(key, max_size_bytes=self._settings.message_size_bytes)
        if data is None:
            return self._tell_given_up()
        self._follow(self._engine, decode(Order, data, what=key))
        return True

    def serve_rounds(self, stop: Stop) -> None:
        """Do what the leader asks until told to stop; the gate stays as it is then.

        In a mode that goes by the log, another thread looks at its tail meanwhile.

        Raises:
            UnavailableError, UnknownOutcomeError: the channel has failed too often.
            CorruptObjectError: somebody else writes to the channel.
            StoreClosedError: as `step`, or the channel's store is closed.
        """
        self._refuse_fork()
        if self._receiver.settings.policy.mode is Mode.CONTROLLER:
            self._serve(stop)
            return
        with looking(self.poll, self._receiver.settings.poll_s, stop):
            self._serve(stop)

    def _refuse_fork(self) -> None:
        machine.refuse_fork(self._own_process, f"rank {self.rank}", OWN_ENGINE)

    def _serve(self, stop: Stop) -> None:
        while not stop.is_set():
            try:
                has_worked = self.step()
            except StoreClosedError:
                raise
            except (UnavailableError, UnknownOutcomeError):
                self._failed_count += 1
                if self._failed_count >= self._settings.failure_count:
                    raise
                has_worked = False
            else:
                self._failed_count = 0
            if not has_worked:
                self._clock.sleep(self._settings.idle_poll_s)

    @contextmanager
    def _told(self, failures: list[Exception]) -> Iterator[None]:
        """Turn an error of the own weights into an answer."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- callbacks and devices raise anything
            failures.append(error)

    def _enter(self, generation: int) -> None:
        """Leave the engine before, and join a newer one."""
        self._engine, self._answer, self._kept = None, None, {}
        key = engine_key(generation)
        data = self._channel.get(key, max_size_bytes=self._settings.message_size_bytes)
        if data is None:
            raise CorruptObjectError(f"{key} is no longer there", facts={"key": key})
        self._work.shut("a leader begins a new engine")
        engine = decode(Engine, data, what=key)
        failures: list[Exception] = []
        tables = NO_TABLES
        with self._told(failures):
            if engine.rank_count != self.rank_count:
                raise InputRefusedError(
                    f"rank {self.rank} is of {self.rank_count} ranks, the leader of "
                    f"{engine.rank_count}",
                    do="Give every rank the same `rank_count`.",
                )
            tables = self._work.attach()
        # Only now: an attachment that was interrupted is begun again.
        self._engine, self._generation, self._turn = engine, generation, 0
        answer = self._answered(engine, Part.ATTACH, failures)
        answer = answer.model_copy(update=counts_of(tables))
        self._answer = (answer_key(generation, 0, self.rank), encode(answer, tables))
        self._put_answer()

    def _tell_given_up(self) -> bool:
        """Tell of what was given up since it was opened, or staged, while nothing is asked.

        For whoever follows the log, and for the next round.
        """
        is_lost = {
            Part.OPEN: isinstance(self.live, Dirty),
            Part.STAGE: not isinstance(self._receiver.staged, Ready),
        }
        lost = [part for part in self._kept if is_lost[part]]
        for part in lost:
            self._channel.put(given_up_key(self._generation, self._kept[part], self.rank), b"")
            del self._kept[part]
        return bool(lost)

    def _follow(self, engine: Engine, order: Order) -> None:
        if (order.engine_id, order.turn) != (engine.engine_id, self._turn + 1):
            raise CorruptObjectError(
                f"an order of engine {order.engine_id}, turn {order.turn}, stands in the place of "
                f"{engine.engine_id}, {self._turn + 1}",
                facts={"turn": order.turn},
            )
        failures: list[Exception] = []
        tables = NO_TABLES
        with self._told(failures):
            target = ref_of(order.target)
            base = None if order.base is None else ref_of(order.base)
            tables = self._work.do(order.part, target, base, order.reason)
        answer = self._answered(engine, order.part, failures)
        answer = answer.model_copy(update={"turn": order.turn, **counts_of(tables)})
        key = answer_key(self._generation, order.turn, self.rank)
        self._answer, self._turn = (key, encode(answer, tables)), order.turn
        if order.part not in {Part.STAGE, Part.CALL, Part.SCAN}:
            self._kept.clear()
        self._kept.pop(order.part, None)
        if order.part in {Part.STAGE, Part.OPEN} and not failures:
            self._kept[order.part] = order.turn
        self._put_answer()

    def _answered(self, engine: Engine, part: Part, failures: list[Exception]) -> Answer:
        held = self._work.held
        return Answer(
            engine_id=engine.engine_id,
            turn=0,
            part=part,
            rank=self.rank,
            rank_count=self.rank_count,
            process_id=self._process_id,
            failure=failure_of(failures[0]) if failures else None,
            held=None if held is None else version_text(held),
            schema_id=self._work.schema_id(),
            callback_count=self._work.callback_count,
            work=None if part is Part.ATTACH else self._work.work(),
            box_word_count=None,
            before_count=None,
            after_count=None,
        )

    def _put_answer(self) -> None:
        assert self._answer is not None
        try:
            self._channel.put(*self._answer)
        except BlobExistsError:
            # Another process answered as this rank: the one before this one. What it said is not
            # true of this one's weights, so this engine is over.
            self._engine = None
            self._channel.put(lost_key(self._generation, self.rank), b"")
        self._answer = None
