"""The leader's side of the channel: begin an engine, ask every rank, gather every answer.

What waits is a generator: it yields whenever an answer is missing, so that tests can put any
step of any rank in between.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

from weightstore.clock import Clock, Entropy
from weightstore.errors import (
    BlobExistsError,
    CorruptObjectError,
    FencedError,
    RankFailedError,
)
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.ranks.answers import Answers
from weightstore.receiver.ranks.channel import (
    ROUNDS_PREFIX,
    RankChannel,
    answer_key,
    engine_key,
    generation_of,
    given_up_key,
    lost_key,
    order_key,
)
from weightstore.receiver.ranks.engine_settings import EngineSettings
from weightstore.receiver.ranks.messages import (
    Answer,
    Engine,
    Order,
    Part,
    Tables,
    decode_answer,
    encode,
    text_of,
    version_text,
)
from weightstore.receiver.ranks.newest import ENGINE_SIZE_BYTES, is_begun, newest_generation

LOGGER = logging.getLogger("weightstore.receiver")
NOTICE_S = 10.0
"""Whoever waits for ranks says so in the log after this time, and each time that it has passed."""

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""Yields while an answer is missing."""


class RollCall:
    """Asks the ranks of one engine. One thread at a time.

    Args:
        channel: To the ranks.
        rank_count: How many must answer.
        clock: For deadlines.
        entropy: Names engines.
        settings: Times and bounds.

    Attributes:
        engine: What was begun last, by this leader; None before.
        round: Number of the round.
        turn: Of the last order.
        is_settled: Every rank has answered to the last thing that was asked, so it is known
            where all of them are.
    """

    def __init__(
        self,
        channel: RankChannel,
        rank_count: int,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: EngineSettings,
    ) -> None:
        self._channel = channel
        self._rank_count = rank_count
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self.turn = 0
        self._staged_turn = 0
        self._opened_turn = 0
        self._word_turns: list[int] = []
        self._tried: Engine | None = None
        self.engine: Engine | None = None
        self.round = 0
        self.is_settled = False

    @property
    def generation(self) -> int:
        """Of the engine that was begun last; 0 before."""
        return self.engine.generation if self.engine else 0

    def begin(self) -> Engine:
        """Begin an engine with a new id: every rank closes its gate and attaches anew.

        After a crash: the engine is begun or not; a leader that starts again begins another.

        Raises:
            FencedError: another leader has begun a newer engine than this one's last.
        """
        self.is_settled = False
        known = self.generation
        newest = newest_generation(self._channel, known)
        tried = self._tried
        # A lost answer is not a lost engine: without this read a leader would take its own
        # engine for that of another one, and never begin any again. (P11)
        if tried is not None and newest >= tried.generation and self._holds(tried):
            known = self._take(tried).generation
            if newest == known:
                return tried
        if self.engine is not None and newest != known:
            raise self._fenced()
        if tried is None or tried.generation != newest + 1:
            tried = Engine(
                engine_id=self._entropy.hex128(), generation=newest + 1, rank_count=self._rank_count
            )
        self._tried = tried
        try:
            self._channel.put(engine_key(tried.generation), encode(tried))
        except BlobExistsError as error:
            if not self._holds(tried):
                raise self._fenced() from error
        return self._take(tried)

    def attached(self) -> Waiting[Answers]:
        """Wait until every rank has attached.

        Raises:
            RankFailedError: some have not in time; they may still do so.
            FencedError: another leader has begun an engine.
        """
        notice_s = self._clock.monotonic_s()
        deadline_s = notice_s + self._settings.stage_timeout_s
        found: dict[int, tuple[Answer, Tables]] = {}
        while True:
            is_late = self._clock.monotonic_s() >= deadline_s
            self._gather(found, Part.ATTACH)
            if self.lost_ranks():
                # A process that has attached is gone already, and its successor waits.
                self.begin()
                found.clear()
            elif len(found) == self._rank_count:
                break
            if is_late:
                raise self._gone(found, "attached")
            notice_s = self._noticed(notice_s, found, "attached")
            yield
        self._forget_engines_before()
        self.is_settled = True
        return tuple(found[rank] for rank in range(self._rank_count))

    def ask(
        self, part: Part, target: VersionRef, *, base: VersionRef | None, reason: str = ""
    ) -> Waiting[Answers]:
        """Ask every rank for one part of a round, and wait for all answers.

        Raises:
            RankFailedError: a rank is gone: it has not answered in time, or another process
                has its place. The caller begins a new engine, so that all others close.
            FencedError: another leader has begun an engine.
        """
        self.is_settled = False
        engine = self._own_engine()
        self.turn += 1
        order = Order(
            engine_id=engine.engine_id,
            turn=self.turn,
            round=self.round,
            part=part,
            target=version_text(target),
            base=None if base is None else version_text(base),
            reason=text_of(reason),
        )
        self._channel.put(order_key(engine.generation, self.turn), encode(order))
        self._forget_turn(self.turn - 2)
        self._note_words(part)
        is_long = part in {Part.STAGE, Part.SCAN}
        timeout_s = self._settings.stage_timeout_s if is_long else self._settings.answer_timeout_s
        notice_s = self._clock.monotonic_s()
        deadline_s = notice_s + timeout_s
        found: dict[int, tuple[Answer, Tables]] = {}
        while True:
            # The time is read first: a leader that was away itself still sees what has come.
            is_late = self._clock.monotonic_s() >= deadline_s
            self._gather(found, part)
            has_lost = bool(self.lost_ranks())
            if len(found) == self._rank_count and not has_lost:
                self.is_settled = True
                return tuple(found[rank] for rank in range(self._rank_count))
            if is_late or has_lost:
                raise self._gone(found, f"answered to {part.value!r}")
            notice_s = self._noticed(notice_s, found, f"answered to {part.value!r}")
            yield

    def lost_ranks(self) -> tuple[int, ...]:
        """Ranks whose process was replaced since it attached to this engine."""
        if self.engine is None:
            return ()
        generation = self.engine.generation
        return tuple(
            rank
            for rank in range(self._rank_count)
            if self._channel.get(lost_key(generation, rank), max_size_bytes=1) is not None
        )

    def unstaged_ranks(self) -> tuple[int, ...]:
        """Ranks that no longer have what they were asked to stage last."""
        return self.given_up_ranks(self.generation, self._staged_turn)

    def given_up_ranks(self, generation: int, turn: int) -> tuple[int, ...]:
        """Ranks that no longer have what they have opened, or staged, at a turn.

        Args:
            generation: Of the engine.
            turn: Of the order to open, or to stage.
        """
        return tuple(
            rank
            for rank in range(self._rank_count)
            if self._channel.get(given_up_key(generation, turn, rank), max_size_bytes=1) is not None
        )

    def _holds(self, engine: Engine) -> bool:
        """Whether an engine was begun as it was meant."""
        key = engine_key(engine.generation)
        return self._channel.get(key, max_size_bytes=ENGINE_SIZE_BYTES) == encode(engine)

    def _take(self, engine: Engine) -> Engine:
        self.engine, self._tried, self.turn = engine, None, 0
        self._word_turns = []
        return engine

    def _gather(self, found: dict[int, tuple[Answer, Tables]], part: Part) -> None:
        engine = self._own_engine()
        for rank in range(self._rank_count):
            if rank in found:
                continue
            key = answer_key(engine.generation, self.turn, rank)
            data = self._channel.get(key, max_size_bytes=self._settings.message_size_bytes)
            if data is None:
                continue
            answer, tables = decode_answer(data, what=key)
            expected = (engine.engine_id, self.turn, part, rank)
            if (answer.engine_id, answer.turn, answer.part, answer.rank) != expected:
                raise CorruptObjectError(
                    f"{key} answers to something else than was asked", facts={"key": key}
                )
            found[rank] = (answer, tables)

    def _own_engine(self) -> Engine:
        """The engine of this leader, while no other one has begun a newer one."""
        assert self.engine is not None
        if is_begun(self._channel, self.engine.generation + 1):
            raise self._fenced()
        return self.engine

    def _noticed(self, since_s: float, found: Mapping[int, object], what: str) -> float:
        """Say in the log who keeps all others waiting; from when on it is waited now."""
        now_s = self._clock.monotonic_s()
        if now_s - since_s < NOTICE_S:
            return since_s
        awaited = tuple(rank for rank in range(self._rank_count) if rank not in found)
        LOGGER.warning("ranks %s of %d have not %s yet", awaited, self._rank_count, what)
        return now_s

    def _gone(self, found: Mapping[int, object], what: str) -> RankFailedError:
        lost = self.lost_ranks()
        gone = tuple(rank for rank in range(self._rank_count) if rank not in found or rank in lost)
        return RankFailedError(
            f"ranks {gone} of {self._rank_count} have not {what}",
            do="Start these ranks and let them `serve_rounds`; the next refit attaches all anew.",
            facts={"ranks": gone, "is_gone": True},
        )

    def _fenced(self) -> FencedError:
        return FencedError(
            "another leader has begun a newer engine on this channel",
            do="Stop this leader; one process leads an engine.",
            facts={"channel": self._channel.location},
        )

    def _forget_turn(self, turn: int) -> None:
        """Delete what every rank has read: all have answered to a later order.

        The attachments stay: by them a process finds that another one had its place.
        """
        if turn < 1:
            return
        generation = self._own_engine().generation
        answers = [answer_key(generation, turn, rank) for rank in range(self._rank_count)]
        self._channel.delete([order_key(generation, turn), *answers])

    def _note_words(self, part: Part) -> None:
        """Note a turn of which a rank may tell later, and delete what nobody asks for any more."""
        if part is Part.OPEN:
            self._opened_turn = self.turn
        elif part is Part.STAGE:
            # Whoever has opened has nothing to tell of what came before.
            self._delete_words([each for each in self._word_turns if each < self._opened_turn])
            self._word_turns = [each for each in self._word_turns if each >= self._opened_turn]
            self._staged_turn = self.turn
        else:
            return
        self._word_turns.append(self.turn)

    def _delete_words(self, turns: Sequence[int]) -> None:
        ranks, generation = range(self._rank_count), self.generation
        keys = [given_up_key(generation, turn, rank) for turn in turns for rank in ranks]
        self._channel.delete(keys)

    def _forget_engines_before(self) -> None:
        """Delete what was said in older engines; every rank has left them."""
        generation = self._own_engine().generation
        keys = self._channel.keys(ROUNDS_PREFIX)
        self._channel.delete([key for key in keys if generation_of(key) < generation])
