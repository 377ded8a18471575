"""Whether a version exists, was retired, or was never made."""

from __future__ import annotations

from weightstore.errors import VersionGoneError, VersionNotFoundError
from weightstore.format.canonical import MAX_INTEGER
from weightstore.format.records import Now
from weightstore.format.rules import is_kept
from weightstore.ids import VersionId


def check_committed(now: Now, version: int) -> VersionId:
    """The version, if it was ever committed; retired ones count.

    Raises:
        VersionNotFoundError: it was never committed.
    """
    newest = now.newest
    if not 0 <= version <= MAX_INTEGER:
        raise VersionNotFoundError(
            "a version is a number from 1, far below 2^53", do="List the versions of the store."
        )
    if newest is None:
        raise VersionNotFoundError(
            f"version {version} does not exist: the store holds no version yet",
            do="Put or import a first version.",
            facts={"version": version},
        )
    if not 1 <= version <= newest.version:
        raise VersionNotFoundError(
            f"version {version} does not exist: the newest is {newest.version}",
            do=f"Ask for a version from 1 to {newest.version}.",
            facts={"version": version, "newest": newest.version},
        )
    return VersionId(version)


def check_kept(now: Now, version: int) -> VersionId:
    """The version, if it is committed and was not retired.

    Raises:
        VersionNotFoundError: it was never committed.
        VersionGoneError: it was retired; the error names the newest kept one.
    """
    known = check_committed(now, version)
    if is_kept(now, known):
        return known
    assert now.newest is not None
    # The rules keep the newest version always, so it is the newest kept one.
    raise VersionGoneError(
        f"version {version} was retired; the newest kept version is {now.newest.version}",
        do=f"Use version {now.newest.version}, or tag a version before it is retired.",
        facts={"version": version, "newest_kept": now.newest.version},
    )
