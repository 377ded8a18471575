"""Tensors in one memory are found exactly, and tensors that lie apart never accused."""

from __future__ import annotations

import itertools

import pytest
import torch

from weightstore.receiver.memory_overlaps import Holder, overlaps


def found(*tensors: torch.Tensor, owners: str = "abcdef") -> list[str]:
    """Problems of tensors that are named after their place."""
    named = zip("abcdef", owners, tensors, strict=False)
    return list(overlaps(Holder(name, owner, tensor) for name, owner, tensor in named))


def buffer() -> torch.Tensor:
    """A 6 by 8 matrix."""
    return torch.zeros((6, 8))


def test_tensors_of_their_own_do_not_overlap() -> None:
    assert found(buffer(), buffer().t(), torch.zeros(0), torch.zeros(())) == []


def test_views_that_lie_apart_do_not_overlap() -> None:
    one = buffer()
    assert found(one[:3], one[3:]) == []
    assert found(one[:, :3], one[:, 3:]) == []
    assert found(one[::2], one[1::2]) == []
    assert found(one[:, ::2].t(), one[:, 1::2]) == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_views_of_the_same_elements_overlap(order: tuple[int, ...]) -> None:
    one = buffer()
    views = (one[:4, :5], one[4:, :], one[3:5, 4:])
    problems = found(*(views[index] for index in order))
    assert len(problems) == 2


def test_an_overlap_names_both() -> None:
    one = buffer()
    assert found(one, buffer(), one[5:]) == ["in the same memory: 'a' and 'c'"]
    assert found(one.t(), one) == ["in the same memory: 'a' and 'b'"]


def test_bytes_count_and_not_addresses_alone() -> None:
    raw = torch.zeros(16, dtype=torch.uint8)
    halves = raw.view(torch.float16)
    assert found(raw[0:2].view(torch.float16), halves[1:]) == []
    assert found(raw[1:4], halves[1:3]) == ["in the same memory: 'a' and 'b'"]
    assert found(raw[0:2], halves[1:3]) == []


def test_the_same_memory_of_one_owner_is_no_overlap() -> None:
    one = buffer()
    assert found(one, one, one.view(6, 1, 8).squeeze(1), owners="xxx") == []
    assert found(one.t(), one.t(), owners="xx") == []
    assert found(one, one[:3], owners="xx") == ["in the same memory: 'b' and 'a'"]


def test_a_tensor_with_several_elements_in_one_place_is_found() -> None:
    assert found(torch.zeros(1).expand(5)) == ["several elements in one place: 'a'"]
    assert found(torch.zeros(6).as_strided((3, 3), (1, 1))) == [
        "several elements in one place: 'a'"
    ]
    assert found(torch.zeros(8).as_strided((2, 2, 2), (2, 2, 3))) == [
        "several elements in one place: 'a'"
    ]
    assert found(torch.zeros(4).as_strided((2, 2), (1, 2))) == []


def test_strides_of_dims_that_never_move_say_nothing() -> None:
    one = buffer()
    claimed = one.as_strided((6, 1, 8), (8, 777, 1))
    assert found(claimed, one[:0]) == []
    assert found(claimed, one, owners="xx") == []
