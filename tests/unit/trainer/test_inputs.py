"""What a caller may give a put, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError, NameRefusedError, TensorRefusedError
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.trainer import torch_tensors
from weightstore.trainer.inputs import (
    MappedInputs,
    StreamedInputs,
    TensorsInMemory,
    device_fence,
    open_tensors,
)


def mapped(source: TensorsInMemory, *, name_rules: tuple[str, ...] = ()) -> MappedInputs:
    inputs = open_tensors(source, name_rules=name_rules)
    assert isinstance(inputs, MappedInputs)
    return inputs


def host(name: str, units: NDArray[np.uint16]) -> HostTensor:
    return HostTensor(TensorSpec(name, DType.BF16, units.shape), units)


def test_a_host_tensor_is_read_without_a_copy() -> None:
    units = np.arange(10, dtype=np.uint16)
    found = mapped({"w": host("other name", units)}).tensors["w"]
    part = found.read(3, 4)
    assert found.spec == TensorSpec("w", DType.BF16, (10,))
    assert part.tolist() == [3, 4, 5, 6]
    assert np.shares_memory(part, units)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("?", DType.BOOL),
        ("u1", DType.U8),
        ("i2", DType.I16),
        ("<f2", DType.F16),
        ("<f4", DType.F32),
        ("<f8", DType.F64),
        ("<c8", DType.C64),
        ("<u8", DType.U64),
    ],
)
def test_numpy_arrays_are_taken_as_their_bits(dtype: str, expected: DType) -> None:
    array = np.arange(6).astype(dtype).reshape(2, 3)
    found = mapped({"w": array}).tensors["w"]
    assert found.spec == TensorSpec("w", expected, (2, 3))
    assert found.read(0, 6).tobytes() == array.tobytes()


def test_a_transposed_array_is_read_in_logical_order() -> None:
    array = np.arange(12, dtype=np.uint32).reshape(3, 4).T
    found = mapped({"w": array}).tensors["w"]
    parts = [found.read(first, 5 if first < 10 else 2) for first in (0, 5, 10)]
    assert np.concatenate(parts).tolist() == array.reshape(-1).tolist()


@pytest.mark.parametrize("dtype", [">u2", "c16", "U3", "O", "M8[s]"])
def test_numpy_dtypes_that_cannot_be_stored_are_refused_by_name(dtype: str) -> None:
    array = np.zeros(3, dtype=dtype)
    with pytest.raises(TensorRefusedError, match=r"'layer\.w'"):
        open_tensors({"layer.w": array})


@pytest.mark.parametrize("source", ["a text", b"bytes", 7, None])
def test_what_is_no_source_is_refused(source: object) -> None:
    with pytest.raises(InputRefusedError, match="no source of tensors"):
        open_tensors(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("entry", [None, 1.5, [1, 2], "text"])
def test_an_entry_that_is_no_tensor_is_refused_by_name(entry: object) -> None:
    with pytest.raises(InputRefusedError, match="_extra_state"):
        open_tensors({"layer._extra_state": entry})  # type: ignore[arg-type]


@pytest.mark.parametrize("item", [("w",), "w", ("w", 1, 2), (1, np.zeros(1, np.uint8))])
def test_a_stream_gives_pairs(item: object) -> None:
    inputs = open_tensors(iter([item]))  # type: ignore[arg-type]
    assert isinstance(inputs, StreamedInputs)
    with pytest.raises(InputRefusedError, match="pair"):
        next(inputs.tensors)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1025])
def test_names_that_cannot_be_stored_are_refused(name: str) -> None:
    with pytest.raises(NameRefusedError):
        open_tensors({name: np.zeros(1, np.uint8)})


@pytest.mark.parametrize(
    "name", ["../../etc/x", "/abs", "a\nb", "CON", "e\u0301", "\u00e9", "x" * 1024]
)
def test_all_other_names_are_kept_as_they_are(name: str) -> None:
    assert list(mapped({name: np.zeros(1, np.uint8)}).tensors) == [name]


@pytest.mark.parametrize(
    "name",
    [
        "module.w",
        "_orig_mod.w",
        "layers.0._fsdp_wrapped_module.w",
        "base_model.model.w",
        "layers.q.base_layer.weight",
    ],
)
def test_names_of_a_wrapped_model_are_refused_without_a_rule(name: str) -> None:
    tensor = np.zeros(1, np.uint8)
    for source in ({name: tensor}, iter([(name, tensor)])):
        with pytest.raises(NameRefusedError, match=name):
            list(open_tensors(source).tensors)


def test_a_rule_takes_a_wrapper_out_of_names() -> None:
    tensors = {"module.a": np.zeros(1, np.uint8), "module.b": np.ones(1, np.uint8)}
    assert set(mapped(tensors, name_rules=("module.",)).tensors) == {"a", "b"}
    streamed = open_tensors(iter(tensors.items()), name_rules=("module.",))
    assert [found.spec.name for found in streamed.tensors] == ["a", "b"]  # type: ignore[union-attr]


def test_two_names_that_become_one_are_refused() -> None:
    tensors = {"module.a": np.zeros(1, np.uint8), "a": np.ones(1, np.uint8)}
    with pytest.raises(NameRefusedError, match="both become"):
        open_tensors(tensors, name_rules=("module.",))
    streamed = open_tensors(iter(tensors.items()), name_rules=("module.",))
    with pytest.raises(NameRefusedError, match="both become"):
        list(streamed.tensors)


def test_a_stream_is_read_one_tensor_at_a_time() -> None:
    taken = 0

    def export() -> Iterator[tuple[str, NDArray[np.uint8]]]:
        nonlocal taken
        for name in "abc":
            taken += 1
            yield name, np.zeros(1, np.uint8)

    inputs = open_tensors(export())
    assert isinstance(inputs, StreamedInputs)
    next(inputs.tensors)
    assert taken == 1


def test_the_same_memory_read_the_same_way_is_seen_as_tied() -> None:
    shared = np.arange(8, dtype=np.uint16)
    given: dict[str, HostTensor | NDArray[np.int16]] = {
        "a": host("a", shared),
        "b": host("b", shared),
        "c": host("c", shared.copy()),
        "half": host("half", shared[:4]),
        "other dtype": shared.view(np.int16),
        "empty": host("empty", shared[:0]),
    }
    found = mapped(given).tensors
    assert found["a"].storage == found["b"].storage
    assert found["empty"].storage is None
    places = [found[name].storage for name in ("a", "c", "half", "other dtype")]
    assert len(set(places)) == len(places)


def test_tensors_in_host_memory_need_no_device_to_be_awaited() -> None:
    assert device_fence([np.zeros(3), torch.zeros(3), None]) is None


def test_each_device_of_the_given_tensors_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = []

    class Event:
        def synchronize(self) -> None:
            awaited.append(self)

    class OnDevice:
        is_cuda = True

    given = [OnDevice(), torch.zeros(3)]
    events = [Event(), Event()]
    seen: list[object] = []

    def record_events(tensors: list[object]) -> list[Event]:
        seen.extend(tensors)
        return events

    monkeypatch.setattr(torch_tensors, "record_events", record_events)
    wait = device_fence(given)
    assert wait is not None
    assert (seen, awaited) == (given[:1], [])
    wait()
    assert awaited == events
