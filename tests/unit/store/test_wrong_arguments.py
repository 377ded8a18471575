"""Wrong types and values on every public call: a typed error, before anything is changed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark.structures import ParameterSet
from numpy.typing import NDArray

from weightstore.errors import (
    DTypeRefusedError,
    InputRefusedError,
    NameRefusedError,
    RefusedError,
    SchemaMismatchError,
    SelectorError,
    StoreBusyError,
)
from weightstore.settings import Limits, Settings
from weightstore.store import WeightStore
from weightstore.testing.facade_calls import call, make_stage, parameters_of, public_methods
from weightstore.testing.store_lab import LAB_SETTINGS, other_weights, tree
from weightstore.trainer.session import TrainerSession

HUGE = 10**5000
NO_PATHS: tuple[Any, ...] = (None, 5, b"x", "", "a\0b", Path("a\0b"), "\ud800", ["x"])
NO_FLAGS: tuple[Any, ...] = (None, 1, "yes")
NO_STEPS: tuple[Any, ...] = (None, "3", 2.5, True, -1, 2**60, HUGE, [3])
NO_TEXTS: tuple[Any, ...] = (None, 5, b"x", ["x"])
NO_SELECTORS: tuple[Any, ...] = (None, 2.5, True, b"latest", [1], (), object())
NO_SOURCES: tuple[Any, ...] = (None, 5, "model.safetensors", b"x", True, 1.5, np.array(1))


def many(
    method: str, name: str, values: tuple[Any, ...], kind: type[RefusedError]
) -> list[ParameterSet]:
    """A case for each wrong value of one parameter."""
    return [
        pytest.param(method, name, value, kind, id=f"{method}-{name}-{kind.__name__}-{number}")
        for number, value in enumerate(values)
    ]


INPUT = InputRefusedError
CASES = [
    *many("open", "location", NO_PATHS, INPUT),
    *many("open", "create", NO_FLAGS, INPUT),
    *many("open", "settings", ("x", 5, {}, Limits(), Settings), INPUT),
    *many("open", "cast", (5, "bf16", {"*": 3}, {3: "bf16"}, [("*", "bf16")]), INPUT),
    *many("open", "cast", ({"*": "int4"}, {"*": "float"}, {"*": ""}), DTypeRefusedError),
    *many("trainer", "run", NO_TEXTS, INPUT),
    *many("trainer", "run", ("", "No Spaces", "x" * 65, "\ud800"), NameRefusedError),
    *many("trainer", "take_over", NO_FLAGS, INPUT),
    *many("trainer", "rewind_to", NO_STEPS[1:], INPUT),
    *many("trainer", "resume", ("x", 5, True, {"w": 3}, {3: np.zeros(8)}), INPUT),
    *many("trainer", "baseline_path", (*NO_PATHS[1:], "x" * 300, "/dev/null/x"), INPUT),
    *many("trainer", "name_rules", (None, "module.", 5, [5], ["module"], [""]), INPUT),
    *many("put_step", "step", NO_STEPS, INPUT),
    *many("put_step", "tensors", NO_SOURCES, INPUT),
    *many("put_step", "run", NO_TEXTS, INPUT),
    *many("put_step", "run", ("", "No Spaces"), NameRefusedError),
    *many("put_step", "anchor", NO_FLAGS, INPUT),
    *many("put_step", "missing", ("bogus", None, True, ["refuse"]), INPUT),
    *many("put_step", "new_schema", NO_FLAGS, INPUT),
    *many("import_checkpoint", "path", (*NO_PATHS, "nowhere", "~no-such-user/x", "x" * 300), INPUT),
    *many("import_checkpoint", "run", NO_TEXTS, INPUT),
    *many("import_checkpoint", "step", NO_STEPS, INPUT),
    *many("import_checkpoint", "take_over", NO_FLAGS, INPUT),
    *many("import_checkpoint", "new_schema", NO_FLAGS, INPUT),
    *many("import_checkpoint", "progress", (None, 5), INPUT),
    *many("tag", "name", NO_TEXTS, INPUT),
    *many("tag", "name", ("", "no spaces"), NameRefusedError),
    *many("tag", "selector", NO_SELECTORS, SelectorError),
    *many("tag", "owner", (*NO_TEXTS, "x" * 300, "\ud800"), INPUT),
    *many("untag", "name", NO_TEXTS, INPUT),
    *many("untag", "owner", NO_TEXTS, INPUT),
    *many("put_step", "wait", ("applied", True, 5, ["active"]), INPUT),
    *many("activate", "selector", NO_SELECTORS, SelectorError),
    *many("activate", "timeout_s", ("5", None, True, -1, HUGE, float("nan")), INPUT),
    *many("activate", "require_all", NO_FLAGS, INPUT),
    *many("forget_receiver", "member_id", (*NO_TEXTS, "", "..", "a/../b", "\ud800"), INPUT),
    *many("retire", "keep_newest", (2.5, "3", 0, -1, True, None, HUGE), INPUT),
    *many("retire", "keep_versions", (5, None, "12", ["x"], [True], {1: 2}), INPUT),
    *many("retire", "dry_run", NO_FLAGS, INPUT),
    *many("checkout", "selector", (*NO_SELECTORS, "newest", "", "tag", "x@y"), RefusedError),
    *many("checkout", "progress", (None, 5), INPUT),
    *many("checkout_into", "selector", NO_SELECTORS, SelectorError),
    *many("checkout_into", "state_dict", (None, 5, "x", [1], torch.nn.Linear(2, 4)), INPUT),
    *many("checkout_into", "state_dict", ({}, {"w": 3}, {3: 3}), SchemaMismatchError),
    *many("checkout_into", "progress", (None, 5), INPUT),
    *many("receiver", "targets", (None, 5, "x", [1], torch.nn.Linear(2, 4)), INPUT),
    *many("receiver", "targets", ({}, {"w": 3}, {3: 3}, {3: np.zeros(8)}), SchemaMismatchError),
    *many("receiver", "boxes", (5, "w", [1], {"w": 5}, {"w": ((0,), (8,))}), INPUT),
    *many("receiver", "settings", ("x", 5, {}, Limits(), Settings()), INPUT),
    *many("checkout_to_file", "selector", NO_SELECTORS, SelectorError),
    *many("checkout_to_file", "path", (*NO_PATHS, "~no-such-user/x", "/dev/null/x"), INPUT),
    *many("checkout_to_file", "progress", (None, 5), INPUT),
    *many("export", "selector", NO_SELECTORS, SelectorError),
    *many("export", "directory", (*NO_PATHS, "~no-such-user/x", "/dev/null/x"), INPUT),
    *many("export", "progress", (None, 5), INPUT),
    *many("host_files", "directory", (*NO_PATHS, "~no-such-user/x", "/dev/null/x"), INPUT),
    *many("host_files", "settings", ("x", 5, {}, Limits(), Settings()), INPUT),
    *many("overwrite_set", "version", NO_SELECTORS, SelectorError),
    *many("overwrite_set", "base", NO_SELECTORS, SelectorError),
    *many("host_agent", "socket", NO_PATHS, INPUT),
    *many("host_agent", "memory_bytes", ("5", True, -1, 0, 2.5, HUGE), INPUT),
    *many("host_agent_stats", "socket", NO_PATHS, INPUT),
    *many("engine", "targets", (None, 5, "x", [1], torch.nn.Linear(2, 4)), INPUT),
    *many("engine", "rank", (None, "0", True, -1, 1, HUGE), INPUT),
    *many("engine", "rank_count", (None, "1", True, 0, -1, HUGE), INPUT),
    *many("engine", "channel", NO_PATHS, INPUT),
    *many("engine", "boxes", (5, "w", [1], {"w": 5}, {"w": ((0,), (8,))}), INPUT),
    *many("engine", "name", NO_TEXTS, INPUT),
    *many("engine", "settings", ("x", 5, {}, Limits(), Settings()), INPUT),
    *many("verify", "selector", NO_SELECTORS, SelectorError),
    *many("verify", "scan", NO_FLAGS, INPUT),
    *many("verify", "progress", (None, 5), INPUT),
    *many("version", "selector", NO_SELECTORS, SelectorError),
    *many("describe", "selector", NO_SELECTORS, SelectorError),
    *many("diff", "old", NO_SELECTORS, SelectorError),
    *many("diff", "new", NO_SELECTORS, SelectorError),
    *many("diff", "counts", NO_FLAGS, INPUT),
    *many("diff", "progress", (None, 5), INPUT),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("stage") / "base"
    make_stage(base)
    return base


@pytest.mark.parametrize(("method", "name", "value", "kind"), CASES)
def test_a_wrong_argument_is_refused_before_anything_changes(
    made: Path, method: str, name: str, value: object, kind: type[RefusedError]
) -> None:
    before = tree(made)
    with (
        contextlib.chdir(made / "here"),
        WeightStore.open(made / "store", settings=LAB_SETTINGS) as store,
        pytest.raises(kind) as caught,
    ):
        call(store, method, {name: value})
    assert tree(made) == before
    assert list((made / "here").iterdir()) == []
    assert caught.value.do
    assert len(caught.value.message) < 1000


def test_every_parameter_of_every_method_is_tried() -> None:
    tried = {(case.values[0], case.values[1]) for case in CASES}
    assert tried == {
        (method, name) for method in public_methods() for name in parameters_of(method)
    }


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("open", {"settings": LAB_SETTINGS, "cast": {"*": "bf16"}}),
        ("trainer", {"rewind_to": np.int64(5), "name_rules": ["module."]}),
        ("put_step", {"step": np.int64(3), "anchor": np.True_, "missing": "unchanged"}),
        ("import_checkpoint", {"step": np.uint8(7)}),
        ("tag", {"selector": np.int64(1)}),
        ("activate", {"timeout_s": np.float32(0.0), "require_all": np.False_}),
        ("retire", {"keep_newest": np.int64(9), "keep_versions": {np.int64(1)}}),
        ("checkout", {"selector": np.int64(1)}),
        ("verify", {"selector": torch.tensor(1), "scan": np.False_}),
    ],
)
def test_what_numpy_calls_a_number_or_a_flag_is_one(
    tmp_path: Path, method: str, given: dict[str, object]
) -> None:
    make_stage(tmp_path / "base")
    with (
        contextlib.chdir(tmp_path / "base" / "here"),
        WeightStore.open(tmp_path / "base" / "store", settings=LAB_SETTINGS) as store,
    ):
        call(store, method, given)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[tuple[TrainerSession, threading.Event]]:
    """A session whose put waits for an event."""
    release = threading.Event()
    make_stage(tmp_path / "base")
    with (
        WeightStore.open(tmp_path / "base" / "store", settings=LAB_SETTINGS) as store,
        store.trainer("main") as session,
    ):
        yield session, release
        release.set()


@pytest.mark.parametrize(
    "value",
    [-1, float("nan"), float("inf"), True, "5", [], pytest.param(HUGE, id="huge")],
)
def test_a_wrong_timeout_is_refused_and_the_put_goes_on(
    waiting: tuple[TrainerSession, threading.Event], value: float
) -> None:
    session, release = waiting

    def export() -> Iterator[tuple[str, NDArray[np.float32]]]:
        release.wait()
        yield from other_weights(3).items()

    pending = session.put_step(3, export())
    for wait in (pending.captured, pending.result, pending.report):
        with pytest.raises(InputRefusedError, match="timeout_s="):
            wait(timeout_s=value)
    with pytest.raises(StoreBusyError):
        pending.result(timeout_s=np.float32(0.0))  # type: ignore[arg-type] # any number will do
    release.set()
    assert pending.result(timeout_s=600) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"step": "3"},
        {"tensors": None},
        {"tensors": 5},
        {"anchor": "yes"},
        {"missing": "bogus"},
        {"new_schema": 1},
    ],
)
def test_a_session_refuses_as_the_facade_does(tmp_path: Path, given: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"step": 3, "tensors": other_weights(3), **given}
    make_stage(tmp_path / "base")
    with (
        WeightStore.open(tmp_path / "base" / "store", settings=LAB_SETTINGS) as store,
        store.trainer("main") as session,
    ):
        before = tree(tmp_path)
        with pytest.raises(InputRefusedError):
            session.put_step(**arguments)
        assert tree(tmp_path) == before
        assert session.put_step(3, other_weights(3)).result() == 3


def test_settings_are_refused_by_name() -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "thread_count": ("2", None, True, -HUGE),
        "full_after_chain_ratio": ("x", None, True, HUGE),
        "commit_timeout_s": ("x", None, HUGE),
        "activate_timeout_s": ("x", None, HUGE, 0, -1.0),
        "activate_poll_s": (0.0, 1e-9),
        "activate_max_staleness_s": (0,),
        "member_silent_s": (True,),
        "pack_size_bytes": (HUGE,),
        "limits": (5, None, {}),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(InputRefusedError, match=name):
                Settings(**{name: value})
