"""What answers of several ranks say together."""

from __future__ import annotations

import pytest

from weightstore.errors import InputRefusedError, LiveWeightsError, RankFailedError
from weightstore.receiver.ranks.answers import Answers, only_given_up, refuse_failed
from weightstore.receiver.ranks.messages import (
    NO_TABLES,
    VersionText,
    failure_of,
)
from weightstore.testing.rank_messages import rank_answer

REFUSED = InputRefusedError("this rank holds no whole version", do="Refit the engine again.")
DIFFERS = LiveWeightsError("'a' differs")
HELD = VersionText(version=1, digest="c" * 64)


def answers_of(*given: tuple[VersionText | None, Exception | None]) -> Answers:
    """Of each rank, what it holds and how it failed."""
    found = []
    for rank, (held, error) in enumerate(given):
        failure = None if error is None else failure_of(error)
        answer = rank_answer(rank).model_copy(update={"held": held, "failure": failure})
        found.append((answer, NO_TABLES))
    return tuple(found)


def test_any_failure_is_that_of_all_and_names_all_that_failed() -> None:
    refuse_failed(answers_of((HELD, None), (None, None)))
    with pytest.raises(RankFailedError, match=r"rank 1 failed .*'a' differs") as caught:
        refuse_failed(answers_of((HELD, None), (HELD, DIFFERS), (None, REFUSED)))
    assert caught.value.facts == {"ranks": (1, 2), "is_gone": False, "code": LiveWeightsError.code}


@pytest.mark.parametrize(
    ("last", "expected"),
    [((None, REFUSED), True), ((HELD, REFUSED), False), ((None, DIFFERS), False)],
)
def test_only_who_holds_nothing_says_nothing_against_the_others(
    last: tuple[VersionText | None, Exception], *, expected: bool
) -> None:
    assert only_given_up(answers_of((HELD, None), (None, REFUSED), last)) is expected
