"""Why a store could not be migrated; the package turns these into errors of its own."""

from __future__ import annotations


class MigrationError(Exception):
    """Base of what is raised here."""


class NoStoreError(MigrationError):
    """The place holds no store."""


class NewerStoreError(MigrationError):
    """The store has a format or a feature that is not known here."""


class DamagedStoreError(MigrationError):
    """The log does not parse, or something of a store is missing."""


class BusyStoreError(MigrationError):
    """Others wrote into the log all the time; nothing was raised."""


class MissingStepError(MigrationError):
    """There is no step that leads on from the store's format."""
