"""What a put writes, in which order: nothing before what it names, the record last."""

from __future__ import annotations

import pytest

from weightstore.format.receipts import decode_open_receipt
from weightstore.history.manifests import load_manifest
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.faults import Method, RecordingBlobs
from weightstore.testing.trainer_lab import TrainerLab, changed, small_weights

WEIGHTS = small_weights()


def kinds(blobs: RecordingBlobs, first_call: int) -> list[str]:
    """Folders, in order, that were written since a call; equal neighbours once."""
    writes = {Method.PUT, Method.PUT_STREAM}
    found: list[str] = []
    for call in blobs.calls[first_call:]:
        if call.method in writes:
            folder, _, rest = call.key.partition("/")
            kind = folder + (
                rest[rest.rfind(".") :] if folder == "manifests" and "." in rest else ""
            )
            if not found or found[-1] != kind:
                found.append(kind)
    return found


@pytest.mark.parametrize(
    ("anchor", "expected"),
    [
        (False, ["receipts", "packs", "manifests.digests", "manifests", "log"]),
        (
            True,
            ["receipts", "packs", "anchors", "manifests.digests", "manifests", "log"],
        ),
    ],
)
def test_the_order_of_a_delta(expected: list[str], *, anchor: bool) -> None:
    blobs = RecordingBlobs(MemoryBlobStore())
    lab = TrainerLab(blobs).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, WEIGHTS).result()
        first_call = len(blobs.calls)
        trainer.put_step(1, changed(WEIGHTS, 1), anchor=anchor).result()
        assert kinds(blobs, first_call) == expected


def test_the_order_of_a_first_version() -> None:
    blobs = RecordingBlobs(MemoryBlobStore())
    lab = TrainerLab(blobs).create()
    with lab.trainer() as trainer:
        first_call = len(blobs.calls)
        trainer.put_step(0, WEIGHTS).result()
        assert kinds(blobs, first_call) == [
            "receipts",
            "anchors",
            "manifests.digests",
            "manifests.schema",
            "manifests",
            "log",
        ]


def test_the_receipt_names_the_attempt_of_the_manifest() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        trainer.put_step(0, WEIGHTS).result()
        [info] = lab.blobs.list("receipts/")
        data = lab.blobs.get(info.key, max_size_bytes=info.size_bytes)
        receipt = decode_open_receipt(data, what=info.key)
        manifest = load_manifest(lab.blobs, lab.plan().record, lab.settings.limits)
        assert (receipt.version, receipt.attempt) == (manifest.version, manifest.attempt)
        assert receipt.commit_id == manifest.commit_id
        assert receipt.session == trainer.session
        assert f"run-{trainer.epoch}-{trainer.session}" in info.key
        assert trainer.run == "run"


def test_a_later_version_names_the_schema_of_the_first() -> None:
    lab = TrainerLab(MemoryBlobStore()).create()
    with lab.trainer() as trainer:
        for step in range(3):
            trainer.put_step(step, WEIGHTS).result()
    refs = {lab.plan(version).manifest.schema_ref.key for version in (1, 2, 3)}
    assert len(refs) == 1
