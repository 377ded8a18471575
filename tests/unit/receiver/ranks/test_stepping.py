"""A thread that takes a rank's step must not ask that rank's leader."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from weightstore.errors import InputRefusedError
from weightstore.receiver.ranks.stepping import refuse_callback, stepping


@dataclass
class Rank:
    engine_id: str | None


def test_inside_a_step_its_own_leader_is_refused_and_no_other() -> None:
    with stepping(Rank("a")):
        with pytest.raises(InputRefusedError, match="callback"):
            refuse_callback("a")
        refuse_callback("b")
        refuse_callback(None)
        with stepping(Rank("b")), pytest.raises(InputRefusedError):
            refuse_callback("a")
        refuse_callback("b")
    refuse_callback("a")


def test_a_rank_without_an_engine_has_no_leader() -> None:
    with stepping(Rank(None)):
        refuse_callback(None)


def test_the_engine_is_that_of_the_moment() -> None:
    rank = Rank(None)
    with stepping(rank):
        rank.engine_id = "a"
        with pytest.raises(InputRefusedError):
            refuse_callback("a")


def test_another_thread_may_ask_and_wait() -> None:
    asked: list[str] = []

    def ask() -> None:
        refuse_callback("a")
        asked.append("a")

    with stepping(Rank("a")):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert asked == ["a"]


def test_a_step_that_fails_is_over() -> None:
    with pytest.raises(LookupError), stepping(Rank("a")):
        raise LookupError
    refuse_callback("a")
