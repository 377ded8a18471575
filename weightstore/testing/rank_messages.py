"""Answers of ranks as tests and fuzzing need them: good ones, of which some fields are given."""

from __future__ import annotations

from weightstore.receiver.ranks.messages import (
    NO_TABLES,
    Answer,
    Part,
    Tables,
    Work,
    counts_of,
)

HEX = "0" * 32
SCHEMA_ID = "b" * 64
WORK = Work(
    way="change",
    reason="r",
    is_redo=True,
    applied_count=1,
    launch_count=2,
    wire_bytes=3,
    decoded_bytes=7,
    applied_bytes=4,
    skipped_bytes=5,
    full_bytes=6,
    seconds_us={"apply": 1_500_000},
)


def rank_answer(
    rank: int = 0,
    *,
    part: Part = Part.STAGE,
    turn: int = 1,
    engine_id: str = HEX,
    work: Work | None = None,
    tables: Tables = NO_TABLES,
) -> Answer:
    """What one of two ranks answers when nothing went wrong and it holds no version.

    Args:
        rank: Which.
        part: To what.
        turn: Of the engine.
        engine_id: Of the engine.
        work: What it has done.
        tables: What follows the answer.
    """
    return Answer(
        engine_id=engine_id,
        turn=turn,
        part=part,
        rank=rank,
        rank_count=2,
        process_id=HEX,
        failure=None,
        held=None,
        schema_id=SCHEMA_ID,
        callback_count=0,
        work=work,
        **counts_of(tables),
    )
