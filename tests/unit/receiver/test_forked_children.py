"""A forked child with what its parent holds: refused, or nothing is done, and always at once.

Every lock is held by another thread of the parent at the fork. In the child nobody is left to
release it, so whatever waits for one never ends.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weightstore.errors import StoreBusyError, StoreClosedError
from weightstore.receiver.follower import Follower
from weightstore.receiver.host_files.host_files import HostFiles
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.store import WeightStore
from weightstore.testing.agent_lab import AgentLab, with_agent
from weightstore.testing.fleet_lab import FleetLab
from weightstore.testing.rank_lab import RankLab, ranks_of
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import ReceiverLab
from weightstore.testing.store_lab import LAB_SETTINGS

WAIT_S = 20.0
UNIT_COUNT = 4000
LATEST = ReceiverSettings(mode="latest", max_lag=2, poll_s=0.01, heartbeat_s=100.0)


def weights_of(step: int) -> dict[str, np.ndarray]:
    weights = np.arange(UNIT_COUNT, dtype=np.float32)
    weights[:9] = step
    return {"w": weights}


@contextmanager
def held(*locks: AbstractContextManager[Any]) -> Iterator[None]:
    """Have another thread hold locks inside."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            is_held.set()
            is_over.wait(2 * WAIT_S)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    try:
        assert is_held.wait(WAIT_S)
        yield
    finally:
        is_over.set()
        holder.join(WAIT_S)


def in_child(action: Callable[[], object]) -> None:
    """Do something in a forked child, which must end in time and without an error."""
    with warnings.catch_warnings():
        # From Python 3.12 on a fork beside threads is warned of; that is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        code = 1
        try:
            action()
            code = 0
        except BaseException:  # noqa: BLE001 -- a child never comes back into the parent's test
            traceback.print_exc()
        finally:
            os._exit(code)
    process = os.pidfd_open(child)
    try:
        has_ended = bool(select.select([process], [], [], WAIT_S)[0])
        if not has_ended:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        os.close(process)
    assert has_ended, "the child waits for what nobody releases"
    assert code == 0


class Parent:
    """A receiver that is followed, and a followed directory, with all of their locks."""

    def __init__(self, store: WeightStore, folder: Path) -> None:
        for step in (1, 2):
            store.put_step(step, weights_of(step))
        self.store = store
        self.receiver: Receiver = store.receiver(
            {"w": np.zeros(UNIT_COUNT, np.uint32)}, settings=LATEST
        )
        self.receiver.refit(1)
        self.receiver.stage(2)
        self.follower: Follower = self.receiver.follow()
        self.follower.look()
        self.files: HostFiles = store.host_files(folder / "live")
        self.files.refit(1)

    def locks(self) -> AbstractContextManager[None]:
        """Hold everything that a child could wait for."""
        follower = self.follower
        events = (follower._stop, follower._news, follower._to_tell)
        return held(
            *(vars(event)["_cond"] for event in events),
            self.receiver._gate._changed,
            self.receiver._refits.lock,
            follower.membership._claiming,
            follower.membership._writing,
            follower._lock,
            self.files._lock,
        )

    def member_count(self) -> int:
        return len(self.store.receivers())


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parent]:
    folder = tmp_path_factory.mktemp("parent")
    with WeightStore.open(folder / "store", create=True, settings=LAB_SETTINGS) as store:
        made = Parent(store, folder)
        with made.files:
            yield made
            made.follower.close()


def enter(block: AbstractContextManager[object]) -> None:
    with block:
        raise AssertionError("let in")


REFUSED: dict[str, Callable[[Parent], object]] = {
    "serving": lambda parent: enter(parent.receiver.serving()),
    "admitted": lambda parent: enter(parent.receiver.admitted()),
    "exclusive": lambda parent: enter(parent.receiver.exclusive()),
    "poll": lambda parent: parent.receiver.poll(),
    "status": lambda parent: parent.receiver.status(),
    "invalidate": lambda parent: parent.receiver.invalidate(),
    "verify": lambda parent: parent.receiver.verify(),
    "stage": lambda parent: parent.receiver.stage(2),
    "refit": lambda parent: parent.receiver.refit(2),
    "on_applied": lambda parent: parent.receiver.on_applied(lambda _: None),
    "on_report": lambda parent: parent.receiver.on_report(lambda _: None),
    "follow": lambda parent: parent.receiver.follow(),
    "follower.look": lambda parent: parent.follower.look(),
    "follower.work": lambda parent: parent.follower.work(),
    "follower.step": lambda parent: parent.follower.step(),
    "follower.run": lambda parent: parent.follower.run(),
    "follower as a context": lambda parent: enter(parent.follower),
    "membership.withdraw": lambda parent: parent.follower.membership.withdraw(),
    "files.refit": lambda parent: parent.files.refit(),
    "files.verify": lambda parent: parent.files.verify(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_belongs_to_the_parent_is_refused(parent: Parent, name: str) -> None:
    def ask() -> None:
        with pytest.raises(StoreClosedError, match="forked child"):
            REFUSED[name](parent)

    with parent.locks():
        in_child(ask)


RANK_ASKS: dict[str, Callable[[RankLab], object]] = {
    "attach": lambda ranks: ranks.leader.attach(),
    "stage": lambda ranks: ranks.leader.stage(2),
    "apply": lambda ranks: ranks.leader.apply(),
    "refitting": lambda ranks: next(ranks.leader.refitting(2)),
    "refit": lambda ranks: ranks.leader.refit(2),
    "step": lambda ranks: ranks.ranks[1].engine.step(),
    "serve_rounds": lambda ranks: ranks.ranks[1].engine.serve_rounds(threading.Event()),
    "follow": lambda ranks: ranks.ranks[0].engine.follow(),
    "serving": lambda ranks: enter(ranks.ranks[1].engine.serving()),
    "status": lambda ranks: ranks.ranks[1].engine.status(),
    "on_report": lambda ranks: ranks.ranks[1].engine.on_report(lambda _: None),
    "verify": lambda ranks: ranks.ranks[1].engine.verify(),
}


@pytest.mark.parametrize("name", RANK_ASKS)
def test_an_engine_is_its_parents(name: str) -> None:
    engine = ranks_of(2)
    engine.drive(engine.leader.staging(2))
    before, slept_s = list(engine.channel.keys("")), engine.clock.slept_s

    def ask() -> None:
        with pytest.raises(StoreClosedError, match="forked child"):
            RANK_ASKS[name](engine)
        assert list(engine.channel.keys("")) == before
        assert engine.clock.slept_s == slept_s

    locks = [rank.receiver._refits.lock for rank in engine.ranks.values()]
    with held(engine.leader._lock, *locks):
        in_child(ask)


def test_a_child_is_refused_before_it_reads() -> None:
    rollout = FleetLab(ReceiverLab.with_versions(mixed_schema(), 1)).rollout()
    before = len(rollout.blobs.calls)

    def ask() -> None:
        with pytest.raises(StoreClosedError, match="this receiver"):
            rollout.receiver.poll()
        assert len(rollout.blobs.calls) == before

    in_child(ask)


ENDINGS: dict[str, Callable[[Parent], object]] = {
    "follower.close": lambda parent: parent.follower.close(),
    "the end of a follower's block": lambda parent: parent.follower.__exit__(None, None, None),
    "membership.publish": lambda parent: parent.follower.membership.publish(),
    "membership.leave": lambda parent: parent.follower.membership.leave(),
    "membership.stand_by": lambda parent: parent.follower.membership.stand_by(),
    "membership.withdraw_gone": lambda parent: parent.follower.membership.withdraw_gone(),
    "files.close": lambda parent: parent.files.close(),
    "the end of the files' block": lambda parent: parent.files.__exit__(None, None, None),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_child_that_ends_what_is_its_parents_ends_nothing(parent: Parent, name: str) -> None:
    with parent.locks():
        in_child(lambda: ENDINGS[name](parent))
    # And where it would not even have to wait.
    in_child(lambda: ENDINGS[name](parent))
    assert parent.member_count() == 1
    parent.files.verify()


@pytest.mark.parametrize("kind", ["serving", "admitted"])
def test_a_block_that_is_open_at_the_fork_is_the_parents(parent: Parent, kind: str) -> None:
    with ExitStack() as blocks:
        block = getattr(parent.receiver, kind)(exact=1)
        blocks.enter_context(block)

        def leave() -> None:
            with pytest.raises(StoreClosedError, match="forked child"):
                block.__exit__(None, None, None)

        def fail() -> None:
            # What the block itself has raised is what is seen.
            assert not block.__exit__(LookupError, LookupError(), None)

        with parent.locks():
            in_child(leave)
            in_child(fail)


def test_the_parent_goes_on_after_its_children(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        parent = Parent(store, tmp_path)
        with parent.follower:
            in_child(lambda: parent.follower.__exit__(None, None, None))
            in_child(parent.follower.close)
            in_child(parent.files.close)
            arrived = threading.Event()
            parent.receiver.on_report(lambda report: arrived.set() if report.target == 3 else None)
            store.put_step(3, weights_of(3))
            assert arrived.wait(WAIT_S)
            assert parent.receiver.verify().version == 3
            assert parent.member_count() == 1
        assert parent.member_count() == 0
        assert parent.files.refit().target == 3
        parent.files.close()


@pytest.mark.parametrize("ends", ["close", "the end of its block", "a second start"])
def test_a_child_does_not_end_its_parents_host_agent(tmp_path: Path, ends: str) -> None:
    lab = AgentLab.with_versions(mixed_schema(), 3, share=0.02)
    with lab.agent(tmp_path / "agent") as agent:

        def end() -> None:
            if ends == "close":
                agent.close()
            elif ends == "the end of its block":
                agent.__exit__(None, None, None)
            else:
                with pytest.raises(StoreBusyError):
                    agent.__enter__()
                agent.close()

        with held(agent._lock):
            in_child(end)
        receiver, arrays = lab.host_receiver(with_agent(agent.place), at=1)
        report = receiver.refit(3)
        assert (report.reason, report.size_bytes.wire) == ("", 0)
        assert lab.is_at(arrays, 3)
        assert agent.stats().served_pack_count > 0
    assert not agent.place.exists()


def test_an_agent_that_was_made_before_a_fork_may_serve_in_the_child(tmp_path: Path) -> None:
    lab = AgentLab.with_versions(mixed_schema(), 1)
    agent = lab.agent(tmp_path / "agent")

    def serve() -> None:
        with agent:
            assert agent.place.exists()
        assert not agent.place.exists()

    in_child(serve)
