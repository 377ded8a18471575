"""A failure to close hides nothing."""

from __future__ import annotations

import pytest

from weightstore.errors import CommitUnknownError, StoreClosedError
from weightstore.history.closing import closing_after


def test_a_failure_to_close_does_not_hide_what_led_there() -> None:
    """Unknown stays unknown: it must not become the closed handle that it leads to. (P11)"""
    unknown = CommitUnknownError("no answer")
    with closing_after(unknown):
        _fail_to_close()
    assert unknown.__notes__ == ["closing failed too: this handle is dead"]


def test_a_failure_to_close_comes_out_where_nothing_led_there() -> None:
    with pytest.raises(StoreClosedError), closing_after(None):
        _fail_to_close()


def _fail_to_close() -> None:
    raise StoreClosedError("this handle is dead")
