"""Live torch tensors of every form move from version to version where they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from weightstore.errors import LiveWeightsError, SchemaMismatchError
from weightstore.layout.boxes import Box
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.receiver.device_kernels import DeviceKernels
from weightstore.receiver.live_state import Dirty, Way
from weightstore.receiver.pool import Pool
from weightstore.receiver.receiver import Receiver
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.receiver.torch_kernels import TorchKernels
from weightstore.receiver.torch_live import checked_tensors, place_tensors, pool_maker
from weightstore.receiver.torch_targets import torch_tensor
from weightstore.testing.receiver_lab import SMALL_LAUNCHES, ReceiverLab, kinds_listed
from weightstore.testing.triton_interpreter import OneAtATime

SMALL_POOL = ReceiverSettings(pool_size_bytes=64, block_timeout_s=1.0)
SCHEMA = Schema.build(
    [
        TensorSpec("empty", DType.BF16, (0, 4)),
        TensorSpec("scalar", DType.F32, ()),
        TensorSpec("small", DType.I64, (3, 5)),
        TensorSpec("w", DType.BF16, (300, 256)),
    ],
    aliases=[Alias("w.tied", "w")],
)
Tensors = dict[str, torch.Tensor]
KERNELS = ["numpy", "torch"]
ALL_KERNELS = [*KERNELS, "triton"]


def loops(kernels: str) -> DeviceKernels | None:
    """Those of the codec, torch's operations, or Triton's kernels by its interpreter."""
    return {"numpy": lambda: None, "torch": TorchKernels, "triton": OneAtATime}[kernels]()


def zeros(spec: TensorSpec) -> torch.Tensor:
    return torch_tensor(HostTensor(spec, np.zeros(spec.unit_count, spec.dtype.unit_dtype)))


def plain() -> Tensors:
    return {spec.name: zeros(spec) for spec in SCHEMA.tensors}


def tied_apart() -> Tensors:
    return {**plain(), "w.tied": torch.zeros(300, 256, dtype=torch.bfloat16)}


def tied_together() -> Tensors:
    found = plain()
    return {**found, "w.tied": found["w"]}


def parameters() -> Tensors:
    return {
        name: torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point())
        for name, tensor in plain().items()
    }


def inference() -> Tensors:
    with torch.inference_mode():
        return {name: tensor.clone() for name, tensor in plain().items()}


def transposed() -> Tensors:
    return {
        **plain(),
        "w": torch.zeros(256, 300, dtype=torch.bfloat16).t(),
        "small": torch.zeros(5, 3, dtype=torch.int64).t(),
    }


def strided() -> Tensors:
    return {
        **plain(),
        "w": torch.zeros(600, 300, dtype=torch.bfloat16)[1::2, 7:263],
        "small": torch.zeros(3, 5, 2, dtype=torch.int64)[..., 1],
    }


def one_storage() -> Tensors:
    """All of them views of one block of bytes, of several widths."""
    behind = torch.zeros(400_000, dtype=torch.uint8)
    return {
        "empty": behind[:0].view(torch.bfloat16).view(0, 4),
        "scalar": behind[4:8].view(torch.float32).view(()),
        "small": behind[8:128].view(torch.int64).view(3, 5),
        "w": behind[130 : 130 + 153_600].view(torch.bfloat16).view(300, 256),
        "w.tied": behind[200_000 : 200_000 + 153_600].view(torch.bfloat16).view(300, 256),
    }


FORMS: dict[str, Callable[[], Tensors]] = {
    form.__name__: form
    for form in (
        plain,
        tied_apart,
        tied_together,
        parameters,
        inference,
        transposed,
        strided,
        one_storage,
    )
}


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def is_at(lab: ReceiverLab, tensors: Tensors, version: int) -> bool:
    return all(
        bits(tensor) == lab.expected(version, name).tobytes() for name, tensor in tensors.items()
    )


def attached(
    lab: ReceiverLab,
    tensors: Tensors,
    settings: ReceiverSettings | None = None,
    *,
    kernels: str = "numpy",
) -> Receiver:
    place = partial(place_tensors, targets=tensors, boxes={}, kernels=loops(kernels))
    return lab.receiver(place, settings)


@pytest.fixture(scope="module")
def lab() -> ReceiverLab:
    return ReceiverLab.with_versions(SCHEMA, 4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("settings", [SMALL_LAUNCHES, SMALL_POOL], ids=["staged", "streamed"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_every_form_takes_every_way_without_moving(
    lab: ReceiverLab,
    form: str,
    settings: ReceiverSettings,
    kernels: str,
) -> None:
    tensors = FORMS[form]()
    before = {
        name: (each.data_ptr(), each.stride(), each.requires_grad) for name, each in tensors.items()
    }
    receiver = attached(lab, tensors, settings, kernels=kernels)
    ways = []
    for version in (1, 2, 4, 3):
        ways.append(receiver.refit(version).way)
        assert is_at(lab, tensors, version)
        assert receiver.verify().version == version
    change = Way.CHANGE if settings is SMALL_LAUNCHES else Way.STREAMED
    assert ways == [Way.FULL, change, change, Way.FULL]
    assert before == {
        name: (each.data_ptr(), each.stride(), each.requires_grad) for name, each in tensors.items()
    }


def test_memory_around_views_stays(lab: ReceiverLab) -> None:
    behind = torch.full((600, 300), 7.0, dtype=torch.bfloat16)
    receiver = attached(lab, {**plain(), "w": behind[1::2, 7:263]})
    receiver.refit(1)
    receiver.refit(3)
    behind[1::2, 7:263] = 7.0
    assert bool((behind == 7.0).all())


def test_it_may_be_attached_inside_inference_mode(lab: ReceiverLab) -> None:
    with torch.inference_mode():
        tensors = {name: tensor.clone() for name, tensor in plain().items()}
        receiver = attached(lab, tensors, kernels="torch")
        receiver.refit(1)
    receiver.refit(2)
    assert is_at(lab, tensors, 2)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("kernels", ALL_KERNELS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("settings", [SMALL_LAUNCHES, SMALL_POOL], ids=["staged", "streamed"])
def test_all_patterns_of_a_16_bit_float_arrive_by_every_way(
    dtype: DType,
    kernels: str,
    transpose: bool,  # noqa: FBT001 -- a parameter of the test
    settings: ReceiverSettings,
) -> None:
    schema = Schema.build([TensorSpec("w", dtype, (256, 256))])
    lab = ReceiverLab(schema)
    patterns = np.arange(65_536, dtype=np.uint16)
    for shift in (0, 1, 32_768, 257):
        lab.put({"w": np.roll(patterns, shift)})
    tensor = zeros(schema.tensors[0])
    tensor = tensor.t() if transpose else tensor
    large = ReceiverSettings(pool_size_bytes=10_000_000, launch_size_bytes=100_000)
    used = large if settings is SMALL_LAUNCHES else settings
    receiver = attached(lab, {"w": tensor}, used, kernels=kernels)
    for version in (4, 1, 2, 3, 4):
        receiver.refit(version)
        assert bits(tensor) == lab.weights[version]["w"].tobytes()


@pytest.mark.parametrize("kernels", ALL_KERNELS)
def test_random_float_payloads_arrive(kernels: str) -> None:
    schema = Schema.build(
        [TensorSpec("a", DType.F32, (70_000,)), TensorSpec("b", DType.C64, (300,))]
    )
    lab = ReceiverLab(schema)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        lab.put(
            {
                "a": rng.integers(0, 2**32, 70_000, np.uint32),
                "b": rng.integers(0, 2**64, 300, np.uint64),
            }
        )
    tensors = {spec.name: zeros(spec) for spec in schema.tensors}
    settings = ReceiverSettings(pool_size_bytes=10_000_000)
    receiver = attached(lab, tensors, settings, kernels=kernels)
    for version in (1, 2, 4, 3):
        receiver.refit(version)
        assert is_at(lab, tensors, version)
    receiver.refit(4)
    receiver.rollback()
    assert is_at(lab, tensors, 3)


def test_a_parameter_whose_memory_was_replaced_is_noticed(lab: ReceiverLab) -> None:
    tensors = parameters()
    receiver = attached(lab, tensors)
    receiver.refit(1)
    receiver.stage(2)
    kept = tensors["w"].data
    tensors["w"].data = kept.clone()
    with pytest.raises(LiveWeightsError, match="no longer where they were") as caught:
        receiver.apply()
    assert caught.value.facts["tensors"] == ("w",)
    assert isinstance(receiver.live, Dirty)
    with pytest.raises(LiveWeightsError):
        receiver.refit(2)
    tensors["w"].data = kept
    assert receiver.refit(2).way is Way.FULL
    assert is_at(lab, tensors, 2)


def test_everything_that_does_not_fit_is_listed(lab: ReceiverLab) -> None:
    tensors = plain()
    tensors["w"] = torch.zeros(300, 255, dtype=torch.bfloat16)
    tensors["w.tied"] = tensors["w"][:, :-1]
    tensors["scalar"] = torch.zeros((), dtype=torch.float64)
    tensors["small"] = torch.zeros(3, 5, dtype=torch.int32).to_sparse()
    tensors["more"] = torch.zeros(1)
    del tensors["empty"]
    with pytest.raises(SchemaMismatchError, match="nothing was written") as caught:
        attached(lab, tensors)
    kinds = {
        "shape: 'w' ",
        "shape: 'w.tied' ",
        "in the same memory: ",
        "dtype: 'scalar' ",
        "dtype: 'small' ",
        "not a dense tensor: 'small'",
        "not in the version: 'more'",
        "missing: 'empty' ",
    }
    assert kinds_listed(caught.value, kinds) == kinds
    with pytest.raises(SchemaMismatchError, match="shape: 'w'"):
        attached(lab, {**plain(), "w": tensors["w"]})
    with pytest.raises(SchemaMismatchError, match="shape: 'small'"):
        attached(lab, {**plain(), "small": torch.zeros(5, 3, dtype=torch.int64)})


def test_tensors_in_each_others_memory_are_refused(lab: ReceiverLab) -> None:
    behind = torch.zeros(200_000, dtype=torch.bfloat16)
    tensors = {
        **plain(),
        "w": behind[:76_800].view(300, 256),
        "w.tied": behind[100:76_900].view(300, 256),
    }
    with pytest.raises(SchemaMismatchError, match="in the same memory"):
        attached(lab, tensors)


@pytest.mark.parametrize("kernels", ALL_KERNELS)
@pytest.mark.parametrize("settings", [SMALL_LAUNCHES, SMALL_POOL], ids=["staged", "streamed"])
def test_boxes_hold_their_part_of_every_version(
    lab: ReceiverLab,
    kernels: str,
    settings: ReceiverSettings,
) -> None:
    boxes = {
        "w": Box((100, 0), (100, 256)),
        "w.tied": Box((0, 64), (300, 64)),
        "small": Box((0, 0), (0, 5)),
    }
    tensors = {
        "empty": zeros(SCHEMA.tensors[0]),
        "scalar": zeros(SCHEMA.tensors[1]),
        "w": torch.zeros(100, 256, dtype=torch.bfloat16),
        "w.tied": torch.zeros(64, 300, dtype=torch.bfloat16).t(),
    }
    place = partial(place_tensors, targets=tensors, boxes=boxes, kernels=loops(kernels))
    receiver = lab.receiver(place, settings)
    for version in (1, 2, 4, 3):
        report = receiver.refit(version)
        for name in ("w", "w.tied"):
            assert bits(tensors[name]) == lab.boxed(version, name, boxes[name]).tobytes()
        assert bits(tensors["scalar"]) == lab.weights[version]["scalar"].tobytes()
        assert receiver.verify().version == version
        assert report.way is Way.FULL or report.size_bytes.skipped > 0
    other = lab.receiver(place)
    assert other.adopt(3).version == 3
    assert other.refit(4).way is Way.CHANGE


def test_a_box_changed_behind_the_receiver_is_found(lab: ReceiverLab) -> None:
    boxes = {"w": Box((0, 64), (300, 64))}
    tensors = {**plain(), "w": torch.zeros(300, 64, dtype=torch.bfloat16)}
    receiver = lab.receiver(partial(place_tensors, targets=tensors, boxes=boxes))
    receiver.refit(1)
    receiver.refit(3)
    tensors["w"].view(torch.int16)[7, 7] ^= 1
    with pytest.raises(LiveWeightsError, match="'w'"):
        receiver.verify()


def test_only_tensors_are_targets() -> None:
    tensors = plain()
    assert checked_tensors(tensors) == tensors
    with pytest.raises(SchemaMismatchError, match="not a tensor: 'w' is a list"):
        checked_tensors({**tensors, "w": [1.0]})


def test_host_tensors_stage_in_ordinary_memory() -> None:
    assert pool_maker(plain()) == Pool.of_size
