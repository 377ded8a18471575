"""One store under two paths is one store: a link to it gives nobody a second owner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weightstore.errors import StoreOwnedError
from weightstore.store import WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS, OtherTrainer, other_weights


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """A store, and a way to it through two links."""
    place, link = tmp_path / "disk" / "store", tmp_path / "link"
    WeightStore.open(place, create=True, settings=LAB_SETTINGS).close()
    link.symlink_to(tmp_path / "disk", target_is_directory=True)
    (tmp_path / "second").symlink_to(link / "store", target_is_directory=True)
    return place, tmp_path / "second"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_trainer_under_another_path_is_refused(
    paths: tuple[Path, Path], *, is_reversed: bool
) -> None:
    first, second = reversed(paths) if is_reversed else paths
    with OtherTrainer(first) as other, OtherTrainer(second) as refused:
        assert other.attached == "attached"
        assert refused.attached.startswith("StoreOwnedError")
        with WeightStore.open(second, settings=LAB_SETTINGS) as store:
            with pytest.raises(StoreOwnedError):
                store.put_step(0, other_weights(0))
            assert other.put(0) == "version 1"
            assert store.version().version == 1


def test_two_handles_of_one_process_exclude_each_other_too(paths: tuple[Path, Path]) -> None:
    with (
        WeightStore.open(paths[0], settings=LAB_SETTINGS) as store,
        WeightStore.open(paths[1], settings=LAB_SETTINGS) as linked,
    ):
        assert store.put_step(0, other_weights(0)) == 1
        with pytest.raises(StoreOwnedError):
            linked.put_step(1, other_weights(1))
        assert store.put_step(1, other_weights(1)) == 2
        store.close()
        assert linked.put_step(2, other_weights(2)) == 3


def test_readers_under_both_paths_see_the_same(paths: tuple[Path, Path]) -> None:
    with (
        OtherTrainer(paths[1]) as other,
        WeightStore.open(paths[0], settings=LAB_SETTINGS) as store,
        WeightStore.open(paths[1], settings=LAB_SETTINGS) as linked,
    ):
        for step in range(3):
            assert other.put(step) == f"version {step + 1}"
            for reader in (store, linked):
                found = reader.checkout().host["w"].units.view(np.float32)
                assert np.array_equal(found, other_weights(step)["w"])
        linked.tag("best", 2)
        assert [tag.version for tag in store.tags()] == [2]


def test_the_claim_of_an_owner_killed_under_the_other_path_is_free(
    paths: tuple[Path, Path],
) -> None:
    with OtherTrainer(paths[1]) as other:
        assert other.put(0) == "version 1"
        other.kill()
        with WeightStore.open(paths[0], settings=LAB_SETTINGS) as store:
            assert store.put_step(1, other_weights(1)) == 2
