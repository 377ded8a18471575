"""From a store's format to the newest one, a step at a time.

A step prepares what the next format needs beside what is there, and then one `format`
record is put at the very slot that follows the log it was prepared for. Whoever writes in
between takes that slot, and the step is done again; whoever writes afterwards finds the
record and stops. So a step runs beside trainers of the old format and fences them, and a
cut at any point leaves a store of the old format or one of the new.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from . import log_1
from .failures import (
    BusyStoreError,
    DamagedStoreError,
    MissingStepError,
    NewerStoreError,
    NoStoreError,
)
from .log_1 import Prefix
from .place import Place

FIRST_FORMAT = 1
FORMAT_SIZE_BYTES_MAX = 4_096
TRY_COUNT_MAX = 16
"""How often a step is done again because the log moved while it was prepared."""
_STEP_FILE = re.compile(r"from_([1-9][0-9]*)_to_([1-9][0-9]*)\.py")


@dataclass(frozen=True)
class Step:
    """One module `from_N_to_M`.

    Attributes:
        name: Of the module.
        source: The format that it begins with.
        target: The format that it ends with.
        features: What is in force from then on, besides what was.
        convert: Adds what the target format needs for the records of a prefix. It may be cut
            anywhere and is done again, also when all of it was done; it changes nothing that
            is there.
        read_log: Reads a log of any format up to the target: a step that was taken is met
            again after a cut.
    """

    name: str
    source: int
    target: int
    features: tuple[str, ...]
    convert: Callable[[Place, Prefix], None]
    read_log: Callable[[Place], Prefix]


@dataclass(frozen=True)
class Plan:
    """What a migration would do, or did.

    Attributes:
        format: Of the store before.
        newest: The newest format that is known here.
        steps: Names of the steps, in order; none if there is nothing to do.
    """

    format: int
    newest: int
    steps: tuple[str, ...]


def plan(root: Path, folder: Path | None = None) -> Plan:
    """Look what has to be done; changes nothing.

    Args:
        root: The store's directory.
        folder: Where the steps are; None is the folder of this module.

    Raises:
        NoStoreError: there is no store.
        NewerStoreError: it has a newer format than the newest step leads to.
        MissingStepError: the steps have a gap.
        DamagedStoreError: its log does not parse.
    """
    steps = find_steps(folder)
    found = _current_format(Place(_existing(root)), steps)
    return Plan(found, _newest(steps), tuple(step.name for step in _path(steps, found)))


def run(
    root: Path,
    *,
    nonce: Callable[[], str],
    unix_ms: int,
    folder: Path | None = None,
) -> Plan:
    """Raise a store to the newest format.

    After a crash: a store of its old format or of one further on; repeating ends at the
    newest.

    Args:
        root: The store's directory.
        nonce: Gives 32 hexadecimal digits, never the same.
        unix_ms: The clock, for display.
        folder: Where the steps are; None is the folder of this module.

    Raises:
        BusyStoreError: others took every slot; their trainer must be stopped first.
        NoStoreError, NewerStoreError, MissingStepError, DamagedStoreError: as `plan`.
    """
    done = plan(root, folder)
    steps = find_steps(folder)
    place = Place(root)
    # Another process may have raised it just now: "nothing to do" is said of what will last.
    place.confirm("log")
    for step in _path(steps, done.format):
        _take(place, step, nonce, unix_ms)
    return done


def find_steps(folder: Path | None = None) -> dict[int, Step]:
    """Every step of a folder, by the format that it begins with.

    Raises:
        MissingStepError: a step leads nowhere, or two begin with one format.
    """
    steps: dict[int, Step] = {}
    for path in sorted((folder or Path(__file__).parent).iterdir()):
        found = _STEP_FILE.fullmatch(path.name)
        if found is None:
            continue
        source, target = int(found[1]), int(found[2])
        if target <= source or source in steps:
            raise MissingStepError(f"{path.name} is no step up, or the second one from {source}")
        module = _load(path)
        steps[source] = Step(
            name=path.stem,
            source=source,
            target=target,
            features=tuple(getattr(module, "FEATURES", ())),
            convert=module.convert,
            read_log=getattr(module, "read_log", log_1.read_log),
        )
    return steps


def _take(place: Place, step: Step, nonce: Callable[[], str], unix_ms: int) -> None:
    """Take one step.

    After a crash: perhaps some files that nothing names yet; or the step is done.
    """
    for _ in range(TRY_COUNT_MAX):
        prefix = step.read_log(place)
        # After the look, not before: a record that came in between would be built on, or
        # reported as done, and could vanish with the power.
        place.confirm("log")
        if prefix.now["format"] >= step.target:
            return
        step.convert(place, prefix)
        record = log_1.format_record(
            prefix,
            format_number=step.target,
            features=list(step.features),
            nonce=nonce,
            unix_ms=unix_ms,
        )
        if place.put_if_absent(log_1.log_key(prefix.next_slot), record):
            return
    raise BusyStoreError(
        f"the log of {place.root} moved {TRY_COUNT_MAX} times while {step.name} was prepared"
    )


def _existing(root: Path) -> Path:
    if not root.is_dir():
        raise NoStoreError(f"there is no directory {root}")
    return root


def _current_format(place: Place, steps: dict[int, Step]) -> int:
    """The format in force: the one that `FORMAT` says, raised by the log."""
    data = place.read("FORMAT", size_bytes_max=FORMAT_SIZE_BYTES_MAX)
    if data is None:
        raise NoStoreError(f"{place.root} has no FORMAT")
    try:
        value = json.loads(data)
        began, magic = value["format"], value["magic"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoStoreError(f"the FORMAT of {place.root} is of something else") from error
    if magic != "weightstore" or type(began) is not int or began < FIRST_FORMAT:
        raise NoStoreError(f"the FORMAT of {place.root} is of something else")
    _refuse_newer(place, began, steps)
    last = max(steps.values(), key=lambda step: step.target, default=None)
    now = (log_1.read_log if last is None else last.read_log)(place).now
    found = now["format"]
    if type(found) is not int:
        raise DamagedStoreError(f"the log of {place.root} names no format")
    _refuse_newer(place, found, steps)
    known = {feature for step in steps.values() for feature in step.features}
    unknown = sorted(set(now["features"]) - known)
    if unknown:
        raise NewerStoreError(f"{place.root} uses {', '.join(unknown)}, unknown here")
    return found


def _refuse_newer(place: Place, found: int, steps: dict[int, Step]) -> None:
    newest = _newest(steps)
    if found > newest:
        raise NewerStoreError(
            f"{place.root} has format {found}, the newest that is known here is {newest}"
        )


def _newest(steps: dict[int, Step]) -> int:
    return max((step.target for step in steps.values()), default=FIRST_FORMAT)


def _path(steps: dict[int, Step], found: int) -> list[Step]:
    newest, path = _newest(steps), list[Step]()
    while found < newest:
        step = steps.get(found)
        if step is None:
            raise MissingStepError(f"no step leads on from format {found}")
        path.append(step)
        found = step.target
    return path


def _load(path: Path) -> ModuleType:
    """A step's module; it may import its neighbours here by relative names."""
    package = __name__.rpartition(".")[0]
    name = f"{package}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise MissingStepError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
