"""Every error says what to do next, and is the same on the other side of a process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from weightstore.errors import (
    WeightStoreError,
)


def tree(root: type[WeightStoreError] = WeightStoreError) -> Iterator[type[WeightStoreError]]:
    yield root
    for each in root.__subclasses__():
        yield from tree(each)


KINDS = tuple(tree())


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_what_to_do_next(kind: type[WeightStoreError]) -> None:
    error = kind("it happened")
    assert error.do == kind.default_do
    assert error.do.endswith(".")
    assert str(error) == f"it happened\n  -> {error.do}"
    assert kind("it happened", do="Do this.").do == "Do this."


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("do", ["", "Do this."])
def test_errors_pickle_with_advice_and_facts(kind: type[WeightStoreError], do: str) -> None:
    error = kind("it happened", do=do, facts={"version": 3})
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.message, again.do, again.facts) == (error.message, error.do, error.facts)


def test_codes_are_never_shared() -> None:
    assert len({kind.code for kind in KINDS}) == len(KINDS)
