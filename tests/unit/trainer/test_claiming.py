"""Claiming: the lock is held before the claim says so, and both end in the right order."""

from __future__ import annotations

import fcntl
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from typing_extensions import Buffer

from weightstore.errors import BlobOutcomeUnknownError, CommitUnknownError, StoreOwnedError
from weightstore.history.claim import Claim, owns
from weightstore.ids import RunId, SessionId, Step
from weightstore.settings import Limits, Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.machine import boot_id
from weightstore.storage.memory import MemoryBlobStore
from weightstore.storage.owner_lock import is_owner_dead
from weightstore.testing.faults import CutBlobs, PowerCut, When
from weightstore.testing.trainer_lab import TrainerLab, small_weights
from weightstore.testing.virtual_time import VirtualClock
from weightstore.trainer import claiming
from weightstore.trainer.claiming import StoreParts, claim_store
from weightstore.trainer.heads import read_head
from weightstore.trainer.repeats import is_repeat
from weightstore.trainer.tools import Tools

SESSION = SessionId("5" * 32)


def claim(lab: TrainerLab, at_end: ExitStack) -> tuple[Tools, Claim]:
    parts = StoreParts(
        blobs=lab.blobs, log=lab.log, clock=lab.clock, entropy=lab.entropy, settings=lab.settings
    )
    return claim_store(at_end, parts, run=RunId("run"), session=SESSION)


def test_the_claim_is_open_for_the_block_alone() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with ExitStack() as at_end:
        tools, held = claim(lab, at_end)
        assert owns(lab.log.tail().now, held)
        assert (held.run, held.session, held.newest) == ("run", SESSION, None)
        assert tools.limits is lab.settings.limits
    assert lab.log.tail().now.claim is None


def test_an_owner_is_never_taken_for_dead_while_it_claims(tmp_path: Path) -> None:
    local = LocalBlobStore(tmp_path / "store", create=True)
    TrainerLab(local).create()
    for cut_at in range(1000):
        blobs = CutBlobs(local, cut_at, When.AFTER)
        at_end = ExitStack()
        with suppress(PowerCut):
            claim(TrainerLab(blobs, cut_at), at_end)
        assert not is_owner_dead(local, SESSION, boot_id())
        with suppress(PowerCut):
            at_end.close()
        if blobs.cut is None:
            break
    assert cut_at > 0


class Unanswering(LocalBlobStore):
    """A local store that takes no record any more, and does not say so."""

    is_silent = True

    def put_if_absent(self, key: str, data: Buffer, /, *, durable: bool = True) -> None:
        """As of a local store, but for records."""
        if self.is_silent and key.startswith("log/"):
            raise BlobOutcomeUnknownError("no answer")
        super().put_if_absent(key, data, durable=durable)


def lock_file(local: LocalBlobStore) -> Path:
    return local.root / "locks" / SESSION


def test_an_owner_whose_claim_could_not_be_closed_is_provably_gone(tmp_path: Path) -> None:
    local = LocalBlobStore(tmp_path / "store", create=True)
    TrainerLab(local).create()
    blobs = Unanswering(tmp_path / "store")
    blobs.is_silent = False
    at_end = ExitStack()
    claim(TrainerLab(blobs, "owner"), at_end)
    blobs.is_silent = True
    assert not is_owner_dead(local, SESSION, boot_id())
    with pytest.raises(CommitUnknownError):
        at_end.close()
    assert is_owner_dead(local, SESSION, boot_id())
    with TrainerLab(local, "successor").trainer() as trainer:
        assert trainer.epoch == 2


def test_an_owner_that_never_learns_of_its_claim_is_provably_gone(tmp_path: Path) -> None:
    local = LocalBlobStore(tmp_path / "store", create=True)
    TrainerLab(local).create()
    with pytest.raises(CommitUnknownError), ExitStack() as at_end:
        claim(TrainerLab(Unanswering(tmp_path / "store"), "owner"), at_end)
    assert is_owner_dead(local, SESSION, boot_id())


def test_a_lock_goes_with_its_claim(tmp_path: Path) -> None:
    local = LocalBlobStore(tmp_path / "store", create=True)
    lab = TrainerLab(local).create()
    with ExitStack() as at_end:
        claim(lab, at_end)
        assert lock_file(local).exists()
    assert not lock_file(local).exists()
    with lab.trainer(), pytest.raises(StoreOwnedError), ExitStack() as at_end:
        claim(TrainerLab(local, "other"), at_end)
    assert not lock_file(local).exists()


def test_a_claim_that_a_past_owner_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the log and at the lock, another takes over, tidies up and closes."""
    local = LocalBlobStore(tmp_path / "store", create=True)
    TrainerLab(local).create()
    blobs = Unanswering(tmp_path / "store")
    blobs.is_silent = False
    at_end = ExitStack()
    claim(TrainerLab(blobs, "owner"), at_end)
    blobs.is_silent = True
    with suppress(CommitUnknownError):
        at_end.close()
    asked: list[str] = []

    def meanwhile(blobs: BlobStore, session: SessionId, boot: str) -> bool:
        asked.append(session)
        if len(asked) == 1:
            monkeypatch.undo()
            TrainerLab(local, "faster").trainer().close()
            assert not lock_file(local).exists()
        return is_owner_dead(blobs, session, boot)

    monkeypatch.setattr(claiming, "is_owner_dead", meanwhile)
    with TrainerLab(local, "successor").trainer() as trainer:
        assert trainer.epoch == 3
    assert asked == [SESSION]


def past_owner(local: LocalBlobStore) -> None:
    """An owner that could not close its claim, and whose lock proves that it is gone."""
    blobs = Unanswering(local.root)
    blobs.is_silent = False
    at_end = ExitStack()
    claim(TrainerLab(blobs, "owner"), at_end)
    blobs.is_silent = True
    with suppress(CommitUnknownError):
        at_end.close()


@pytest.mark.parametrize("try_count", [1, 2, 5])
def test_a_claim_is_tried_as_often_as_the_limits_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_count: int
) -> None:
    """Each time another takes over meanwhile, tidies up and fails to close its own claim."""
    local = LocalBlobStore(tmp_path / "store", create=True)
    TrainerLab(local).create()
    past_owner(local)
    tried: list[int] = []

    def refused(*_: object, **__: object) -> Claim:
        tried.append(1)
        raise StoreOwnedError("refused for one of the past", facts={"session": "0" * 32})

    monkeypatch.setattr(claiming, "open_claim", refused)
    lab = TrainerLab(local, "successor", Settings(limits=Limits(claim_try_count=try_count)))
    with pytest.raises(StoreOwnedError), ExitStack() as at_end:
        claim(lab, at_end)
    assert len(tried) == try_count


def test_a_lock_that_somebody_looks_at_does_not_refuse_a_launch(tmp_path: Path) -> None:
    """The same session is launched again while its old lock is looked at."""
    local = LocalBlobStore(tmp_path / "store", create=True)
    lab = TrainerLab(local).create()
    past_owner(local)
    looking = lock_file(local).open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)

    class Clock(VirtualClock):
        def sleep(self, duration_s: float, /) -> None:
            super().sleep(duration_s)
            looking.close()

    clock = Clock()
    parts = StoreParts(
        blobs=local, log=lab.log, clock=clock, entropy=lab.entropy, settings=lab.settings
    )
    with ExitStack() as at_end:
        claim_store(at_end, parts, run=RunId("run"), session=SESSION)
    assert clock.slept_s > 0


def test_the_head_is_what_the_store_says_of_the_newest_version() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(4, weights).result()
        weights["scale"] += 1
        trainer.put_step(5, weights).result()
    with ExitStack() as at_end:
        tools, _ = claim(lab, at_end)
        head, plan = read_head(tools, lab.plan().record)
        assert (head.version, head.base.version, head.chain_count) == (2, 2, 1)
        assert head.full.version == plan.full.version == 1
        assert head.digest == plan.record.digest
        prefix = lab.log.tail()
        assert [is_repeat(prefix, Step(step)) for step in (3, 5, 6)] == [True, True, False]
    assert not is_repeat(lab.log.tail(), Step(5))
