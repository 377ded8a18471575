"""Exit codes of the command line: one for each thing that a script would do next."""

from __future__ import annotations

import enum

from weightstore.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnknownOutcomeError,
    WeightStoreError,
)


class ExitCode(enum.IntEnum):
    """0 is success, 2 is a usage error; 130 is an interrupt, 141 a closed pipe: all by convention.

    10 and 11 are answers of `doctor`: it did its work, and found warnings or errors.
    """

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_FOUND = 4
    CONFLICT = 5
    FENCED = 6
    CORRUPT = 7
    UNAVAILABLE = 8
    UNKNOWN_OUTCOME = 9
    FOUND_WARNINGS = 10
    FOUND_ERRORS = 11
    INTERRUPTED = 130
    BROKEN_PIPE = 141


_BY_BRANCH: tuple[tuple[type[WeightStoreError], ExitCode], ...] = (
    (RefusedError, ExitCode.REFUSED),
    (NotFoundError, ExitCode.NOT_FOUND),
    (ConflictError, ExitCode.CONFLICT),
    (FencedError, ExitCode.FENCED),
    (CorruptError, ExitCode.CORRUPT),
    (UnavailableError, ExitCode.UNAVAILABLE),
    (UnknownOutcomeError, ExitCode.UNKNOWN_OUTCOME),
)


def exit_code_of(error: WeightStoreError) -> ExitCode:
    """The code of an error's branch of the tree."""
    for branch, code in _BY_BRANCH:
        if isinstance(error, branch):
            return code
    return ExitCode.FAILED
