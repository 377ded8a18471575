"""Changes that are found where the tensors are: the same versions, from copies that never lie.

On this machine "the device" is host memory that torch's operations and Triton's kernels are told
to compare; what goes over the wire must be, byte for byte, what the host's pass gives.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.errors import CommitUnknownError, InputRefusedError, UnavailableError
from weightstore.format.keys import LOG_PREFIX
from weightstore.layout.dtypes import DType
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.device_kernels_contract import bits_of
from weightstore.testing.faults import Call, Fault, LossyBlobs, Method
from weightstore.testing.tensors import hard_units
from weightstore.testing.trainer_lab import TrainerLab, lab_settings
from weightstore.testing.triton_interpreter import interpret_triton
from weightstore.trainer.detect_kernels import DetectKernels, DeviceChanges, TorchDetectKernels
from weightstore.trainer.device_baseline import DeviceBaseline, is_on_device
from weightstore.trainer.inputs import InputTensor
from weightstore.trainer.torch_tensors import torch_input

LARGE = 150_000
"""Units of a tensor of three pieces; smaller tensors go into bundles, by the host."""
FLOATS = {DType.U8: torch.uint8, DType.BF16: torch.bfloat16, DType.F32: torch.float32}
SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32}

State = dict[str, torch.Tensor]


def tensor_of(units: np.ndarray[Any, Any], dtype: DType = DType.BF16) -> torch.Tensor:
    signed = torch.from_numpy(units.astype(dtype.unit_dtype).view(SIGNED[units.itemsize]).copy())
    return signed.view(FLOATS[dtype])


def state_of(seed: int, dtype: DType = DType.BF16) -> State:
    rng = np.random.default_rng(seed)
    values = hard_units(dtype)
    return {
        "bias": tensor_of(rng.choice(values, 17), dtype),
        "turned": tensor_of(rng.choice(values, 200 * 400), dtype).view(200, 400).T,
        "weight": tensor_of(rng.choice(values, LARGE), dtype),
    }


def integers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def flip(state: State, name: str, places: slice, bit: int = 1) -> None:
    """Change bits of a tensor in place."""
    integers(state[name])[places] ^= bit


def raw(state: State) -> dict[str, bytes]:
    return {name: bits_of(integers(one).contiguous()).tobytes() for name, one in state.items()}


def on_torch(
    kernels_for: Callable[[torch.device], DetectKernels] = lambda _: TorchDetectKernels(),
) -> DeviceBaseline:
    return DeviceBaseline(lambda _: True, kernels_for)


def on_triton() -> DeviceBaseline:
    interpret_triton()
    from weightstore.trainer.triton_detect import (  # noqa: PLC0415 -- in its mode
        TritonDetectKernels,
    )

    return on_torch(lambda _: TritonDetectKernels())


@pytest.fixture
def lab() -> TrainerLab:
    return TrainerLab(MemoryBlobStore()).create()


def blobs_after(states: list[State], device: DeviceBaseline | None) -> dict[str, bytes]:
    """Every object of a store that got these states."""
    # One thread, since Triton's interpreter runs in one alone.
    chosen = lab_settings(full_after_chain_count=2, thread_count=1)
    lab = TrainerLab(MemoryBlobStore(), settings=chosen).create()
    with lab.trainer(device=device) as trainer:
        for step, state in enumerate(states):
            trainer.put_step(step, state).result()
    listed = [one.key for one in lab.blobs.list("")]
    return {key: lab.blobs.get(key, max_size_bytes=1 << 30) for key in listed}


def stepped(state: State, ratio: float, seed: int) -> State:
    """A copy in which about this share of each tensor's units is one larger."""
    rng = np.random.default_rng(seed)
    after = {name: one.clone() for name, one in state.items()}
    for tensor in after.values():
        integers(tensor)[torch.from_numpy(rng.random(tuple(tensor.shape)) < ratio)] += 1
    return after


@settings(max_examples=12)
@given(
    dtype=st.sampled_from(list(FLOATS)),
    ratios=st.lists(st.sampled_from([0.0, 0.0005, 0.02, 0.6, 1.0]), min_size=2, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_wire_has_the_same_bytes(dtype: DType, ratios: list[float], seed: int) -> None:
    states = [state_of(seed, dtype)]
    for number, ratio in enumerate(ratios):
        states.append(stepped(states[-1], ratio, seed + number))
    assert blobs_after(states, on_torch()) == blobs_after(states, None)


def test_the_wire_has_the_same_bytes_by_triton() -> None:
    states = [state_of(0)]
    for number, ratio in enumerate((0.01, 0.7, 0.0)):
        states.append(stepped(states[-1], ratio, number))
    assert blobs_after(states, on_triton()) == blobs_after(states, None)


def test_a_put_tells_of_every_byte_that_is_compared_on_the_device(lab: TrainerLab) -> None:
    state, told = state_of(0), []
    with lab.trainer(device=on_torch()) as trainer:
        trainer.put_step(0, state).result()
        integers(state["weight"])[::100] += 1
        trainer.put_step(1, state, progress=lambda *each: told.append(each)).result()
    size_bytes = sum(one.nbytes for one in state.values())
    assert told[-1] == ("read", size_bytes, size_bytes)
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})


def test_of_a_step_only_what_changed_is_read_to_the_host(lab: TrainerLab) -> None:
    tensor = state_of(0)["weight"]

    def unread(first: int, count: int) -> Any:  # noqa: ANN401 -- never returns
        raise AssertionError((first, count))

    with lab.trainer(device=on_torch()) as trainer:
        trainer.put_step(0, {"weight": tensor}).result()
        integers(tensor)[::100] += 1
        given_tensor = torch_input("weight", tensor)
        spied = InputTensor(
            given_tensor.spec, unread, given_tensor.find_storage, given_tensor.device_bits
        )
        report = trainer.put_step(1, {"weight": spied}).report()  # type: ignore[arg-type]
    assert report.changed_count == LARGE // 100
    assert lab.bits() == raw({"weight": tensor})


def test_weights_may_change_after_captured(lab: TrainerLab) -> None:
    state = state_of(1)
    with lab.trainer(device=on_torch()) as trainer:
        trainer.put_step(0, state).captured()
        for step in range(1, 4):
            flip(state, "weight", slice(step, None, 999))
            flip(state, "turned", slice(3, 9))
            expected = raw(state)
            pending = trainer.put_step(step, state, anchor=step == 2)
            pending.captured()
            flip(state, "weight", slice(None), 1 << 14)
            flip(state, "bias", slice(None))
            assert pending.result() == step + 1
            assert lab.bits() == expected


def test_a_put_that_failed_moves_no_copy() -> None:
    fault: list[Fault] = []

    def on_pack(call: Call) -> Fault | None:
        return fault[0] if fault and call.method is Method.PUT and "packs/" in call.key else None

    lab = TrainerLab(LossyBlobs(MemoryBlobStore(), on_pack)).create()
    state = state_of(2)
    with lab.trainer(device=on_torch()) as trainer:
        trainer.put_step(0, state).result()
        flip(state, "weight", slice(5, 50))
        fault.append(Fault.UNAVAILABLE)
        with pytest.raises(UnavailableError):
            trainer.put_step(1, state).result()
        fault.clear()
        flip(state, "weight", slice(100, 110))
        assert trainer.put_step(1, state).report().changed_count == 55
        assert trainer.put_step(2, state).report().changed_count == 0
    assert lab.bits() == raw(state)


def test_a_verdict_that_comes_late_moves_the_copies() -> None:
    is_deaf, was_put = False, False

    def on_record(call: Call) -> Fault | None:
        nonlocal was_put
        if not is_deaf or not call.key.startswith(LOG_PREFIX):
            return None
        if call.method is Method.PUT and not was_put:
            was_put = True
            return Fault.LOST_ANSWER
        return Fault.UNAVAILABLE if was_put else None

    lab = TrainerLab(LossyBlobs(MemoryBlobStore(), on_record)).create()
    state = state_of(3)
    with lab.trainer(device=on_torch()) as trainer:
        trainer.put_step(0, state).result()
        flip(state, "weight", slice(5, 50))
        is_deaf = True
        with pytest.raises(CommitUnknownError):
            trainer.put_step(1, state).result()
        is_deaf = False
        flip(state, "weight", slice(60, 64))
        assert trainer.put_step(2, state).report().changed_count == 4
    assert lab.bits() == raw(state)


def test_tensors_that_come_and_go_between_devices_leave_no_stale_copy(lab: TrainerLab) -> None:
    is_here = True
    device = DeviceBaseline(lambda _: is_here, lambda _: TorchDetectKernels())
    state = state_of(4)
    with lab.trainer(device=device) as trainer:
        for step in range(8):
            is_here = step % 3 != 2
            flip(state, "weight", slice(step, LARGE, 1000 + step))
            trainer.put_step(step, state).result()
            assert lab.bits() == raw(state)


@pytest.mark.parametrize("between", ["by the host", "in full"])
def test_what_is_undone_after_a_step_without_copies_is_a_change(
    lab: TrainerLab, between: str
) -> None:
    is_here = True
    device = DeviceBaseline(lambda _: is_here, lambda _: TorchDetectKernels())
    state = state_of(4)
    with lab.trainer(device=device) as trainer:
        for number in range(4):
            is_here = number != 2 or between == "in full"
            # The last step gives the bits again that a copy of the second step holds.
            flip(state, "weight", slice(0, 900 if number >= 2 else 0))
            full = number == 2 and between == "in full"
            report = trainer.put_step(number, state, new_schema=full).report()
            assert lab.bits() == raw(state)
    assert report.changed_count == 900


class FullDevice:
    """Kernels of a device that has no room at some calls."""

    name = "full"

    def __init__(self, *calls: int) -> None:
        self.calls = calls
        self.count = 0

    def find_changes(self, old: torch.Tensor, new: torch.Tensor, /) -> DeviceChanges:
        self.count += 1
        if self.count in self.calls:
            raise torch.OutOfMemoryError
        return TorchDetectKernels().find_changes(old, new)


def test_without_room_on_the_device_the_host_compares(lab: TrainerLab) -> None:
    kernels = FullDevice(2, 8, 9)
    state = state_of(5)
    with lab.trainer(device=on_torch(lambda _: kernels)) as trainer:
        for step in range(6):
            flip(state, "weight", slice(step, LARGE, 1000))
            report = trainer.put_step(step, state).report()
            assert step == 0 or report.changed_count == LARGE // 1000
            assert lab.bits() == raw(state)
    assert kernels.count > max(kernels.calls)


def test_a_copy_that_somebody_wrote_is_not_believed(lab: TrainerLab) -> None:
    device = on_torch()
    state = state_of(6)
    with lab.trainer(device=device) as trainer:
        for step in range(4):
            flip(state, "weight", slice(step, LARGE, 1000))
            trainer.put_step(step, state).result()
            assert lab.bits() == raw(state)
            for copy in device._copies.values():
                copy[::77] ^= 2


class Hasty:
    """Kernels that read weights which somebody is writing."""

    name = "hasty"

    def find_changes(self, old: torch.Tensor, new: torch.Tensor, /) -> DeviceChanges:
        found = TorchDetectKernels().find_changes(old, new)
        found.positions[-1:] = 0
        return found


def test_weights_written_while_they_are_read_are_refused(lab: TrainerLab) -> None:
    kernels: list[DetectKernels] = [Hasty()]
    state = state_of(7)
    with lab.trainer(device=on_torch(lambda _: kernels[0])) as trainer:
        trainer.put_step(0, state).result()
        flip(state, "weight", slice(3, 9))
        pending = trainer.put_step(1, state)
        with pytest.raises(InputRefusedError, match="'weight' was written while"):
            pending.result()
        kernels[0] = TorchDetectKernels()
        trainer.put_step(1, state).result()
    assert lab.bits() == raw(state)


def test_its_cost_is_said_once(lab: TrainerLab, caplog: pytest.LogCaptureFixture) -> None:
    device = on_torch()
    state = state_of(8)
    with (
        caplog.at_level(logging.INFO, "weightstore.trainer"),
        lab.trainer(device=device) as trainer,
    ):
        reports = [trainer.put_step(step, state).report() for step in range(3)]
    expected = 2 * (LARGE + 200 * 400)
    assert device.size_bytes == expected
    # The first put compares with nothing, the third one is a repeat of no change.
    assert [report.device_bytes for report in reports] == [0, expected, expected]
    told = [one.getMessage() for one in caplog.records if one.name == "weightstore.trainer"]
    assert len(told) == 1
    assert f"{expected} bytes of device memory for 2 tensors" in told[0]


def test_what_must_be_cast_is_compared_on_the_host(lab: TrainerLab) -> None:
    device = on_torch()
    wide = torch.randn(LARGE, generator=torch.Generator().manual_seed(9))
    with lab.trainer(device=device, cast={"*": "bf16"}) as trainer:
        trainer.put_step(0, {"w": wide}).result()
        wide[::1000] += 1
        trainer.put_step(1, {"w": wide}).result()
    assert device.size_bytes == 0
    assert lab.bits() == raw({"w": wide.to(torch.bfloat16)})


@pytest.fixture
def by_setting() -> TrainerLab:
    return TrainerLab(MemoryBlobStore(), settings=lab_settings(detect_on="device")).create()


def test_the_setting_leaves_tensors_in_host_memory_to_the_host(by_setting: TrainerLab) -> None:
    state = state_of(10)
    with by_setting.trainer() as trainer:
        for step in range(2):
            flip(state, "weight", slice(step, LARGE, 1000))
            trainer.put_step(step, state).result()
    assert by_setting.bits() == raw(state)
    assert not is_on_device(torch.device("cpu"))
    assert is_on_device(torch.device("cuda", 1))


def test_the_setting_needs_torch(by_setting: TrainerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weightstore.trainer.device_baseline", None)
    with pytest.raises(InputRefusedError, match="torch cannot be imported"):
        by_setting.trainer()
