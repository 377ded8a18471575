"""The facade as a trainer uses it: what a put keeps, and what it refuses without a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weightstore.errors import (
    DTypeRefusedError,
    InputRefusedError,
    NameRefusedError,
    RetireRefusedError,
    SchemaMismatchError,
    StepConflictError,
    StepOrderError,
    TagNotFoundError,
    VersionGoneError,
    VersionNotFoundError,
    WeightStoreError,
)
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.storage.memory import MemoryBlobStore
from weightstore.store import WeightStore
from weightstore.store.facade import WeightStore as FacadeStore
from weightstore.testing.store_lab import LAB_SETTINGS, store_on, tree

Weights = dict[str, torch.Tensor]


def weights(value: float = 1.0) -> Weights:
    """Two bf16 tensors and an integer one."""
    return {
        "embed": torch.full((6, 4), value, dtype=torch.bfloat16),
        "head.bias": torch.arange(5, dtype=torch.bfloat16) * value,
        "steps": torch.tensor([int(value)], dtype=torch.int64),
    }


def same(left: Weights, right: Weights) -> bool:
    """Equal names, dtypes, shapes and bits."""
    return left.keys() == right.keys() and all(
        one.dtype == right[name].dtype
        and one.shape == right[name].shape
        and torch.equal(
            one.reshape(-1).contiguous().view(torch.uint8),
            right[name].reshape(-1).contiguous().view(torch.uint8),
        )
        for name, one in left.items()
    )


@pytest.fixture
def store() -> WeightStore:
    return store_on(MemoryBlobStore())


def test_the_package_exports_the_facade() -> None:
    assert FacadeStore is WeightStore


def test_every_selector_finds_its_version(store: WeightStore) -> None:
    with store:
        for step in (10, 11, 30):
            store.put_step(step, weights(step), run="grpo")
        store.tag("best", 2)
        for selector, version, step in (
            ("latest", 3, 30),
            (1, 1, 10),
            ("2", 2, 11),
            ("tag:best", 2, 11),
            ("grpo@30", 3, 30),
        ):
            info = store.version(selector)
            assert (info.version, info.step, info.run, info.kept) == (version, step, "grpo", True)
            assert same(store.checkout(selector).tensors, weights(step))


def test_a_repeat_of_a_step_is_the_same_version_also_for_a_new_handle() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        assert store.put_step(1, weights()) == 1
        assert store.put_step(2, weights(2.0)) == 2
        assert store.put_step(2, weights(2.0)) == 2
    with store_on(blobs, seed=1) as store:
        assert store.put_step(2, weights(2.0)) == 2
        assert [info.version for info in store.versions()] == [2, 1]


def test_the_callers_tensors_may_change_right_after_the_call(store: WeightStore) -> None:
    live = weights()
    with store:
        for step in range(4):
            for tensor in live.values():
                tensor.fill_(step + 1)
            store.put_step(step, live, anchor=step == 2)
            for tensor in live.values():
                tensor.fill_(99)
        for step in range(4):
            taken = store.checkout(f"main@{step}").tensors
            assert all(bool((tensor == step + 1).all()) for tensor in taken.values())


def test_a_trainer_of_another_run_goes_on_from_the_newest_version(store: WeightStore) -> None:
    with store:
        store.put_step(5, weights(), run="first")
        store.put_step(0, weights(2.0), run="second")
        assert [(info.run, info.step, info.base) for info in store.versions()] == [
            ("second", 0, 1),
            ("first", 5, None),
        ]
        assert store.state().owner is not None
        assert "second" in str(store.state().owner)
    with store_on(store._blobs, seed=1) as again:
        assert again.state().owner is None


REFUSED_INPUTS: dict[
    str, tuple[Callable[[], dict[str, Any]], type[WeightStoreError], tuple[str, ...]]
] = {
    "missing": (
        lambda: {"steps": weights()["steps"]},
        SchemaMismatchError,
        ("embed", "head.bias"),
    ),
    "extra": (
        lambda: weights() | {"a.new": torch.ones(1), "b.new": torch.ones(1)},
        SchemaMismatchError,
        ("a.new", "b.new"),
    ),
    "shape": (
        lambda: weights() | {"embed": torch.ones((4, 6), dtype=torch.bfloat16)},
        SchemaMismatchError,
        ("embed",),
    ),
    "dtype": (
        lambda: weights() | {"steps": torch.ones(1, dtype=torch.int32)},
        SchemaMismatchError,
        ("steps",),
    ),
    "everything at once": (
        lambda: {
            "head.bias": torch.ones(6, dtype=torch.bfloat16),
            "steps": torch.ones(1, dtype=torch.int32),
            "more": torch.ones(1),
        },
        SchemaMismatchError,
        ("embed", "head.bias", "steps", "more"),
    ),
    "fp32 without a cast": (
        lambda: {
            name: tensor.float() if name != "steps" else tensor
            for name, tensor in weights().items()
        },
        DTypeRefusedError,
        ("embed",),
    ),
    "no tensor": (
        lambda: weights() | {"steps": 3},
        InputRefusedError,
        ("steps",),
    ),
    "a wrapped name": (
        lambda: weights() | {"module.embed": torch.ones(1)},
        NameRefusedError,
        ("module.embed",),
    ),
}


@pytest.mark.parametrize("case", REFUSED_INPUTS)
def test_input_that_does_not_fit_is_listed_and_changes_nothing(case: str, tmp_path: Path) -> None:
    make, kind, named = REFUSED_INPUTS[case]
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(1, weights())
        before = tree(tmp_path)
        with pytest.raises(kind) as caught:
            store.put_step(2, make())
        assert tree(tmp_path) == before
        assert all(name in caught.value.message for name in named)
        assert caught.value.do
        assert store.put_step(2, weights(2.0)) == 2
        assert same(store.checkout().tensors, weights(2.0))


def test_a_step_that_cannot_be_next_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(3, weights())
        store.put_step(7, weights(2.0))
        before = tree(tmp_path)
        with pytest.raises(StepConflictError, match="version 2"):
            store.put_step(7, weights(3.0))
        with pytest.raises(StepConflictError, match="version 1"):
            store.put_step(3, weights(2.0))
        with pytest.raises(StepOrderError):
            store.put_step(5, weights(3.0))
        for step in (-1, True, 1.5, "8", 1 << 60):
            with pytest.raises(InputRefusedError):
                store.put_step(step, weights(3.0))  # type: ignore[arg-type] # what is tested
        assert tree(tmp_path) == before


def test_a_new_schema_is_a_full_version_by_explicit_choice(store: WeightStore) -> None:
    packed = {"experts": torch.arange(8.0).reshape(2, 4)}
    with store:
        store.put_step(1, weights())
        with pytest.raises(SchemaMismatchError):
            store.put_step(2, packed)
        assert store.put_step(2, packed, new_schema=True) == 2
        assert store.put_step(3, {"experts": packed["experts"] + 1}) == 3
        assert store.version(2).base is None
        assert store.version(3).base == 2
        assert same(store.checkout(1).tensors, weights())
        assert same(store.checkout(2).tensors, packed)


def test_missing_tensors_may_be_declared_unchanged(store: WeightStore) -> None:
    with store:
        store.put_step(1, weights())
        store.put_step(2, {"steps": torch.tensor([9])}, missing="unchanged")
        expected = weights() | {"steps": torch.tensor([9])}
        assert same(store.checkout().tensors, expected)
        assert store.put_step(3, {}, missing="unchanged") == 3
        assert store.version(3).digest == store.version(2).digest


def test_fp32_is_cast_to_the_published_dtype_where_that_was_declared() -> None:
    blobs = MemoryBlobStore()
    masters = {"w": torch.randn(100, generator=torch.Generator().manual_seed(0))}
    with store_on(blobs, cast={"*": "bf16"}) as store:
        store.put_step(1, masters)
        assert same(store.checkout().tensors, {"w": masters["w"].to(torch.bfloat16)})
        masters["w"] += 1e-6
        store.put_step(2, masters)
        assert same(store.checkout().tensors, {"w": masters["w"].to(torch.bfloat16)})


def test_a_cast_that_does_not_exist_is_refused_before_the_claim() -> None:
    with (
        store_on(MemoryBlobStore(), cast={"*": "int4"}) as store,
        pytest.raises(DTypeRefusedError),
    ):
        store.put_step(1, weights())
    assert store_on(store._blobs).state().epoch == 0


def test_a_resumed_trainer_rewinds_and_goes_on_by_a_delta() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        for step in range(5):
            store.put_step(step, weights(step))
    with store_on(blobs, seed=1) as store:
        with store.trainer("main", rewind_to=2) as trainer:
            pending = trainer.put_step(3, weights(30.0))
            assert pending.result() == 6
            assert trainer.put_step(4, weights(40.0)).result() == 7
        assert store.version(6).base == 5
        assert same(store.checkout("main@3").tensors, weights(30.0))
        assert same(store.checkout(4).tensors, weights(3.0))


def test_a_trainer_that_resumes_with_the_newest_weights_stores_only_its_change() -> None:
    blobs = MemoryBlobStore()
    with store_on(blobs) as store:
        store.put_step(1, weights())
    with store_on(blobs, seed=1) as store, store.trainer("main", resume=weights()) as trainer:
        assert trainer.put_step(2, weights()).report().changed_count == 0


def test_tied_weights_are_stored_once_and_come_back_tied(store: WeightStore) -> None:
    embed = torch.randn((50, 8), generator=torch.Generator().manual_seed(1))
    tied = {"embed.weight": embed, "head.weight": embed, "norm": torch.ones(3)}
    with store:
        store.put_step(1, tied)
        assert store.describe().full_size_bytes == (50 * 8 + 3) * 4
        before = embed[3, 3].item()
        embed[3, 3] = 7.0
        store.put_step(2, tied)
        taken = store.checkout().tensors
        assert same(taken, tied)
        assert taken["embed.weight"].data_ptr() == taken["head.weight"].data_ptr()
        embed[3, 3] = before
        assert same(store.checkout(1).tensors, tied)


def test_tied_weights_that_came_apart_are_refused(store: WeightStore) -> None:
    embed = torch.ones(4)
    with store:
        store.put_step(1, {"embed": embed, "head": embed})
        with pytest.raises(SchemaMismatchError, match="head"):
            store.put_step(2, {"embed": embed + 1, "head": embed + 2})


def test_weights_come_from_streams_and_safetensors_too(store: WeightStore, tmp_path: Path) -> None:
    with store:
        store.put_step(1, iter(weights().items()))
        store.checkout_to_file(1, tmp_path / "model.safetensors")
        assert store.put_step(2, tmp_path / "model.safetensors") == 2
        store.export(1, tmp_path / "model")
        assert store.put_step(3, tmp_path / "model") == 3
        assert len({info.digest for info in store.versions()}) == 1
        with pytest.raises(InputRefusedError, match="str is no source"):
            store.put_step(4, str(tmp_path / "model"))  # type: ignore[arg-type] # what is tested


def test_an_imported_checkpoint_is_a_full_version_that_training_goes_on_from(
    store: WeightStore, tmp_path: Path
) -> None:
    with store:
        store.put_step(1, weights())
        store.export(1, tmp_path / "model")
    with store_on(MemoryBlobStore()) as other:
        info = other.import_checkpoint(tmp_path / "model", run="base", step=0)
        assert (info.version, info.run, info.step, info.base) == (1, "base", 0, None)
        assert other.import_checkpoint(tmp_path / "model", run="base", step=0) == info
        assert other.state().owner is None
        assert other.put_step(1, weights(2.0), run="grpo") == 2
        assert (other.version(2).base, other.describe(2).has_full_form) == (1, False)
        assert same(other.checkout(1).tensors, weights())
        assert same(other.checkout(2).tensors, weights(2.0))


def test_tags_move_and_go(store: WeightStore) -> None:
    with store:
        store.put_step(1, weights())
        store.put_step(2, weights(2.0))
        assert store.tag("best", "main@1", owner="eval").version == 1
        assert [(tag.name, tag.version, tag.owner) for tag in store.tags()] == [("best", 1, "eval")]
        assert store.tag("best").version == 2
        assert store.version("tag:best").version == 2
        store.untag("best")
        assert store.tags() == ()
        for call in (lambda: store.untag("best"), lambda: store.version("tag:best")):
            with pytest.raises(TagNotFoundError):
                call()
        with pytest.raises(VersionNotFoundError):
            store.tag("best", 3)
        with pytest.raises(NameRefusedError):
            store.tag("no spaces")


def test_retire_keeps_the_newest_the_tagged_and_what_was_asked_for(store: WeightStore) -> None:
    with store:
        for step in range(8):
            store.put_step(step, weights(step), anchor=step % 2 == 0)
        store.tag("best", 2)
        planned = store.retire(keep_newest=1, keep_versions=[5], dry_run=True)
        assert [info.version for info in store.versions() if info.kept] == [8, 7, 6, 5, 4, 3, 2, 1]
        done = store.retire(keep_newest=1, keep_versions=[5])
        assert done.gone == planned.gone == (3, 4, 6)
        assert (done.deleted_count, done.deleted_size_bytes) == (
            planned.deleted_count,
            planned.deleted_size_bytes,
        )
        assert done.deleted_count > 0
        for version in (1, 2, 5, 7, 8):
            assert same(store.checkout(version).tensors, weights(version - 1))
        with pytest.raises(VersionGoneError, match="newest kept version is 8"):
            store.checkout(3)
        assert store.retire(keep_newest=1, keep_versions=[5]).gone == ()


@pytest.mark.parametrize(
    "wrong", [{"keep_newest": -1}, {"keep_versions": [0]}, {"keep_versions": [9]}]
)
def test_retire_refuses_what_cannot_be_kept(store: WeightStore, wrong: dict[str, Any]) -> None:
    with store:
        store.put_step(1, weights())
        with pytest.raises((InputRefusedError, VersionNotFoundError)):
            store.retire(**wrong)
        assert store.version(1).kept


def test_retire_is_refused_while_an_object_that_must_stay_is_missing(tmp_path: Path) -> None:
    with WeightStore.open(tmp_path, create=True, settings=LAB_SETTINGS) as store:
        store.put_step(1, weights())
        store.put_step(2, weights(2.0), anchor=True)
        anchors = sorted((tmp_path / "anchors").rglob("*.safetensors"))
        anchors[-1].unlink()
        with pytest.raises(RetireRefusedError, match="missing"):
            store.retire(keep_newest=1)
        assert store.version(1).kept
        assert same(store.checkout(1).tensors, weights())


def test_host_tensors_need_no_torch_dtype(store: WeightStore) -> None:
    units = np.arange(12, dtype=np.uint8)
    spec = TensorSpec("w", DType.F8_E8M0, (3, 4))
    with store:
        store.put_step(1, {"w": HostTensor(spec, units)})
        taken = store.checkout().host["w"]
        assert taken.spec == spec
        assert np.array_equal(taken.units, units)
