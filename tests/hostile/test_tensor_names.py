"""Tensor names are bytes and never paths: strange ones round-trip, unusable ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError, NameRefusedError, SchemaMismatchError
from weightstore.layout.tensors import check_tensor_name
from weightstore.store import WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS, tree

STRANGE = (
    "../../etc/x",
    "..",
    "/abs",
    "a/../../b",
    "line\nbreak",
    "tab\tand\rreturn",
    "A",
    "a",
    "caf\u00e9",
    "cafe\u0301",
    "CON",
    "nul.txt",
    "C:\\windows",
    "__metadata",
    " ",
    "\u202egnp.exe",
    "%2e%2e%2f",
    "$(id)",
    "x" * 1024,
    "\U0001f600" * 256,
)
REFUSED = {
    "empty": "",
    "a NUL": "a\0b",
    "a lone surrogate": "a\ud800b",
    "one byte too long": "x" * 1025,
    "one byte too long in UTF-8": "\u00e9" * 512 + "x",
    "5,000 characters": "n" * 5000,
    "the header's own key": "__metadata__",
}


def weights(offset: int) -> dict[str, NDArray[Any]]:
    """A tensor for each strange name, told apart by its values."""
    return {
        name: np.full(index + 1, 100 * index + offset, np.uint16)
        for index, name in enumerate(STRANGE)
    }


def test_strange_names_come_back_as_they_were_and_name_no_file(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        for step in range(3):
            store.put_step(step, weights(step), anchor=step == 2)
        for step in range(3):
            taken = {
                name: host.units.tolist() for name, host in store.checkout(step + 1).host.items()
            }
            assert taken == {name: array.tolist() for name, array in weights(step).items()}
            store.verify(step + 1, scan=True)
        store.export(2, tmp_path / "model")
        store.checkout_to_file(2, tmp_path / "file")
        in_file = safetensors.numpy.load_file(tmp_path / "file")
        assert {name: array.tolist() for name, array in in_file.items()} == {
            name: array.tolist() for name, array in weights(1).items()
        }
    assert {path.name for path in tmp_path.iterdir()} == {"store", "model", "file"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.safetensors"}
    for key in tree(tmp_path / "store"):
        assert not any(name.strip() in key for name in STRANGE if len(name.strip()) > 2)


def test_names_that_differ_in_bytes_alone_are_different_tensors(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path, create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, {"caf\u00e9": np.zeros(1, np.uint8), "A": np.zeros(1, np.uint8)})
        with pytest.raises(SchemaMismatchError) as caught:
            store.put_step(1, {"cafe\u0301": np.zeros(1, np.uint8), "a": np.zeros(1, np.uint8)})
        listed = str(caught.value)
        assert all(repr(name) in listed for name in ("caf\u00e9", "cafe\u0301", "A", "a"))


@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_cannot_be_stored_is_refused_and_changes_nothing(
    case: str, tmp_path: Path
) -> None:
    name = REFUSED[case]
    with pytest.raises(NameRefusedError):
        check_tensor_name(name)
    with WeightStore.open(tmp_path, create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, weights(0))
        before = tree(tmp_path)
        with pytest.raises(NameRefusedError) as caught:
            store.put_step(1, weights(0) | {name: np.zeros(1, np.uint16)})
        assert len(str(caught.value)) < 3000
        assert str(caught.value).encode()
        assert tree(tmp_path) == before
        # A stream is looked at while it is written: the log alone stays as it was.
        with pytest.raises(NameRefusedError):
            store.put_step(1, iter([*weights(0).items(), (name, np.zeros(1))]))
        assert tree(tmp_path / "log").keys() == {
            key.removeprefix("log/") for key in before if key.startswith("log/")
        }
        assert store.put_step(1, weights(0)) == 2


@pytest.mark.parametrize("name", [b"bytes", 7, None])
def test_a_name_that_is_no_text_is_refused(name: Any, tmp_path: Path) -> None:  # noqa: ANN401 -- what callers may give
    with (
        WeightStore.open(tmp_path, create=True) as store,
        pytest.raises(InputRefusedError),
    ):
        store.put_step(0, {name: np.zeros(1)})
