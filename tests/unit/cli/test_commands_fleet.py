"""Commands about receivers: listed, forgotten, waited for and watched."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from weightstore.cli import commands_fleet, output
from weightstore.cli.exit_codes import ExitCode
from weightstore.errors import StorageFailedError
from weightstore.format.records import VersionRecord
from weightstore.history.versions import record_of_version
from weightstore.store import StoreState, WeightStore
from weightstore.testing.command_lab import Run
from weightstore.testing.members import MemberActor, member_id
from weightstore.testing.store_lab import LAB_SETTINGS


class Place:
    """A store of two versions on a disk, and two receivers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with WeightStore.open(path, create=True, settings=LAB_SETTINGS) as store:
            for step in (1, 2):
                store.put_step(step, {"w": np.full(8, step, np.float32)}, run="grpo")
        self.store = WeightStore.open(path, settings=LAB_SETTINGS)
        self.first = MemberActor(self.store._blobs, 1)
        self.second = MemberActor(self.store._blobs, 2)

    def record(self, version: int) -> VersionRecord:
        log = self.store._log
        return record_of_version(log, log.tail(), version)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "store")


def test_receivers_are_listed(run: Run, place: Place) -> None:
    assert run("receivers", place.path, "--json").json == []
    place.first.apply(place.record(1), 3)
    place.second.say(name="[red]\x1b[31m\nrollout")
    told = run("receivers", place.path)
    assert told.code == ExitCode.OK
    assert member_id(1) in told.out
    assert "[red]\\x1b[31m\\nrollout" in told.out
    rows = run("receivers", place.path, "--json").json
    assert [(row["member_id"], row["live"], row["lag"]) for row in rows] == [
        (member_id(2), None, None),
        (member_id(1), 1, 1),
    ]


def test_a_receiver_is_forgotten_by_its_id(run: Run, place: Place) -> None:
    place.first.say()
    place.second.say()
    told = run("receivers", place.path, "--forget", member_id(1))
    assert f"receiver {member_id(1)} is off the list" in told.out
    assert [row["member_id"] for row in run("receivers", place.path, "--json").json] == [
        member_id(2)
    ]
    again = run("receivers", place.path, "--forget", member_id(1))
    assert again.code == ExitCode.NOT_FOUND
    assert "WS-7006" in again.err


def test_a_version_is_activated(run: Run, place: Place) -> None:
    place.first.stage(place.record(2))
    told = run("activate", place.path)
    assert told.code == ExitCode.OK
    assert "version 2 is active (slot 5); 1 of 1 receiver had it staged after 0.0 s" in told.out
    again = run("activate", place.path, "grpo@2")
    assert "version 2 was active already (slot 5)" in again.out
    assert "active version" in run("show", place.path).out
    document = run("activate", place.path, "1", "--timeout", "0", "--json").json
    assert (document["version"], document["listed_count"], document["staged_count"]) == (1, 1, 0)
    assert [row["member_id"] for row in document["missing"]] == [member_id(1)]
    assert run("show", place.path, "active").out.startswith("version")


def test_an_activation_names_who_is_missing(run: Run, place: Place) -> None:
    place.first.stage(place.record(2))
    place.second.say()
    told = run("activate", place.path, "--timeout", "0")
    assert told.code == ExitCode.OK
    assert "1 of 2 receivers had it staged" in told.out
    assert f"not staged: rollout-2 (host node, process 102, id {member_id(2)})" in told.out


def test_an_activation_that_requires_all_advises_options(run: Run, place: Place) -> None:
    place.second.say()
    told = run("activate", place.path, "--timeout", "0", "--require-all")
    assert told.code == ExitCode.CONFLICT
    assert "WS-1005" in told.err
    advice = " ".join(told.err.partition("->")[2].split())
    assert "longer --timeout" in advice
    assert "`weightstore receivers --forget`" in advice
    assert "without --require-all" in advice
    assert run("show", place.path, "--json").json["store"]["active"] is None


def test_without_an_active_version_the_error_names_the_command(run: Run, place: Place) -> None:
    told = run("checkout", place.path, "active", place.path.parent / "file")
    assert told.code == ExitCode.NOT_FOUND
    assert "`weightstore activate`" in told.err


def test_a_version_that_does_not_exist_is_not_activated(run: Run, place: Place) -> None:
    assert run("activate", place.path, "7").code == ExitCode.NOT_FOUND
    assert run("activate", place.path, "--timeout", "-1").code == ExitCode.USAGE


def test_one_look_is_a_table_or_a_document(run: Run, place: Place) -> None:
    place.first.apply(place.record(1), 3)
    place.first.say(phase="fetch", wire_bytes=2048, refit_count=1, last_pause_us=1500)
    told = run("watch", place.path, "--once")
    assert told.code == ExitCode.OK
    for word in ("newest version 2, active none, 1 receiver", "fetch", "2.0 KiB", "1.5 ms"):
        assert word in told.out
    document = run("watch", place.path, "--once", "--json").json
    assert (document["newest"], document["active"]) == (2, None)
    assert document["receivers"][0]["phase"] == "fetch"


def acting(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> None:
    """Let something happen at each pause of a watch."""
    left = list(acts)

    class ActingClock:
        def sleep(self, _duration_s: float, /) -> None:
            left.pop(0)()

    monkeypatch.setattr(commands_fleet, "SystemClock", ActingClock)


def test_without_a_terminal_a_line_is_printed_for_whoever_changed(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.first.say()
    place.second.say()
    acting(
        monkeypatch,
        place.first.say,
        lambda: place.first.apply(place.record(2), 3),
        lambda: place.store.forget_receiver(member_id(2)),
        lambda: None,
    )
    told = run("watch", place.path, "--count", 5)
    assert told.code == ExitCode.OK
    assert told.out.splitlines() == [
        "newest version 2, active none, 2 receivers",
        "rollout-1: mode active, state empty, read 0 B, written 0 B",
        "rollout-2: mode active, state empty, read 0 B, written 0 B",
        "rollout-1: mode active, state whole, version 2, lag 0, read 0 B, written 0 B",
        "newest version 2, active none, 1 receiver",
        "rollout-2: mode active, state empty, read 0 B, written 0 B: gone",
    ]


def test_a_watch_for_programs_is_a_document_a_line(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting(monkeypatch, place.first.say, lambda: None)
    looks = [
        json.loads(line) for line in run("watch", place.path, "-n", 3, "--json").out.splitlines()
    ]
    assert [len(look["receivers"]) for look in looks] == [0, 1, 1]


def test_a_watch_outlives_an_outage(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = WeightStore.state

    def unreachable(_: WeightStore) -> StoreState:
        raise StorageFailedError("no route")

    acting(
        monkeypatch,
        lambda: monkeypatch.setattr(WeightStore, "state", unreachable),
        lambda: monkeypatch.setattr(WeightStore, "state", state),
    )
    assert run("watch", place.path, "-n", 3).out.splitlines() == [
        "newest version 2, active none, 0 receivers",
        "the store does not answer: no route",
        "newest version 2, active none, 0 receivers",
    ]


def test_on_a_terminal_a_watch_is_a_table_that_stays(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    terminal = output.PlainConsole(file=screen, force_terminal=True, width=150, _environ={})
    monkeypatch.setattr(commands_fleet, "out", terminal)
    place.first.say(name="\x1b]0;title\x07")
    acting(monkeypatch, lambda: place.first.apply(place.record(2), 3))
    assert run("watch", place.path, "-n", 2).code == ExitCode.OK
    shown = screen.getvalue()
    assert "empty" in shown
    assert "whole" in shown
    assert "\x1b]0;" not in shown
