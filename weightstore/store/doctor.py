"""What is wrong with a store, and what to do; reads only, and goes on where others stop.

Nothing here needs an opened store: a damaged one is what it is for.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from weightstore import arguments
from weightstore.arguments import counted
from weightstore.errors import (
    BlobNotFoundError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.keys import HEAD_KEY, LOG_PREFIX, log_key
from weightstore.format.records import FORMAT_NUMBER
from weightstore.format.rules import EMPTY_PREFIX, Invalid, Prefix
from weightstore.history.log import Log
from weightstore.history.progress import Progress, no_progress
from weightstore.history.store_format import open_store
from weightstore.ids import Slot
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.storage.local import LocalBlobStore
from weightstore.storage.place_survey import PlaceSurvey, survey_place
from weightstore.store import doctor_place, doctor_versions
from weightstore.store.findings import (
    DoctorReport,
    Finding,
    Severity,
    error,
    note,
    ok,
    some,
    warning,
)


def examine(
    location: str | PathLike[str],
    *,
    deep: bool = False,
    settings: Settings | None = None,
    progress: Progress = no_progress,
) -> DoctorReport:
    """Look at everything about a store that can be wrong. Writes nothing.

    Args:
        location: The store's directory; it may be damaged, or no store at all.
        deep: Also read every object of every kept version and check its hashes.
        settings: Threads and limits.
        progress: Told of bytes read, with `deep`.

    Raises:
        InputRefusedError: the location is a URL, or an argument is of a wrong type.
    """
    text = arguments.place_text(location, "location")
    deep = arguments.flag(deep, "deep")
    used = Settings() if settings is None else settings
    arguments.check_instance(used, Settings, "settings", "Give a weightstore.Settings.")
    progress = arguments.function(progress, "progress")
    findings = tuple(_findings(Path(text), used, progress, deep=deep))
    return DoctorReport(location=text, is_deep=deep, findings=findings)


def _findings(
    path: Path, settings: Settings, progress: Progress, *, deep: bool
) -> Iterator[Finding]:
    try:
        blobs = LocalBlobStore(path)
        survey = survey_place(blobs.root)
    except WeightStoreError as problem:
        yield error("place", problem.message, problem.do)
        return
    except OSError as problem:
        yield error("place", f"cannot look at {path}: {problem.strerror}", "Mend the storage.")
        return
    yield from doctor_place.findings_of_place(survey)
    log = Log(blobs, settings.limits)
    try:
        store_id = open_store(blobs, log)
    except UpgradeRequiredError as problem:
        yield error("format", problem.message, "Install a release that knows this format.")
        return
    except WeightStoreError as problem:
        yield error("format", problem.message, problem.do)
        if not any(blobs.list(LOG_PREFIX)):
            return  # no store, or nothing left of one
    else:
        yield ok("format", f"a store of format {FORMAT_NUMBER} with the id {store_id}")
    prefix, log_findings = _read_log(blobs, log)
    yield from log_findings
    if any(each.severity is Severity.ERROR for each in log_findings):
        yield _not_examined(prefix)
        yield from doctor_place.space_findings(survey, None, settings)
        return
    yield from _guarded("head", _head_findings(blobs, log))
    yield from _of_state(blobs, log, prefix, survey, settings, progress, deep=deep)


def _not_examined(prefix: Prefix) -> Finding:
    newest = prefix.now.newest
    said = "no version" if newest is None else f"version {newest.version} as the newest"
    return note(
        "versions",
        f"not looked at: the log is whole up to record {prefix.next_slot - 1}, with {said} there",
    )


def _of_state(
    blobs: LocalBlobStore,
    log: Log,
    prefix: Prefix,
    survey: PlaceSurvey,
    settings: Settings,
    progress: Progress,
    *,
    deep: bool,
) -> Iterator[Finding]:
    """What depends on what the log says, all of which could be read."""
    quoted = shlex.quote(blobs.location)
    yield from _guarded("owner", doctor_place.owner_findings(blobs, prefix.now, survey, quoted))
    yield from _guarded("receivers", doctor_place.receiver_findings(blobs, settings))
    exam = doctor_versions.Examination(blobs, log, prefix, settings)
    yield from _guarded("versions", exam.presence_findings())
    yield from _guarded("newest", exam.newest_findings())
    if deep:
        yield from _guarded("deep", exam.deep_findings(progress))
    yield from _guarded("garbage", exam.garbage_findings(quoted))
    yield from doctor_place.space_findings(survey, exam.newest_size_bytes, settings)
    yield from doctor_place.leftover_findings(
        survey, prefix.now, f"weightstore retire {quoted} --keep {max(exam.kept_count, 1)}"
    )
    yield from _guarded("names", doctor_place.name_findings(blobs, survey))


def _guarded(check: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """A check that cannot be made is a finding too, and ends no other one."""
    try:
        yield from found
    except WeightStoreError as problem:
        yield error(check, problem.message, problem.do)


def _read_log(blobs: BlobStore, log: Log) -> tuple[Prefix, list[Finding]]:
    """Every record from the first one, as far as they go."""
    prefix, void_slots = EMPTY_PREFIX, list[str]()
    findings: list[Finding] = []
    try:
        for step in log.steps(EMPTY_PREFIX):
            prefix = step.after
            if isinstance(step.verdict, Invalid):
                void_slots.append(str(step.stored.record.slot))
        found = [info.key for info in blobs.list(LOG_PREFIX)]
        prefix = log.follow(prefix)  # what was put before the listing ended is not beyond it
    except WeightStoreError as problem:
        findings.append(error("log", problem.message, problem.do))
        return prefix, findings
    findings += _beyond_findings(prefix, found)
    if not findings:
        findings.append(
            ok("log", f"{counted(prefix.next_slot, 'record')}, every hash fits the next one")
        )
    if void_slots:
        findings.append(
            note(
                "log",
                f"{counted(len(void_slots), 'record counts', 'records count')} for nothing: "
                f"{'slot' if len(void_slots) == 1 else 'slots'} {some(void_slots)}",
            )
        )
    return prefix, findings


def _beyond_findings(prefix: Prefix, keys: list[str]) -> Iterator[Finding]:
    slots = [(key, _slot_of(key)) for key in keys]
    beyond = [slot for _, slot in slots if slot is not None and slot >= prefix.next_slot]
    if beyond:
        yield error(
            "log",
            f"record {prefix.next_slot} is missing although {len(beyond)} later ones are there, "
            f"up to {max(beyond)}",
            f"Restore {log_key(prefix.next_slot)} from another copy of the store.",
        )
    foreign = [key for key, slot in slots if slot is None]
    if foreign:
        yield warning(
            "log",
            f"{LOG_PREFIX} holds what is no record: {some(foreign)}",
            "Move it elsewhere; no release puts it there.",
        )


def _slot_of(key: str) -> Slot | None:
    """The slot of a record's key; None for any other key."""
    number = key.removeprefix(LOG_PREFIX)
    if not (number.isascii() and number.isdigit()):
        return None
    slot = Slot(int(number))
    return slot if log_key(slot) == key else None


def _head_findings(blobs: BlobStore, log: Log) -> Iterator[Finding]:
    """The hint may be anything; who finds it wrong only reads a little more."""
    first = log.tail().next_slot - 1
    try:
        data = blobs.get(HEAD_KEY, max_size_bytes=log.limits.hint_size_bytes)
    except BlobNotFoundError:
        yield note("head", "the hint is missing: finding the tail takes some reads more")
        return
    except WeightStoreError as problem:
        yield note("head", f"the hint cannot be read: {problem.message}")
        return
    if not (data.isascii() and data.isdigit()):
        yield note("head", "the hint is garbage; the next write mends it")
        return
    slot = Slot(int(data))
    last = log.tail().next_slot - 1  # a writer goes on meanwhile, and its hint with it
    if first <= slot <= last:
        yield ok("head", f"the hint names the last record, {slot}")
    else:
        yield note("head", f"the hint names record {slot}, the last one is {last}")
