"""The examination of versions, check by check, on a store in memory."""

from __future__ import annotations

from collections.abc import Iterator

from weightstore.format.rules import EMPTY_PREFIX
from weightstore.history.chain import delta_form
from weightstore.history.progress import no_progress
from weightstore.store.doctor_versions import Examination
from weightstore.store.findings import Finding, Severity
from weightstore.testing.real_versions import ThreeVersions, three_versions


def exam_of(chain: ThreeVersions) -> Examination:
    store = chain.versions.store
    return Examination(chain.blobs, store.log, store.log.tail(), store.settings)


def told(found: Iterator[Finding]) -> list[tuple[Severity, str]]:
    return [(each.severity, each.check) for each in found]


def test_a_whole_store_passes_each_check() -> None:
    exam = exam_of(three_versions())
    assert told(exam.presence_findings()) == [(Severity.OK, "versions")]
    assert told(exam.newest_findings()) == [(Severity.OK, "newest")]
    assert exam.newest_size_bytes == three_versions().versions.schema.size_bytes
    assert told(exam.deep_findings(no_progress)) == [(Severity.OK, "deep")]
    assert told(exam.garbage_findings("store")) == [(Severity.OK, "garbage")]
    assert exam.kept_count == 3


def test_damage_that_is_known_is_not_told_twice_and_hides_no_other() -> None:
    chain = three_versions()
    second, third = (delta_form(each).packs[0].key for each in chain.versions.plan().deltas)
    del chain.blobs._blobs[second]
    data = chain.blobs._blobs[third]
    chain.blobs._blobs[third] = data[:-1] + bytes([data[-1] ^ 1])
    exam = exam_of(chain)
    (missing,) = exam.presence_findings()
    assert missing.what == f"version 2: {second} is missing"
    assert missing.do.endswith("versions that can be checked out: 1.")
    (flipped,) = exam.deep_findings(no_progress)
    assert flipped.what.startswith("version 3: ")
    (skipped,) = exam.garbage_findings("store")
    assert (skipped.severity, "not looked for" in skipped.what) == (Severity.NOTE, True)


def test_an_empty_log_has_nothing_to_look_at() -> None:
    chain = three_versions()
    store = chain.versions.store
    exam = Examination(chain.blobs, store.log, EMPTY_PREFIX, store.settings)
    assert told(exam.presence_findings()) == [(Severity.OK, "versions")]
    assert told(exam.newest_findings()) == [(Severity.OK, "newest")]
    assert exam.kept_count == 0
