"""Files that were proved, and how a change by others shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.errors import LiveWeightsError, SchemaMismatchError
from weightstore.history.checkout import checkout
from weightstore.history.export import export_checkpoint
from weightstore.ids import StoreId
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.host_files.file_layout import read_file_header, weight_file_names
from weightstore.receiver.host_files.mark import Mark, mark_file
from weightstore.receiver.host_files.whole_files import WholeFiles
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import TrainerLab, lab_settings, small_weights

SETTINGS = lab_settings(anchor_file_size_bytes=100_000)
SCAN_REFIT_COUNT = 3


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Path, Mark, Schema]:
    """The files of a version, and what is to be proved of them."""
    lab = TrainerLab(MemoryBlobStore(), settings=SETTINGS).create()
    with lab.trainer() as trainer:
        trainer.put_step(1, small_weights()).result()
    plan, folder = lab.plan(), tmp_path / "data-0"
    export_checkpoint(lab.blobs, plan, folder, entropy=lab.entropy, settings=SETTINGS)
    names = weight_file_names(plan, SETTINGS)
    heads = {name: read_file_header(folder / name, SETTINGS.limits).data_offset for name in names}
    mark = Mark(
        change_id="0" * 32,
        store_id=StoreId("s"),
        version=plan.record.version,
        digest=plan.record.digest,
        schema_id=plan.schema.id,
        folder="data-0",
        files=tuple(mark_file(path, heads.get(path.name)) for path in sorted(folder.iterdir())),
    )
    assert checkout(lab.blobs, plan, SETTINGS)
    return folder, mark, plan.schema


def prove(folder: Path, mark: Mark, schema: Schema) -> WholeFiles:
    return WholeFiles.prove(folder, mark, schema, SETTINGS, SCAN_REFIT_COUNT)


def test_files_that_are_a_version_are_proved(scene: tuple[Path, Mark, Schema]) -> None:
    whole = prove(*scene)
    assert whole.mark.version == 1
    assert not whole.changed_by_others()
    assert not whole.changed_in_share()


def test_any_bit_is_noticed_by_a_round_of_shares_and_by_a_whole_look(
    scene: tuple[Path, Mark, Schema],
) -> None:
    folder, mark, schema = scene
    whole = prove(*scene)
    for each in mark.files:
        path = folder / each.name
        data = bytearray(path.read_bytes())
        if not each.has_weights:
            continue
        for at in (each.fixed_size_bytes, len(data) - 1):
            data[at] ^= 4
            path.write_bytes(data)
            assert "tensors changed" in whole.changed_by_others()
            assert any(whole.changed_in_share() for _ in range(SCAN_REFIT_COUNT))
            with pytest.raises(LiveWeightsError, match="bits of the files"):
                prove(folder, mark, schema)
            data[at] ^= 4
            path.write_bytes(data)
    assert not whole.changed_by_others()


def test_another_header_or_schema_proves_nothing(scene: tuple[Path, Mark, Schema]) -> None:
    folder, mark, _ = scene
    with pytest.raises(SchemaMismatchError):
        prove(folder, mark, Schema.build([TensorSpec("x", DType.U8, (1,))]))
    (folder / "more").write_bytes(b"")
    with pytest.raises(LiveWeightsError, match="came or went"):
        prove(*scene)
