"""What the answers of all ranks to one order say together."""

from __future__ import annotations

from weightstore.errors import InputRefusedError, RankFailedError
from weightstore.receiver.ranks.messages import Answer, Tables

Answers = tuple[tuple[Answer, Tables], ...]
"""By rank."""


def refuse_failed(answers: Answers) -> None:
    """Let a failure of any rank be the error of the round.

    Raises:
        RankFailedError: of the first rank that failed; names all of them.
    """
    failed = [(one.rank, one.failure) for one, _ in answers if one.failure is not None]
    if not failed:
        return
    rank, failure = failed[0]
    ranks = tuple(number for number, _ in failed)
    raise RankFailedError(
        f"rank {rank} failed ({failure.code}): {failure.message}",
        do=failure.do,
        facts={"ranks": ranks, "is_gone": False, "code": failure.code},
    )


def only_given_up(answers: Answers) -> bool:
    """Whether every rank that failed holds nothing, and so says nothing against the others."""
    return all(
        one.failure is None or (one.held is None and one.failure.code == InputRefusedError.code)
        for one, _ in answers
    )
