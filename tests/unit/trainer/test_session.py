"""Puts as a trainer sees them: what is committed, what is refused, what may change when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from weightstore.errors import (
    DTypeRefusedError,
    InputRefusedError,
    SchemaMismatchError,
    StepConflictError,
    StepOrderError,
    StorageFullError,
    StoreBusyError,
    StoreClosedError,
    TensorRefusedError,
)
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import (
    TrainerLab,
    Weights,
    bf16,
    bits_of,
    changed,
    lab_settings,
    small_weights,
)
from weightstore.trainer import session
from weightstore.trainer.baseline_places import FilePlace


@pytest.fixture
def lab() -> TrainerLab:
    return TrainerLab(MemoryBlobStore()).create()


def test_every_version_is_what_was_put(lab: TrainerLab) -> None:
    weights = small_weights()
    expected = {}
    with lab.trainer() as trainer:
        for step in range(5):
            version = trainer.put_step(step, weights).result()
            expected[version] = bits_of(weights)
            weights = changed(weights, step)
    assert list(expected) == [1, 2, 3, 4, 5]
    assert {version: lab.bits(version) for version in expected} == expected


def test_a_step_stores_only_what_changed(lab: TrainerLab) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        first = trainer.put_step(0, weights).report()
        weights["embed"][1, 7] ^= 1
        second = trainer.put_step(1, weights).report()
    assert (first.changed_count, first.full_size_bytes > 130_000) == (first.unit_count, True)
    assert (second.changed_count, second.piece_count, second.full_size_bytes) == (1, 1, 0)
    assert second.wire_size_bytes < 3000


def test_steps_without_a_change_are_versions_with_the_same_digest(lab: TrainerLab) -> None:
    weights = small_weights()
    weights["scale"] = np.array(np.nan, np.float32)
    with lab.trainer() as trainer:
        counts = []
        for step in range(20):
            copy = {name: array.copy() for name, array in weights.items()}
            counts.append(trainer.put_step(step, copy).report().changed_count)
    assert counts[1:] == [0] * 19
    assert len(lab.steps()) == 20
    assert len({lab.plan(version).record.digest for version in lab.steps()}) == 1


def test_changes_that_compare_equal_as_floats_arrive(lab: TrainerLab) -> None:
    before = np.array([0x0000, 0x3F80, 0x4000, 0x7FC0, 0x7FC0, 0x3F80], np.uint16)
    after = np.array([0x8000, 0xBF80, 0x4100, 0x7FFB, 0x3F80, 0x7FC1], np.uint16)
    with lab.trainer() as trainer:
        trainer.put_step(0, {"w": bf16("w", before)}).result()
        report = trainer.put_step(1, {"w": bf16("w", after)}).report()
        again = trainer.put_step(2, {"w": bf16("w", after)}).report()
    assert (report.changed_count, again.changed_count) == (6, 0)
    assert lab.bits()["w"] == after.tobytes()


def test_channels_last_and_row_major_weights_of_equal_values_are_equal(lab: TrainerLab) -> None:
    weights = torch.arange(96.0).view(2, 3, 4, 4)
    with lab.trainer() as trainer:
        trainer.put_step(0, {"w": weights}).result()
        last = weights.to(memory_format=torch.channels_last)
        assert trainer.put_step(1, {"w": last}).report().changed_count == 0


def test_tensors_may_change_after_captured(lab: TrainerLab) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).captured()
        first = bits_of(weights)
        weights["embed"][:] = 0
        pending = trainer.put_step(1, weights, anchor=True)
        pending.captured()
        second = bits_of(weights)
        weights["embed"][:] = 1
        weights["layer.0.bias"][:] = 1
        pending.result()
    assert lab.bits(1) == first
    assert lab.bits(2) == second


def test_a_stream_may_reuse_one_buffer(lab: TrainerLab) -> None:
    sizes = (9, 200_000, 3, 70_000)
    values = {f"t{i}": np.full(size, i, np.uint16) for i, size in enumerate(sizes)}

    def export(offset: int) -> Iterator[tuple[str, NDArray[Any]]]:
        buffer = np.empty(200_000, np.uint16)
        for name, array in values.items():
            part = buffer[: array.size]
            part[:] = array + offset
            yield name, part

    with lab.trainer() as trainer:
        for step in range(3):
            trainer.put_step(step, export(step)).result()
    for step in range(3):
        expected = {name: array + np.uint16(step) for name, array in values.items()}
        assert lab.bits(step + 1) == bits_of(expected)


def test_a_stream_in_any_order_is_the_same_version(lab: TrainerLab) -> None:
    weights = small_weights()
    after = changed(weights, 1)
    with lab.trainer() as trainer:
        trainer.put_step(0, iter(reversed(weights.items()))).result()
        trainer.put_step(1, iter(reversed(after.items()))).result()
        assert trainer.put_step(2, after).report().changed_count == 0
    assert lab.bits(2) == bits_of(after)


def test_the_same_packs_come_from_any_number_of_threads() -> None:
    weights = small_weights()
    stored = []
    for thread_count in (1, 2, 5):
        settings = lab_settings(thread_count=thread_count, pack_size_bytes=1024)
        lab = TrainerLab(MemoryBlobStore(), settings=settings).create()
        with lab.trainer() as trainer:
            trainer.put_step(0, weights).result()
            trainer.put_step(1, changed(weights, 1, 0.05)).result()
        packs = list(lab.blobs.list("packs/"))
        assert len(packs) >= 2
        stored.append({p.key: lab.blobs.get(p.key, max_size_bytes=p.size_bytes) for p in packs})
    assert stored[0] == stored[1] == stored[2]


def test_a_repeat_is_the_same_version_and_writes_nothing(lab: TrainerLab) -> None:
    weights = small_weights()
    after = changed(weights, 1)
    with lab.trainer() as trainer:
        trainer.put_step(3, weights).result()
        trainer.put_step(4, after).result()
        before = [one.key for one in lab.blobs.list("")]
        assert trainer.put_step(4, after).report().repeated
        assert trainer.put_step(4, iter(after.items())).result() == 2
        assert trainer.put_step(3, weights).result() == 1
        assert [one.key for one in lab.blobs.list("")] == before


def test_other_bytes_under_a_committed_step_are_refused(lab: TrainerLab) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(3, weights).result()
        trainer.put_step(5, changed(weights, 1)).result()
        for step in (3, 5):
            with pytest.raises(StepConflictError, match=f"run@{step}"):
                trainer.put_step(step, changed(weights, 2)).result()
        with pytest.raises(StepConflictError, match="schema"):
            trainer.put_step(5, {"other": np.zeros(3, np.uint8)}).result()
        with pytest.raises(StepOrderError, match="step 4"):
            trainer.put_step(4, weights).result()
    assert len(lab.steps()) == 2


def wrong(weights: Weights) -> Weights:
    return {
        **{name: array for name, array in weights.items() if name != "scale"},
        "extra": np.zeros(3, np.uint8),
        "layer.0.bias": np.zeros(16, np.uint16),
        "layer.0.norm": np.zeros(5, np.int32),
    }


@pytest.mark.parametrize("streamed", [False, True])
def test_a_wrong_schema_is_refused_and_changes_nothing(lab: TrainerLab, *, streamed: bool) -> None:
    weights = small_weights()
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
        bad = wrong(weights)
        with pytest.raises(SchemaMismatchError) as caught:
            trainer.put_step(1, iter(bad.items()) if streamed else bad).result()
        if not streamed:
            for name in ("scale", "extra", "layer.0.bias", "layer.0.norm"):
                assert name in str(caught.value)
        after = changed(weights, 1)
        assert trainer.put_step(1, after).result() == 2
    assert lab.bits(2) == bits_of(after)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_missing_tensor_is_refused_or_declared_unchanged(
    lab: TrainerLab, *, streamed: bool
) -> None:
    weights = small_weights()
    after = changed(weights, 1)
    part = {name: after[name] for name in ("embed", "layer.1.bias")}
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
        given = iter(part.items()) if streamed else part
        with pytest.raises(SchemaMismatchError, match=r"layer\.0\.bias"):
            trainer.put_step(1, given).result()
        given = iter(part.items()) if streamed else part
        trainer.put_step(1, given, missing="unchanged").result()
        given = iter(part.items()) if streamed else part
        assert trainer.put_step(1, given, missing="unchanged").report().repeated
    assert lab.bits(2) == bits_of({**weights, **part})
    named = [range(one.first, one.last + 1) for one in lab.plan(2).manifest.unmentioned]
    names = [spec.name for spec in lab.plan(2).schema.tensors]
    assert {names[i] for span in named for i in span} == set(weights) - set(part)


def test_another_schema_is_a_full_version_by_explicit_choice(lab: TrainerLab) -> None:
    weights = small_weights()
    other = {"embed": weights["embed"], "new": np.arange(9, dtype=np.uint8)}
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
        with pytest.raises(SchemaMismatchError):
            trainer.put_step(1, other).result()
        trainer.put_step(1, other, new_schema=True).result()
        trainer.put_step(2, iter(weights.items()), new_schema=True).result()
        trainer.put_step(3, changed(weights, 1)).result()
    assert lab.bits(2) == bits_of(other)
    assert lab.bits(3) == bits_of(weights)
    assert lab.plan(2).record.base is None
    assert len(lab.plan(4).deltas) == 1


def test_fp32_into_a_bf16_schema_needs_a_declared_cast(lab: TrainerLab) -> None:
    masters = torch.randn(70_000, generator=torch.Generator().manual_seed(1))
    scale = torch.tensor(0.5)
    published = {"w": masters.to(torch.bfloat16), "scale": scale.to(torch.bfloat16)}
    with lab.trainer() as trainer:
        trainer.put_step(0, published).result()
        with pytest.raises(DTypeRefusedError) as caught:
            trainer.put_step(1, {"w": masters, "scale": scale}).result()
    for word in ("w: found F32, expected BF16", "scale", "cast="):
        assert word in str(caught.value)
    with lab.trainer(cast={"*": "bf16"}) as trainer:
        assert trainer.put_step(1, {"w": masters, "scale": scale}).report().changed_count == 0
        moved = {"w": masters * 1.25, "scale": scale}
        trainer.put_step(2, moved).result()
        trainer.put_step(3, iter(moved.items()), anchor=True).result()
    expected = (masters * 1.25).to(torch.bfloat16).view(torch.uint16).numpy().tobytes()
    assert lab.bits(3)["w"] == lab.bits(4)["w"] == expected


def test_a_first_put_takes_the_given_dtypes_after_casts(lab: TrainerLab) -> None:
    weights = {"w": torch.ones(5), "n": torch.tensor(3)}
    with lab.trainer(cast={"*": "bf16"}) as trainer:
        trainer.put_step(0, weights).result()
    assert {s.name: s.dtype.value for s in lab.plan().schema.tensors} == {"w": "BF16", "n": "I64"}


def test_a_step_that_changes_most_elements_warns() -> None:
    lab = TrainerLab(MemoryBlobStore(), settings=lab_settings(warn_changed_ratio=0.5)).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, {"w": np.zeros(100, np.float32)}).result()
        pending = trainer.put_step(1, {"w": np.ones(100, np.float32)})
        with pytest.warns(UserWarning, match="100% of all elements"):
            pending.result()
        assert pending.result() == 2


def test_an_error_comes_out_of_captured_and_result(lab: TrainerLab) -> None:
    with lab.trainer() as trainer:
        pending = trainer.put_step(0, {"w": torch.eye(3).to_sparse()})
        for wait in (pending.captured, pending.result):
            with pytest.raises(TensorRefusedError, match="sparse"):
                wait()
        assert trainer.put_step(0, {"w": torch.eye(3)}).result() == 1


def test_an_error_of_the_callers_stream_comes_out_as_it_is(lab: TrainerLab) -> None:
    def export() -> Iterator[tuple[str, NDArray[Any]]]:
        yield "a", np.zeros(9, np.uint8)
        raise LookupError("the exporter failed")

    weights = {"a": np.ones(9, np.uint8), "b": np.ones(9, np.uint8)}
    with lab.trainer() as trainer:
        with pytest.raises(LookupError):
            trainer.put_step(0, export()).result()
        trainer.put_step(0, weights).result()
        with pytest.raises(LookupError):
            trainer.put_step(1, export()).result()
        assert trainer.put_step(1, weights).report().changed_count == 0


def test_a_timeout_says_that_the_put_goes_on(lab: TrainerLab) -> None:
    release = threading.Event()

    def export() -> Iterator[tuple[str, NDArray[Any]]]:
        release.wait()
        yield "a", np.zeros(9, np.uint8)

    with lab.trainer() as trainer:
        pending = trainer.put_step(0, export())
        for wait in (pending.captured, pending.result):
            with pytest.raises(StoreBusyError, match="goes on"):
                wait(timeout_s=0.0)
        release.set()
        assert pending.result() == 1


def test_a_closed_session_is_refused_and_its_claim_is_free(lab: TrainerLab) -> None:
    trainer = lab.trainer()
    trainer.put_step(0, small_weights())
    trainer.close()
    trainer.close()
    with pytest.raises(StoreClosedError):
        trainer.put_step(1, small_weights())
    assert len(lab.steps()) == 1
    with lab.trainer("other"):
        pass


@pytest.mark.parametrize("step", [-1, 2**53, 1.5, "7", None, True])
def test_what_is_no_step_is_refused_at_once(lab: TrainerLab, step: int) -> None:
    before = lab.log.tail().next_slot
    with lab.trainer() as trainer:
        with pytest.raises(InputRefusedError, match="no step"):
            trainer.put_step(step, small_weights())
        assert lab.log.tail().next_slot == before + 1
        assert trainer.put_step(int(np.int64(3)), small_weights()).result() == 1


class Queued:
    """Stands for an event on a device's stream."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def synchronize(self) -> None:
        self._weights["scale"][()] = 7.0


def test_work_that_is_queued_on_a_device_is_awaited_before_tensors_are_read(
    lab: TrainerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = small_weights()

    def fence(given: Iterable[object]) -> Callable[[], None]:
        assert list(given) == list(weights.values())
        return Queued(weights).synchronize

    monkeypatch.setattr(session, "device_fence", fence)
    with lab.trainer() as trainer:
        trainer.put_step(0, weights).result()
    assert lab.bits()["scale"] == np.array(7.0, np.float32).tobytes()


def test_a_baseline_that_is_lost_after_the_commit_fails_no_put(
    lab: TrainerLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: FilePlace) -> None:
        raise StorageFullError("no room")

    weights = small_weights()
    after = changed(weights, 1)
    with lab.trainer(baseline_path=tmp_path / "baseline") as trainer:
        monkeypatch.setattr(FilePlace, "adopt", refuse)
        pending = trainer.put_step(0, weights)
        with pytest.warns(UserWarning, match=r"(?s)version 1 is committed.*no room"):
            assert pending.result() == 1
        monkeypatch.undo()
        assert trainer.put_step(1, after).report().full_size_bytes > 0
        assert trainer.put_step(2, after).report().changed_count == 0
    assert lab.bits(1) == bits_of(weights)
    assert lab.bits(3) == bits_of(after)
