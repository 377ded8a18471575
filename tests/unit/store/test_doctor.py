"""The doctor: each kind of damage is found, named and answered, and nothing is changed."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weightstore.errors import InputRefusedError
from weightstore.format.keys import member_key
from weightstore.format.records import OpenClaim
from weightstore.history.members import put_member
from weightstore.ids import Epoch, RunId, SessionId, Slot
from weightstore.settings import Limits, Settings
from weightstore.storage import machine
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.place_survey import PlaceSurvey
from weightstore.store import WeightStore, doctor_place
from weightstore.store.doctor import examine
from weightstore.store.findings import DoctorReport, Finding, Severity, size_said
from weightstore.testing.members import empty_member, member_id
from weightstore.testing.store_lab import LAB_SETTINGS, OtherTrainer, tree


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five versions; 1 and 4 are full, the others deltas."""
    place = tmp_path_factory.mktemp("made") / "store"
    weights: dict[str, NDArray[Any]] = {
        "w": np.arange(70_000, dtype=np.float32),
        "b": np.zeros(4, np.float16),
    }
    with WeightStore.open(place, create=True, settings=LAB_SETTINGS) as store:
        for step in range(5):
            weights["w"][step * 7 : step * 7 + 3] += 1
            store.put_step(step, weights, run="grpo", anchor=step == 3)
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(made, tmp_path / "store"))


def by_check(report: DoctorReport) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for each in report.findings:
        found.setdefault(each.check, []).append(each)
    return found


def only(report: DoctorReport, check: str) -> Finding:
    (found,) = by_check(report)[check]
    return found


def spoil(path: Path, data: bytes | None = None) -> None:
    """Change the last byte of a file, or all of them."""
    path.chmod(0o644)
    before = path.read_bytes()
    path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]) if data is None else data)


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_store_has_nothing_wrong_and_is_left_as_it_is(place: Path, *, deep: bool) -> None:
    before = tree(place)
    report = examine(place, deep=deep)
    assert tree(place) == before
    assert report.worst in {Severity.OK, Severity.NOTE}
    assert report.location == str(place)
    found = by_check(report)
    wanted = {"file_system", "permissions", "format", "log", "head", "owner", "receivers",
              "versions", "newest", "garbage", "space"}  # fmt: skip
    assert wanted <= set(found)
    assert ("deep" in found) is deep
    assert "5 kept versions" in only(report, "versions").what
    assert only(report, "owner").what == "no trainer owns the store"


def test_an_empty_store_is_whole_too(tmp_path: Path) -> None:
    WeightStore.open(tmp_path / "store", create=True).close()
    report = examine(tmp_path / "store", deep=True)
    assert report.worst is Severity.OK
    assert "no version" in only(report, "newest").what


def test_no_store_is_an_error_that_says_why(tmp_path: Path) -> None:
    for place, words in (
        (tmp_path / "nowhere", "no such directory"),
        (tmp_path, "no weightstore"),
    ):
        report = examine(place)
        assert report.worst is Severity.ERROR
        last = report.findings[-1]
        assert words in last.what
        assert "weightstore init" in last.do
    with pytest.raises(InputRefusedError, match="object storage is not there yet"):
        examine("s3://bucket/store")


def test_what_is_no_receiver_and_what_was_not_read_is_told(place: Path) -> None:
    blobs = LocalBlobStore(place)
    for number in (1, 2):
        put_member(blobs, empty_member(number))
    assert only(examine(place), "receivers").what == "2 receivers listed"
    found = only(examine(place, settings=Settings(limits=Limits(member_count=1))), "receivers")
    assert (found.severity, f"{2:032x}" in found.what) == (Severity.WARNING, True)
    blobs.overwrite(member_key(member_id(1)), b"torn")
    found = only(examine(place), "receivers")
    assert (found.severity, member_key(member_id(1)) in found.what) == (Severity.WARNING, True)


def test_a_missing_pack_names_version_object_and_what_still_reads(place: Path) -> None:
    with WeightStore.open(place) as store:
        store.checkout(3)
    pack = next(place.glob("packs/*/2-*"))
    pack.unlink()
    report = examine(place)
    found = only(report, "versions")
    assert found.severity is Severity.ERROR
    assert found.what == f"version 2: {pack.relative_to(place)} is missing"
    assert found.do.endswith("versions that can be checked out: 4-5, 1.")
    assert "not looked for" in only(report, "garbage").what


def test_several_damages_are_all_told(place: Path) -> None:
    spoil(next(place.glob("packs/*/3-*")), b"short")
    next(place.glob("anchors/*-4-1/model.safetensors")).unlink()
    (newest,) = (path for path in place.glob("manifests/*/5-*") if not path.suffix)
    spoil(newest)
    report = examine(place)
    what = [each.what for each in by_check(report)["versions"]]
    assert [text.partition(":")[0] for text in what] == ["version 3", "version 4", "version 5"]
    assert "has 5 bytes" in what[0]
    assert only(report, "newest").severity is Severity.ERROR
    assert all("1-2." in each.do for each in by_check(report)["versions"])


def test_a_flipped_bit_is_found_by_a_deep_look_alone(place: Path) -> None:
    spoil(next(place.glob("packs/*/3-*")))
    assert examine(place).worst is not Severity.ERROR
    report = examine(place, deep=True)
    found = only(report, "deep")
    assert found.severity is Severity.ERROR
    assert found.what.startswith("version 3: ")
    assert found.do.endswith("versions that can be checked out: 4-5, 1-2.")


def test_damage_of_everything_leaves_nothing_to_read(place: Path) -> None:
    for path in place.glob("anchors/*/*.safetensors"):
        path.unlink()
    found = by_check(examine(place))["versions"]
    assert all("no kept version can be checked out" in each.do for each in found)


def test_a_gap_in_the_log_names_the_record(place: Path) -> None:
    (place / "log" / f"{4:020d}").unlink()
    report = examine(place)
    found = only(report, "log")
    assert found.severity is Severity.ERROR
    assert "record 4 is missing although 3 later ones are there, up to 7" in found.what
    assert f"log/{4:020d}" in found.do
    assert "up to record 3, with version 2" in only(report, "versions").what


def test_a_record_that_does_not_parse_ends_the_look_there(place: Path) -> None:
    spoil(place / "log" / f"{3:020d}", b"{}")
    report = examine(place)
    assert only(report, "log").severity is Severity.ERROR
    assert "record 3" in only(report, "log").what
    assert "garbage" not in by_check(report)


def test_void_records_and_foreign_files_of_the_log_are_told(place: Path) -> None:
    last = max((place / "log").iterdir())
    record = json.loads(last.read_bytes())
    record |= {"slot": record["slot"] + 1, "commit_id": "f" * 32}
    void = place / "log" / f"{record['slot']:020d}"
    void.write_text(json.dumps(record, sort_keys=True, separators=(",", ":")))
    (place / "log" / "notes.txt").write_text("mine")
    found = by_check(examine(place))["log"]
    assert [each.severity for each in found] == [Severity.WARNING, Severity.NOTE]
    assert "log/notes.txt" in found[0].what
    assert found[1].what == f"1 record counts for nothing: slot {record['slot']}"


@pytest.mark.parametrize(
    ("hint", "words"),
    [(b"0", "names record 0"), (b"9999", "names record 9999"), (b"\xff", "garbage"),
     (None, "missing"), (b"1" * 50, "cannot be read")],
)  # fmt: skip
def test_a_hint_is_never_more_than_a_note(place: Path, hint: bytes | None, words: str) -> None:
    (place / "head").unlink()
    if hint is not None:
        (place / "head").write_bytes(hint)
    report = examine(place)
    found = only(report, "head")
    assert found.severity is Severity.NOTE
    assert words in found.what
    assert report.worst is Severity.NOTE


def test_a_damaged_format_does_not_hide_the_log(place: Path) -> None:
    spoil(place / "FORMAT", b"?")
    report = examine(place)
    assert only(report, "format").severity is Severity.ERROR
    assert only(report, "log").severity is Severity.OK
    assert only(report, "versions").severity is Severity.OK


def test_a_newer_format_asks_for_an_upgrade_and_stops(place: Path) -> None:
    document = json.loads((place / "FORMAT").read_bytes()) | {"format": 2}
    spoil(place / "FORMAT", json.dumps(document, sort_keys=True, separators=(",", ":")).encode())
    report = examine(place)
    assert report.findings[-1].check == "format"
    assert "Install a release" in report.findings[-1].do


def test_a_living_owner_is_fine_and_a_dead_one_is_told(place: Path) -> None:
    with OtherTrainer(place, take_over=True) as other:
        assert other.attached == "attached"
        living = only(examine(place), "owner")
        assert living.severity is Severity.OK
        assert f"process {other.process_id}" in living.what
        other.kill()
        report = examine(place)
    dead = only(report, "owner")
    assert dead.severity is Severity.WARNING
    assert "is dead" in dead.what
    assert report.worst is Severity.WARNING
    assert "locks" not in by_check(report)
    WeightStore.open(place, settings=LAB_SETTINGS).trainer("run").close()
    assert only(examine(place), "owner").severity is Severity.OK


def test_garbage_of_a_cut_put_is_counted_and_the_command_deletes_it(place: Path) -> None:
    with OtherTrainer(place) as other:
        other.kill()
    folder = place / "packs" / "run-2"
    folder.mkdir()
    (folder / f"6-1-0-{'c' * 32}.safetensors").write_bytes(bytes(5000))
    attempt = only(examine(place), "attempt")
    assert attempt.severity is Severity.NOTE
    assert "version 6" in attempt.what
    WeightStore.open(place, settings=LAB_SETTINGS).trainer("run").close()
    report = examine(place)
    assert "KiB) of retired versions" in only(report, "garbage").what
    assert only(report, "garbage").do.endswith(f"weightstore retire {place} --keep 5")
    with WeightStore.open(place) as store:
        store.retire(keep_newest=5)
    report = examine(place)
    assert only(report, "garbage").severity is Severity.OK
    assert "attempt" not in by_check(report)


def test_leftovers_of_dead_processes_are_notes(place: Path) -> None:
    (place / "packs" / "~tmp-1").write_bytes(bytes(3000))
    (place / "locks" / ("d" * 32)).write_bytes(b"")
    (place / "probe").mkdir(exist_ok=True)
    (place / "probe" / ("e" * 32)).write_bytes(b"one")
    (place / "README").write_text("mine")
    (place / "index").mkdir(exist_ok=True)
    (place / "index" / "other").write_bytes(bytes(2048))
    report = examine(place)
    assert report.worst is Severity.NOTE
    assert "1 unfinished files of 2.9 KiB: packs/~tmp-1" in only(report, "temporary").what
    assert "weightstore retire" in only(report, "temporary").do
    assert "1 lock files" in only(report, "locks").what
    assert [each.what for each in by_check(report)["names"]] == [
        "1 object of a cut probe is under probe/",
        "no release puts these here, and none touches them: README",
    ]
    assert "a local index of " in only(report, "index").what
    with WeightStore.open(place) as store:
        store.retire(keep_newest=5)
    assert "temporary" not in by_check(examine(place))


def test_links_are_a_warning(place: Path) -> None:
    (place / "packs" / "elsewhere").symlink_to(place)
    assert only(examine(place), "files").severity is Severity.WARNING


SURVEY = PlaceSurvey(
    file_system="ext4", is_local=True, is_mounted_read_only=False, free_size_bytes=1 << 40,
    free_file_count=10**6, size_bytes=0, index_size_bytes=0, unwritable=(), unreadable=(),
    irregular=(), locks=(), temporary=(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "severity", "words"),
    [
        ({"file_system": "tmpfs"}, Severity.WARNING, "does not survive"),
        ({"file_system": "nfs4", "is_local": False}, Severity.WARNING, "nfs4"),
        ({"file_system": "", "is_local": False}, Severity.WARNING, "unknown"),
        ({"is_mounted_read_only": True}, Severity.NOTE, "mounted read-only"),
        ({"unwritable": (".", "log")}, Severity.NOTE, "may only read"),
        ({"unwritable": ("log",)}, Severity.WARNING, "not to log"),
        ({"unreadable": ("log/1",)}, Severity.ERROR, "may not read log/1"),
    ],
)
def test_places_are_judged(change: dict[str, Any], severity: Severity, words: str) -> None:
    survey = replace(SURVEY, **change)
    found = list(doctor_place.findings_of_place(survey))
    worst = max(found, key=lambda each: tuple(Severity).index(each.severity))
    assert (worst.severity, words in worst.what) == (severity, True)


@pytest.mark.parametrize(
    ("free", "files", "newest", "severity"),
    [
        (1 << 40, None, 1 << 30, Severity.OK),
        (1 << 30, None, 1 << 30, Severity.WARNING),
        (1 << 20, None, None, Severity.ERROR),
        (1 << 40, 10, None, Severity.WARNING),
    ],
)
def test_space_is_judged_by_the_next_put(
    free: int, files: int | None, newest: int | None, severity: Severity
) -> None:
    survey = replace(SURVEY, free_size_bytes=free, free_file_count=files)
    found = list(doctor_place.space_findings(survey, newest, LAB_SETTINGS))
    assert max((each.severity for each in found), key=tuple(Severity).index) is severity


@pytest.mark.parametrize(
    ("host", "boot_id", "severity", "words"),
    [
        ("elsewhere", "b" * 32, Severity.NOTE, "cannot be told"),
        (machine.host_name(), "b" * 32, Severity.WARNING, "started anew"),
        (machine.host_name(), "", Severity.NOTE, "cannot be told"),
    ],
)
def test_owners_that_cannot_be_proved_dead_are_left_to_the_user(
    made: Path, host: str, boot_id: str, severity: Severity, words: str
) -> None:
    with WeightStore.open(made) as store:
        now = store._log.tail().now
        claim = OpenClaim(
            slot=Slot(1), epoch=Epoch(1), run=RunId("grpo"), session=SessionId("9" * 32),
            last_step=None, host=host, process=7, boot_id=boot_id,
        )  # fmt: skip
        owned = now.model_copy(update={"claim": claim})
        blobs = store._blobs
        (found,) = doctor_place.owner_findings(blobs, owned, SURVEY, "store")  # type: ignore[arg-type]  # a local one
    assert (found.severity, words in found.what) == (severity, True)
    assert "--take-over" in found.do


def test_sizes_are_told_in_words() -> None:
    sizes = (0, 1023, 1024, 1 << 20, 3 << 29, 5 << 40)
    assert [size_said(each) for each in sizes] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB", "5,120.0 GiB",
    ]  # fmt: skip
