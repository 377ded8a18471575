"""An export that is killed leaves a partial, which the next one to the same place removes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weightstore.errors import InputRefusedError
from weightstore.store import WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS, other_weights, tree

# Halts when the weights are written and have no name yet.
_EXPORTER = """
import sys
from pathlib import Path
from weightstore.history import export
from weightstore.store import WeightStore

def halt(*_):
    print("halted", flush=True)
    sys.stdin.readline()

export.link_durably = export.replace_durably = halt
store = WeightStore.open(sys.argv[1])
getattr(store, sys.argv[2])("latest", sys.argv[3])
"""
METHODS = ["export", "checkout_to_file"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(0, other_weights(0))
        store.put_step(1, other_weights(1))
    (tmp_path / "out").mkdir()
    return tmp_path / "store"


@contextmanager
def halted_export(place: Path, method: str, target: Path) -> Iterator[Path]:
    """A process that has written an export and not named it yet, and its partial."""
    with subprocess.Popen(
        [sys.executable, "-c", _EXPORTER, place, method, target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "halted\n"
            (partial,) = target.parent.glob(f".{target.name}.*.partial")
            yield partial
        finally:
            process.kill()


@pytest.mark.parametrize("method", METHODS)
def test_the_next_export_removes_what_a_killed_one_has_left(place: Path, method: str) -> None:
    target = place.parent / "out" / "model"
    for _ in range(2):
        with halted_export(place, method, target):
            pass
    assert len(list(target.parent.iterdir())) == 1
    assert not target.exists()
    with WeightStore.open(place) as store:
        getattr(store, method)("latest", target)
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("method", METHODS)
def test_a_living_export_keeps_what_it_has_written(place: Path, method: str) -> None:
    target = place.parent / "out" / "model"
    with halted_export(place, method, target) as partial, WeightStore.open(place) as store:
        before = tree(target.parent)
        store.export("latest", target.with_name("other"))
        getattr(store, method)("latest", target)
        assert partial.exists()
        assert before.items() <= tree(target.parent).items()
        with pytest.raises(InputRefusedError, match="is there already"):
            getattr(store, method)("latest", target)
        assert partial.exists()
    with WeightStore.open(place) as store:
        # Now it is dead, and even an export that is refused removes it.
        with pytest.raises(InputRefusedError, match="is there already"):
            getattr(store, method)("latest", target)
        assert not partial.exists()
        assert sorted(path.name for path in target.parent.iterdir()) == ["model", "other"]
