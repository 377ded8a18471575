"""A receipt of each kind, with the numbers 0 and 1, which other forms could stand for."""

from __future__ import annotations

from weightstore.format.manifest import PackRef
from weightstore.format.objects import ObjectRef
from weightstore.format.receipts import OpenReceipt, RankReceipt
from weightstore.ids import Attempt, CommitId, Epoch, RunId, SessionId, Sha256, Step, VersionId

_SHA = Sha256("ab" * 32)
OPEN_RECEIPT = OpenReceipt(
    run=RunId("grpo"),
    epoch=Epoch(1),
    session=SessionId("a" * 32),
    version=VersionId(1),
    attempt=Attempt(1),
    commit_id=CommitId("b" * 32),
    deadline_unix_ms=1,
    host="node",
    process=1,
)
RANK_RECEIPT = RankReceipt(
    run=OPEN_RECEIPT.run,
    epoch=OPEN_RECEIPT.epoch,
    session=OPEN_RECEIPT.session,
    version=OPEN_RECEIPT.version,
    attempt=OPEN_RECEIPT.attempt,
    commit_id=OPEN_RECEIPT.commit_id,
    rank=0,
    step=Step(1),
    schema_id=_SHA,
    packs=(PackRef(key="p", size_bytes=9, sha256=_SHA, rank=0, piece_count=1),),
    changed_count=1,
    before=ObjectRef(key="x", size_bytes=1, sha256=_SHA),
    after=ObjectRef(key="y", size_bytes=0, sha256=_SHA),
)
