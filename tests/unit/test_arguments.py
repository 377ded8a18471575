"""What a caller gave is taken for what it is, or refused by the name of its argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from weightstore import arguments
from weightstore.errors import InputRefusedError, SelectorError

NO_NUMBERS: tuple[object, ...] = (
    None,
    True,
    np.True_,
    2.0,
    "2",
    b"\x02",
    [2],
    np.array([1, 2]),
    torch.tensor([1, 2]),
    torch.empty((), dtype=torch.int64, device="meta"),
    object(),
)


class Path5:
    """A path that is none."""

    def __fspath__(self) -> bytes:
        return b"five"


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2), np.array(2), torch.tensor(2)])
def test_any_integer_type_is_an_int(value: object) -> None:
    found = (
        arguments.whole(value, "n", least=1, most=2),
        *arguments.wholes([value], "n"),
        arguments.selector(value),
    )
    assert found == (2, 2, 2)
    assert {type(one) for one in found} == {int}


@pytest.mark.parametrize(
    "value", [*NO_NUMBERS, 0, -1, 4, 1 << 60, pytest.param(10**5000, id="huge")]
)
def test_what_is_no_whole_number_within_bounds_is_refused(value: object) -> None:
    with pytest.raises(InputRefusedError, match=r"^n=.* is no whole number") as caught:
        arguments.whole(value, "n", least=1, most=3)
    assert caught.value.facts == {"argument": "n"}
    assert "1 to 3" in caught.value.do


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_collection_of_whole_numbers_holds_nothing_else(value: object) -> None:
    for given in (value, [1, value]):
        if isinstance(given, list | np.ndarray | torch.Tensor) and given is value:
            continue
        with pytest.raises(InputRefusedError, match="list of whole numbers"):
            arguments.wholes(given, "n")
    assert arguments.wholes(np.array([1, 2]), "n") == arguments.wholes({1, 2}, "n") == (1, 2)
    with pytest.raises(InputRefusedError):
        arguments.wholes(np.array(1), "n")


@pytest.mark.parametrize("value", [None, 1, 0, "yes", "", [], torch.tensor(True)])
def test_a_flag_is_a_bool(value: object) -> None:
    with pytest.raises(InputRefusedError, match="is no flag"):
        arguments.flag(value, "anchor")
    assert arguments.flag(np.int64(3) == 3, "anchor") is True


def test_texts_are_no_single_text_and_no_other_things() -> None:
    assert arguments.texts(["a", "b"], "rules") == ("a", "b")
    for value in ("module.", 5, None, {"a": "b"}, ["a", 5], b"ab", iter("ab")):
        with pytest.raises(InputRefusedError, match="rules"):
            arguments.texts(value, "rules")
    for value in (None, 5, b"x"):
        with pytest.raises(InputRefusedError, match="is no text"):
            arguments.text(value, "run")
    assert arguments.texts_by_text({"*": "bf16"}, "cast") == {"*": "bf16"}
    casts: tuple[object, ...] = ({"*": 3}, {3: "bf16"}, [("*", "bf16")], "bf16")
    for cast in casts:
        with pytest.raises(InputRefusedError, match="cast"):
            arguments.texts_by_text(cast, "cast")


def test_a_choice_is_one_of_a_closed_set() -> None:
    assert arguments.choice("refuse", "missing", ("refuse", "unchanged")) == "refuse"
    for value in ("bogus", None, ["refuse"], True):
        with pytest.raises(InputRefusedError, match="missing=") as caught:
            arguments.choice(value, "missing", ("refuse", "unchanged"))
        assert "'refuse' or 'unchanged'" in caught.value.do


def test_a_place_is_a_path_and_no_url() -> None:
    assert arguments.place_text(Path("policy"), "location") == "policy"
    for value in ("s3://bucket/policy", "file:///policy"):
        with pytest.raises(InputRefusedError, match="object storage is not there yet") as caught:
            arguments.place_text(value, "location")
        assert caught.value.facts == {"location": value}
    with pytest.raises(InputRefusedError, match="location="):
        arguments.place_text(3, "location")


@pytest.mark.parametrize("value", [0, 1.5, np.float32(1.5), np.int64(3), None, 1e9])
def test_a_time_to_wait_is_a_number_of_seconds_or_none(value: float | None) -> None:
    assert arguments.timeout_s(value) == value


@pytest.mark.parametrize(
    "value", [-1, -0.1, math.nan, math.inf, True, "5", 10**400, torch.tensor(1.0), [1]]
)
def test_what_no_wait_can_have_is_refused(value: object) -> None:
    with pytest.raises(InputRefusedError, match="timeout_s="):
        arguments.timeout_s(value)


@pytest.mark.parametrize("value", [5, None, "", "a\0b", b"a", "\ud800", Path("a\0b"), Path5(), []])
def test_what_no_file_system_can_have_is_no_path(value: object) -> None:
    for call in (arguments.path, arguments.path_text):
        with pytest.raises(InputRefusedError, match="is no path"):
            call(value, "path")


def test_paths_are_texts_and_path_objects_of_any_bytes() -> None:
    for value in ("a/b", Path("a/b")):
        assert arguments.path(value, "path") == Path("a/b")
        assert arguments.path_text(value, "path") == "a/b"
    assert arguments.path_text("s3://bucket", "path") == "s3://bucket"
    assert arguments.path("\udcff", "path") == Path("\udcff")


def test_a_home_directory_is_known_or_refused() -> None:
    assert arguments.expanded(Path("~")) == Path.home()
    with pytest.raises(InputRefusedError, match="home directory"):
        arguments.expanded(Path("~nobody-has-this-name/x"))


def test_classes_mappings_and_functions() -> None:
    arguments.check_instance(5, int, "n", "Give one.")
    arguments.check_mapping({}, "m", "Give one.")
    assert arguments.function(print, "progress") is print
    refused: tuple[Callable[[], object], ...] = (
        lambda: arguments.check_instance("5", int, "n", "Give one."),
        lambda: arguments.check_mapping([], "n", "Give one."),
        lambda: arguments.function(5, "n"),
    )
    for call in refused:
        with pytest.raises(InputRefusedError, match="n="):
            call()


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_a_selector_is_a_number_or_a_text(value: object) -> None:
    if isinstance(value, str):
        assert arguments.selector(value) == value
        return
    with pytest.raises(SelectorError, match="is no selector"):
        arguments.selector(value)


def test_messages_stay_short_whatever_was_given() -> None:
    long: tuple[object, ...] = (10**5000, "x" * 9999, b"x" * 9999, ["x"] * 9999, torch.ones(999))
    assert all(len(arguments.shown(value)) < 120 for value in long)
    short: tuple[object, ...] = (None, True, 3, "a", b"a", 1.5, [])
    assert [arguments.shown(value) for value in short] == [
        "None", "True", "3", "'a'", "b'a'", "1.5", "<list>",
    ]  # fmt: skip
