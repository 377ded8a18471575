"""Live torch tensors as targets: every form is written bit for bit, or refused before a write."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from weightstore.errors import DTypeRefusedError, SchemaMismatchError, TargetUnusableError
from weightstore.layout.dtypes import TORCH_NAMES, DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import HostTensor, TensorSpec, Units
from weightstore.receiver.torch_targets import TorchTargets, plan_targets, torch_tensor

DTYPES = sorted(TORCH_NAMES, key=lambda dtype: dtype.value)


def schema_of(*specs: TensorSpec, aliases: tuple[Alias, ...] = ()) -> Schema:
    return Schema.build(specs, aliases=aliases)


def random_units(spec: TensorSpec, seed: int = 0) -> Units:
    """Uniform bits: NaN payloads of every kind among them."""
    top = 2 if spec.dtype is DType.BOOL else 2 ** (8 * spec.dtype.unit_size_bytes)
    rng = np.random.default_rng(seed)
    units: Units = rng.integers(0, top, spec.unit_count, spec.dtype.unit_dtype)
    return units


def fill(targets: TorchTargets, bits: dict[str, Units]) -> None:
    """What a checkout does: fill each array, then finish."""
    for name, units in bits.items():
        targets.units[name][:] = units
    targets.finish()


def raw(tensor: torch.Tensor) -> bytes:
    """Row-major bytes."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def empty_tensor(spec: TensorSpec) -> torch.Tensor:
    """Zeros of a spec."""
    return torch_tensor(HostTensor(spec, np.zeros(spec.unit_count, spec.dtype.unit_dtype)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("shape", [(4, 6), (2,), (0, 2), ()])
def test_every_dtype_and_shape_is_written_in_place(dtype: DType, shape: tuple[int, ...]) -> None:
    if dtype.bit_count < 8 and not shape:
        return
    spec = TensorSpec("w", dtype, shape)
    live = empty_tensor(spec)
    pointer = live.data_ptr()
    units = random_units(spec)
    targets = plan_targets(schema_of(spec), {"w": live})
    assert targets.staged == ()
    fill(targets, {"w": units})
    assert raw(live) == units.tobytes()
    assert live.data_ptr() == pointer


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.value)
def test_every_dtype_is_written_through_a_transposed_view(dtype: DType) -> None:
    spec = TensorSpec("w", dtype, (4, 6))
    width = 6 * dtype.bit_count // 8 if dtype.bit_count < 8 else 6
    behind = empty_tensor(TensorSpec("w", dtype, (width, 8 if dtype.bit_count < 8 else 4)))
    live = behind.t()
    assert not live.is_contiguous()
    units = random_units(spec)
    fill(plan_targets(schema_of(spec), {"w": live}), {"w": units})
    assert raw(live) == units.tobytes()


FORMS: dict[str, Callable[[], torch.Tensor]] = {
    "channels_last": lambda: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every other row": lambda: torch.zeros(4, 3, 4, 5)[::2],
    "a narrow view": lambda: torch.zeros(2, 3, 4, 9)[..., 2:7],
    "an offset view": lambda: torch.zeros(200)[7:127].view(2, 3, 4, 5),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(2, 3, 4, 5)),
    "a leaf with a gradient": lambda: torch.zeros(2, 3, 4, 5, requires_grad=True),
    "part of a graph": lambda: torch.zeros(2, 3, 4, 5, requires_grad=True) * 1,
    "strides of size-1 dims": lambda: torch.zeros(120).as_strided((2, 3, 4, 5), (60, 20, 5, 1)),
    "misaligned": lambda: torch.from_numpy(
        np.frombuffer(bytearray(483), np.uint8)[3:].view(np.float32)
    ).view(2, 3, 4, 5),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inference", [False, True])
def test_every_form_of_a_tensor_is_written_where_it_is(form: str, inference: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    with torch.inference_mode(inference):
        live = FORMS[form]()
    before = (live.data_ptr(), live.stride(), live.requires_grad)
    spec = TensorSpec("w", DType.F32, (2, 3, 4, 5))
    units = random_units(spec)
    fill(plan_targets(schema_of(spec), {"w": live}), {"w": units})
    assert raw(live) == units.tobytes()
    assert (live.data_ptr(), live.stride(), live.requires_grad) == before


def test_memory_around_a_view_stays() -> None:
    behind = torch.full((4, 9), 7.0)
    spec = TensorSpec("w", DType.F32, (4, 3))
    fill(plan_targets(schema_of(spec), {"w": behind[:, 3:6]}), {"w": random_units(spec)})
    assert bool((behind[:, :3] == 7).all())
    assert bool((behind[:, 6:] == 7).all())


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
@pytest.mark.parametrize("transposed", [False, True])
def test_all_patterns_of_a_16_bit_float_arrive(dtype: DType, transposed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    spec = TensorSpec("w", dtype, (256, 256))
    live = empty_tensor(spec)
    live = live.t() if transposed else live
    units = np.arange(65_536, dtype=np.uint16)
    fill(plan_targets(schema_of(spec), {"w": live}), {"w": units})
    assert raw(live) == units.tobytes()


TIED = schema_of(
    TensorSpec("embed", DType.BF16, (5, 4)),
    TensorSpec("norm", DType.BF16, (4,)),
    aliases=(Alias("head", "embed"),),
)


def tied_forms() -> dict[str, dict[str, torch.Tensor]]:
    """Ways to hold a tied pair."""
    shared = torch.zeros((5, 4), dtype=torch.bfloat16)
    return {
        "shared": {"embed": shared, "head": shared},
        "copies": {"embed": shared.clone(), "head": shared.clone()},
        "copies, alias first": {"head": shared.clone(), "embed": shared.clone()},
        "the alias alone": {"head": shared.clone()},
        "the target alone": {"embed": shared.clone()},
        "a transposed copy": {"embed": shared.clone(), "head": shared.t().contiguous().t()},
        "a transposed copy first": {"head": shared.t().contiguous().t(), "embed": shared.clone()},
        "both transposed": {
            "embed": shared.t().contiguous().t(),
            "head": shared.t().contiguous().t(),
        },
    }


@pytest.mark.parametrize("form", tied_forms())
def test_tied_names_all_show_the_new_bits(form: str) -> None:
    live = tied_forms()[form] | {"norm": torch.zeros(4, dtype=torch.bfloat16)}
    bits = {spec.name: random_units(spec) for spec in TIED.tensors}
    fill(plan_targets(TIED, live), bits)
    for name, tensor in live.items():
        assert raw(tensor) == bits["embed" if name == "head" else name].tobytes(), name


def test_every_mismatch_is_listed_and_nothing_written() -> None:
    schema = schema_of(*(TensorSpec(name, DType.F32, (2, 3)) for name in "abcdefghijk"))
    good = torch.ones(2, 3)
    live = {
        "a": good,
        "b": torch.ones(3, 2),
        "c": torch.ones(2, 3, dtype=torch.bfloat16),
        "d": torch.ones(3, dtype=torch.float64),
        "e": torch.ones(2, 3, device="meta"),
        "f": torch.ones(2, 3).to_sparse(),
        "g": np.ones((2, 3), np.float32),
        "h": torch.ones(1, 3).expand(2, 3),
        "i": good,
        "unknown": torch.ones(1),
    }
    with pytest.raises(SchemaMismatchError) as caught:
        plan_targets(schema, live)  # type: ignore[arg-type] # a NumPy array is what is tested
    for line in (
        "shape: 'b' is (3, 2), the version has (2, 3)",
        "dtype: 'c' is bfloat16, the version has float32",
        "dtype: 'd' is float64, the version has float32",
        "shape: 'd' is (3,), the version has (2, 3)",
        "on the meta device: 'e'",
        "not a dense tensor: 'f'",
        "not a tensor: 'g' is a ndarray",
        "several elements in one place: 'h'",
        "in the same memory: 'a' and 'i'",
        "missing: 'j'",
        "missing: 'k'",
        "not in the version: 'unknown'",
    ):
        assert line in caught.value.message
    assert "nothing was written" in caught.value.message
    assert bool((good == 1).all())


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(3, dtype=torch.complex64).conj(), "conjugated"),
        (torch.ones(3, dtype=torch.complex64).conj().imag, "negated"),
        (torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged), "dense"),
    ],
)
def test_forms_that_cannot_be_written_are_refused(tensor: torch.Tensor, words: str) -> None:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = next(dtype for dtype, torch_name in TORCH_NAMES.items() if torch_name == name)
    with pytest.raises(SchemaMismatchError, match=words):
        plan_targets(schema_of(TensorSpec("w", dtype, (3,))), {"w": tensor})


def test_a_long_list_of_mismatches_is_cut_in_the_message_and_whole_in_the_facts() -> None:
    schema = schema_of(*(TensorSpec(f"layer.{i}", DType.F32, (1,)) for i in range(200)))
    with pytest.raises(SchemaMismatchError, match="and 150 more") as caught:
        plan_targets(schema, {})
    assert len(caught.value.facts["problems"]) == 200  # type: ignore[arg-type] # a tuple here


def test_a_copy_that_fails_says_that_the_target_is_unusable() -> None:
    spec = TensorSpec("w", DType.F32, (2, 3))
    broken = TorchTargets({}, (("w", random_units(spec), torch.ones(1, 3).expand(2, 3)),))
    with pytest.raises(TargetUnusableError, match="'w'"):
        broken.finish()


def test_a_dtype_that_torch_lacks_is_refused() -> None:
    spec = TensorSpec("w", DType.F6_E3M2, (4,))
    with pytest.raises(DTypeRefusedError, match="F6_E3M2"):
        torch_tensor(HostTensor(spec, np.zeros(3, np.uint8)))
    with pytest.raises(SchemaMismatchError, match="F6_E3M2"):
        plan_targets(schema_of(spec), {"w": torch.zeros(3, dtype=torch.uint8)})
