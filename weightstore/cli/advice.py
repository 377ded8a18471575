"""What the library advises in terms of Python, said in terms of the command line."""

from __future__ import annotations

import re

_OPTIONS = (
    (re.compile(r'Open with `cast=\{"([^"]*)": "([^"]*)"\}`'), r"Add --cast '\1=\2'"),
    (re.compile(r"`?\bmissing=(['\"])(\w+)\1`?"), r"--missing \2"),
    (re.compile(r"`?\bnew_schema=True\b`?"), "--new-schema"),
    (re.compile(r"`?\btake_over=True\b`?"), "--take-over"),
    (re.compile(r"claim with rewind_to below this step"), "add --rewind-to N, N below this step"),
    (re.compile(r"`?\brewind_to\b`?"), "--rewind-to"),
    (re.compile(r"`checkout_to_file`"), "`weightstore checkout`"),
    (re.compile(r"`store\.activate\([^)]*\)`"), "`weightstore activate`"),
    (re.compile(r"`forget_receiver`"), "`weightstore receivers --forget`"),
    (re.compile(r"`require_all`"), "--require-all"),
    (re.compile(r"`timeout_s`"), "--timeout"),
    (re.compile(r"`host_files`"), "`weightstore follow`"),
)
"""Phrases of the API, and the options that do the same."""


def command_line_advice(do: str) -> str:
    """The advice of an error, with options where the library names arguments.

    Args:
        do: What the library advises.
    """
    for phrase, option in _OPTIONS:
        do = phrase.sub(option, do)
    return do
