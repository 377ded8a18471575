"""Raising a store to the newest format, by the frozen code of `migrations`.

That code knows every format by itself, and nothing of this package; it lies in the package
as `_migrations`, and in a checkout beside it. What lies beside an installed package is
somebody else's, whatever its name, and is not run.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol, cast

from weightstore import arguments
from weightstore.clock import Clock, Entropy, SystemClock, SystemEntropy
from weightstore.errors import (
    ConflictError,
    CorruptLogError,
    InputRefusedError,
    NotAStoreError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.storage.durable import storage_error

PACKAGE = "weightstore._migrations"
_PACKAGE_FOLDER = Path(__file__).parents[1]
PACKAGED_FOLDER = _PACKAGE_FOLDER / "_migrations"
CHECKOUT_FOLDER = _PACKAGE_FOLDER.parent / "migrations"


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What a migration would do, or did.

    Attributes:
        format: Of the store before.
        newest: The newest format that this release knows.
        steps: Names of the steps, in order; none if there is nothing to do.
    """

    format: int
    newest: int
    steps: tuple[str, ...]


class _Plan(Protocol):
    format: int
    newest: int
    steps: tuple[str, ...]


class MigrationCode(Protocol):
    """The module `chain` of the migrations."""

    def plan(self, root: Path, folder: Path | None = None) -> _Plan:
        """Look what has to be done."""
        ...

    def run(
        self,
        root: Path,
        *,
        nonce: Callable[[], str],
        unix_ms: int,
        folder: Path | None = None,
    ) -> _Plan:
        """Do it."""
        ...


def plan_migration(
    location: str | PathLike[str], *, steps_folder: Path | None = None
) -> MigrationPlan:
    """What would be done to raise a store to the newest format; changes nothing.

    Args:
        location: The store's directory.
        steps_folder: Other steps than those of this release.

    Raises:
        UpgradeRequiredError: the store has a newer format than this release knows.
        NotAStoreError: there is no store.
        CorruptLogError: its log does not parse.
        InputRefusedError: the location is a URL, or an argument is of a wrong type.
    """
    root, folder = _root(location), _steps(steps_folder)
    with _as_our_errors(root):
        return _ours(load_migrations().plan(root, folder))


def migrate_store(
    location: str | PathLike[str],
    *,
    steps_folder: Path | None = None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> MigrationPlan:
    """Raise a store to the newest format; writers of the old one stop at their next record.

    After a crash: a store of its old format or of one further on; repeating ends at the
    newest.

    Args:
        location: The store's directory.
        steps_folder: Other steps than those of this release.
        clock: For display.
        entropy: For nonces.

    Raises:
        ConflictError: a trainer writes all the time.
        UpgradeRequiredError, NotAStoreError, CorruptLogError, InputRefusedError: as
            `plan_migration`.
    """
    root, folder = _root(location), _steps(steps_folder)
    used_clock = SystemClock() if clock is None else clock
    used_entropy = SystemEntropy() if entropy is None else entropy
    arguments.check_instance(used_clock, Clock, "clock", "Give a Clock, or leave it out.")
    arguments.check_instance(used_entropy, Entropy, "entropy", "Give an Entropy, or leave it out.")
    with _as_our_errors(root):
        return _ours(
            load_migrations().run(
                root,
                nonce=used_entropy.hex128,
                unix_ms=used_clock.unix_ms(),
                folder=folder,
            )
        )


def load_migrations(
    packaged: Path = PACKAGED_FOLDER, checkout: Path = CHECKOUT_FOLDER
) -> MigrationCode:
    """The code from the first of two folders that has it.

    Args:
        packaged: Where it is in an installed package.
        checkout: Where it is in a checkout of this project, and only there.

    Raises:
        InputRefusedError: neither has it; the installation is not whole.
    """
    if _is_code(packaged):
        found = packaged
    elif _is_code(checkout) and _is_checkout(checkout.parent):
        found = checkout
    else:
        raise InputRefusedError(
            f"this installation lacks its migrations: neither {packaged} nor {checkout} has them",
            do="Install weightstore again.",
        )
    if PACKAGE not in sys.modules or sys.modules[PACKAGE].__path__ != [str(found)]:
        _load_package(found)
    return cast("MigrationCode", importlib.import_module(f"{PACKAGE}.chain"))


def _is_code(folder: Path) -> bool:
    return (folder / "__init__.py").is_file() and (folder / "chain.py").is_file()


def _is_checkout(folder: Path) -> bool:
    """Whether a folder is this project's; beside an installed package it is `site-packages`."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return bool(project["name"] == "weightstore")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _load_package(folder: Path) -> None:
    for name in [each for each in sys.modules if each.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = module
    spec.loader.exec_module(module)


def _root(location: str | PathLike[str]) -> Path:
    return Path(arguments.place_text(location, "location"))


def _steps(folder: Path | None) -> Path | None:
    return None if folder is None else arguments.path(folder, "steps_folder")


def _ours(plan: _Plan) -> MigrationPlan:
    return MigrationPlan(format=plan.format, newest=plan.newest, steps=tuple(plan.steps))


@contextmanager
def _as_our_errors(root: Path) -> Iterator[None]:
    """Errors of the frozen code by their names, since it shares no class with this package."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, f"migrate {root}") from error
    except Exception as error:
        kind = _OURS.get(type(error).__name__)
        if kind is None or isinstance(error, WeightStoreError):
            raise
        raise kind(str(error), do=_DO[kind], facts={"location": str(root)}) from error


_OURS: dict[str, type[WeightStoreError]] = {
    "NoStoreError": NotAStoreError,
    "NewerStoreError": UpgradeRequiredError,
    "DamagedStoreError": CorruptLogError,
    "BusyStoreError": ConflictError,
    "MissingStepError": InputRefusedError,
}
_DO: dict[type[WeightStoreError], str] = {
    NotAStoreError: "Give the directory of a store.",
    UpgradeRequiredError: "Install a release that knows the store's format.",
    CorruptLogError: "Run weightstore doctor, and restore the log from another copy.",
    ConflictError: "Stop the trainer, then migrate again.",
    InputRefusedError: "Install weightstore again.",
}
