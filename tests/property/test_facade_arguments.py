"""Whatever a caller passes, a public call succeeds or raises a typed error, and never half."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weightstore.errors import WeightStoreError
from weightstore.store import WeightStore
from weightstore.testing.facade_calls import call, make_stage, parameters_of, public_methods
from weightstore.testing.store_lab import LAB_SETTINGS, other_weights, tree

# No slash and no leading tilde: what is a path must stay in the test's own folder.
WORDS = st.text(st.characters(blacklist_characters="/~"), max_size=12).filter(
    lambda text: not text.startswith("..")
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(),
    st.just(10**5000),
    st.floats(),
    st.complex_numbers(),
    WORDS,
    st.binary(max_size=4),
    st.sampled_from(
        [
            np.int64(2),
            np.float32(2),
            np.True_,
            np.array(1),
            np.array([1, 2]),
            torch.tensor(1),
            torch.ones(2),
            object(),
            Path("file"),
            Path("a\0b"),
            range(3),
            "latest",
            "tag:best",
            "main@1",
            "unchanged",
        ]
    ),
)
KEYS = st.one_of(st.none(), st.integers(-1, 3), WORDS, st.just("w"))
JUNK = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.tuples(SCALARS, SCALARS),
    st.lists(st.tuples(WORDS, SCALARS), max_size=2),
    st.dictionaries(KEYS, SCALARS, max_size=2),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("stage") / "base"
    make_stage(base)
    return base


@contextlib.contextmanager
def stage(made: Path) -> Iterator[Path]:
    """A copy of a stage, with the working directory in its empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        shutil.copytree(made, base)
        with contextlib.chdir(base / "here"):
            yield base


@pytest.mark.parametrize("method", public_methods())
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_a_call_with_junk_succeeds_or_is_refused_without_a_trace(
    made: Path, method: str, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(parameters_of(method)))
    junk = data.draw(JUNK)
    with stage(made) as base, WeightStore.open(base / "store", settings=LAB_SETTINGS) as store:
        if method == "put_step":
            # The first put claims the store; what its tensors are is looked at after that.
            store.put_step(2, other_weights(2))
        before = tree(base)
        refused = refusal(lambda: call(store, method, {name: junk}))
        if refused is not None:
            assert refused.do
            assert str(refused)
            assert list((base / "here").iterdir()) == []
            if is_a_stream(name, junk):
                # Its items are known only as it runs: a claim or a receipt may be left.
                assert len(list(store.versions())) == 2
            else:
                assert tree(base) == before
        store.verify(1)


def refusal(work: Callable[[], None]) -> WeightStoreError | None:
    """The typed error that a call ends with; any other error is the test's."""
    try:
        work()
    except WeightStoreError as error:
        return error
    return None


def is_a_stream(name: str, junk: object) -> bool:
    """Whether junk is taken for a stream of tensors."""
    return name in {"resume", "tensors"} and not isinstance(junk, dict)
