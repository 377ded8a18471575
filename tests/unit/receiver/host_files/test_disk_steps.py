"""The steps on the disk, where the whole of `HostFiles` does not show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from weightstore.codec.codec import PieceCodec
from weightstore.errors import CorruptError, LiveWeightsError
from weightstore.history.progress import no_progress
from weightstore.history.store_format import open_store
from weightstore.history.versions import find_version
from weightstore.receiver.host_files.disk_steps import DiskSteps
from weightstore.receiver.reports import Tally
from weightstore.receiver.version_source import VersionSource
from weightstore.storage.linked_folder import LinkedFolder
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import TrainerLab, lab_settings, small_weights

SETTINGS = lab_settings()


def steps_on(lab: TrainerLab, held: LinkedFolder) -> DiskSteps:
    return DiskSteps(
        VersionSource(lab.blobs, lab.log, SETTINGS),
        open_store(lab.blobs, lab.log),
        held,
        entropy=lab.entropy,
        codec=PieceCodec(limits=SETTINGS.limits),
        scan_refit_count=8,
    )


def test_a_version_is_there_for_others_only_after_the_switch(tmp_path: Path) -> None:
    lab = TrainerLab(MemoryBlobStore(), settings=SETTINGS).create()
    with lab.trainer() as trainer:
        trainer.put_step(1, small_weights()).result()
    tally = Tally(lab.clock)
    with LinkedFolder.acquire(tmp_path / "live") as held:
        steps = steps_on(lab, held)
        assert steps.recover(tally) is None
        record = find_version(lab.log, lab.log.tail(), 1)
        whole = steps.export(record, tally, no_progress)
        assert held.linked() is None
        # Whoever comes now finds nothing that counts, and begins anew.
        assert steps.recover(tally) is None
        steps.switch(whole.mark)
        assert held.linked() == whole.mark.folder
        found = steps.recover(tally)
        assert found is not None
        assert (found[0].mark, found[1]) == (whole.mark, False)
        steps.hide()
        assert held.linked() is None
        assert steps.recover(tally) is not None
        assert held.linked() == whole.mark.folder


def test_a_damaged_store_is_told_and_leaves_the_directory_as_it_is(tmp_path: Path) -> None:
    lab = TrainerLab(MemoryBlobStore(), settings=SETTINGS).create()
    with lab.trainer() as trainer:
        trainer.put_step(1, small_weights()).result()
    tally = Tally(lab.clock)
    with LinkedFolder.acquire(tmp_path / "live") as held:
        steps = steps_on(lab, held)
        record = find_version(lab.log, lab.log.tail(), 1)
        steps.switch(steps.export(record, tally, no_progress).mark)
        for info in list(lab.blobs.list("manifests/")):
            lab.blobs.delete(info.key)
        with pytest.raises(CorruptError) as caught:
            steps_on(TrainerLab(lab.blobs, settings=SETTINGS), held).recover(tally)
        assert not isinstance(caught.value, LiveWeightsError)
        assert held.linked() is not None
