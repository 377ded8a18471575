"""What comes at a bad moment: from a callback, a forked child, or while others are being told."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from weightstore.errors import InputRefusedError, LiveWeightsError, NotReadyError, StoreClosedError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_state import Dirty, NothingStaged, VersionRef
from weightstore.receiver.live_weights import LiveWeights
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.steps import ChangeStep
from weightstore.receiver.torch_live import place_tensors
from weightstore.testing.real_versions import mixed_schema
from weightstore.testing.receiver_lab import SMALL_LAUNCHES, Cut, ReceiverLab
from weightstore.testing.waiting import WAIT_S


@pytest.fixture
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(mixed_schema(), 3)


CHANGES: dict[str, Callable[[Receiver], object]] = {
    "stage": lambda receiver: receiver.stage(3),
    "apply": lambda receiver: receiver.apply(),
    "refit": lambda receiver: receiver.refit(3),
    "rollback": lambda receiver: receiver.rollback(),
    "recover": lambda receiver: receiver.recover(),
    "adopt": lambda receiver: receiver.adopt(2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_callback_of_a_change_cannot_ask_for_another(lab: ReceiverLab, name: str) -> None:
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    asks = [CHANGES[name]]

    def callback(_: VersionRef) -> None:
        for ask in asks:
            ask(receiver)

    receiver.on_applied(callback)
    with pytest.raises(InputRefusedError, match="one of its callbacks"):
        receiver.refit(2)
    with pytest.raises(NotReadyError), receiver.serving():
        raise AssertionError
    asks.clear()
    assert receiver.refit(2).is_redo
    with receiver.serving(exact=2):
        assert lab.is_at(arrays, 2)


def test_a_callback_may_look_at_what_was_written(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(SMALL_LAUNCHES, at=1)
    found: list[int] = []
    receiver.on_applied(lambda _: found.append(receiver.verify().version))
    receiver.refit(2)
    assert found == [2]


def test_what_is_given_up_is_not_served_while_others_are_told(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=1)
    receiver.stage(2)
    seen: list[object] = []

    def tell() -> None:
        """Stands for a store that does not answer, until an interrupt."""
        seen.extend((receiver.status().is_ready, type(receiver.live)))
        raise KeyboardInterrupt

    receiver._weights.before_drop = tell
    with pytest.raises(KeyboardInterrupt):
        receiver.invalidate()
    assert seen == [False, Dirty]
    # A staged change over weights of which nothing is known would be written as a redo.
    assert receiver.staged == NothingStaged()
    assert not receiver.status().is_ready


def test_a_cut_is_noted_before_others_are_told(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.stage(2)
    name = lab.schema.tensors[0].name
    changed = (lab.expected(1, name) != lab.expected(2, name)).nonzero()[0][0]
    arrays[name][changed] ^= 1
    seen: list[object] = []
    receiver._weights.before_drop = lambda: seen.append(type(receiver.live))
    with pytest.raises(LiveWeightsError):
        receiver.apply()
    assert seen == [Dirty]


def test_an_invalidation_does_not_wait_for_a_long_stage_to_stop_serving(lab: ReceiverLab) -> None:
    receiver, _ = lab.host_receiver(at=1)
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with receiver.exclusive():
            is_held.set()
            is_over.wait(WAIT_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert is_held.wait(WAIT_S)
    caller = threading.Thread(target=receiver.invalidate)
    caller.start()
    with receiver._gate._changed:
        assert receiver._gate._changed.wait_for(lambda: receiver._gate.open_version is None, 10)
    is_over.set()
    holder.join(WAIT_S)
    caller.join(WAIT_S)
    assert isinstance(receiver.live, Dirty)


@pytest.mark.parametrize("look", ["verify", "check", "scan"])
def test_memory_that_the_model_has_left_is_no_version(look: str) -> None:
    schema = Schema.build([TensorSpec("w", DType.F32, (64,))])
    lab = ReceiverLab.with_versions(schema, 1)
    model = torch.nn.Parameter(torch.zeros(64))
    receiver = lab.receiver(partial(place_tensors, targets={"w": model}, boxes={}))
    receiver.refit()
    model.data = torch.zeros(64)
    with pytest.raises(LiveWeightsError, match="no longer where they were"):
        getattr(receiver, look)()
    with pytest.raises(NotReadyError), receiver.serving():
        raise AssertionError


def test_a_forked_child_is_refused_whatever_its_parent_held(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    with receiver.exclusive():
        child = os.fork()
        if not child:
            try:
                for ask in (*CHANGES.values(), Receiver.verify, Receiver.invalidate):
                    with pytest.raises(StoreClosedError, match="forked child"):
                        ask(receiver)
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    receiver.refit(2)
    assert lab.is_at(arrays, 2)


def test_a_rollback_that_is_interrupted_has_nothing_half_staged(
    lab: ReceiverLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    receiver.refit(2)

    def interrupted(_: ChangeStep) -> ChangeStep:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ChangeStep, "reversed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            receiver.rollback()
    receiver.refit(1)
    assert receiver.version == 1
    assert lab.is_at(arrays, 1)


@pytest.mark.parametrize("again", ["apply", "refit", "recover"])
def test_an_interrupt_between_the_last_write_and_the_callbacks_is_a_cut(
    lab: ReceiverLab, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    receiver, arrays = lab.host_receiver(at=1)
    called: list[int] = []
    receiver.on_applied(lambda ref: called.append(ref.version))
    receiver.stage(3)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LiveWeights, "resume_after", interrupted)
        with pytest.raises(KeyboardInterrupt):
            receiver.apply()
    assert not receiver.status().is_ready
    report = getattr(receiver, again)()
    assert (report.target, report.is_redo, called) == (3, True, [3])
    assert lab.is_at(arrays, 3)


def test_what_was_not_wholly_written_is_never_taken_for_whole(lab: ReceiverLab) -> None:
    receiver, arrays = lab.host_receiver(SMALL_LAUNCHES, at=1)
    receiver.stage(3)
    weights = receiver._weights
    lab.fuse.set(0, "half")
    # An interrupt in the middle of the handling of an error.
    weights.cut_by_errors = lambda *_: nullcontext()  # type: ignore[method-assign,assignment]
    with pytest.raises(Cut):
        receiver.apply()
    lab.fuse.set(None)
    del weights.cut_by_errors
    weights.settle()
    assert weights.held is None
    assert weights.tables is None
    assert receiver.refit(3).is_redo
    assert lab.is_at(arrays, 3)
