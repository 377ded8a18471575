"""Commands about the receivers of a store: receivers, activate, watch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape

from weightstore.arguments import counted
from weightstore.cli.environment import environment_settings
from weightstore.cli.options import JsonOption, SelectorArgument, StoreArgument
from weightstore.cli.output import out, print_json, print_table, size_text, table_of
from weightstore.clock import SystemClock
from weightstore.errors import UnavailableError
from weightstore.store import ReceiverInfo, WeightStore

LOOK_COUNT_MAX = 1_000_000
TIMEOUT_MAX_S = 86_400.0
INTERVAL_MIN_S = 0.05
INTERVAL_MAX_S = 3_600.0
_US_PER_MS = 1000
_COLUMNS = (
    *("name", "mode", "state", "version", "lag", "staged"),
    *("phase", "read", "written", "last pause", "age"),
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command(
        epilog="Examples: weightstore receivers /data/policy; "
        "weightstore receivers /data/policy --forget 0123456789abcdef0123456789abcdef"
    )(receivers)
    app.command(
        epilog="Examples: weightstore activate /data/policy; "
        "weightstore activate /data/policy grpo@412 --timeout 60 --require-all. "
        "Exit codes: 0 active, 5 not everybody had it staged, or another version came first."
    )(activate)
    app.command(
        epilog="Examples: weightstore watch /data/policy; weightstore watch /data/policy --once. "
        "Ctrl-C ends it."
    )(watch)


def receivers(
    store: StoreArgument,
    *,
    forget: Annotated[
        list[str] | None,
        typer.Option(help="Take the receiver of this id, which is gone, off the list. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the receivers of a store as they last described themselves, dead ones too."""
    with WeightStore.open(store, settings=environment_settings()) as opened:
        for member_id in forget or []:
            opened.forget_receiver(member_id)
        listed = opened.receivers()
    if as_json:
        print_json([asdict(each) for each in listed])
        return
    for member_id in forget or []:
        out.print(f"receiver {member_id} is off the list", markup=False, soft_wrap=True)
    print_table(
        "",
        ("id", "name", "host", "process", "ranks", "mode", "state", "version", "staged", "age"),
        [
            (
                *(each.member_id, each.name, each.host, each.process, each.rank_count),
                *(each.mode, each.state, _number(each.live), _number(each.staged)),
                _age_text(each.age_s),
            )
            for each in listed
        ],
    )


def activate(
    store: StoreArgument,
    selector: SelectorArgument = "latest",
    *,
    timeout: Annotated[
        float,
        typer.Option(
            min=0, max=TIMEOUT_MAX_S, help="Seconds to wait for receivers that have not staged it."
        ),
    ] = 30.0,
    require_all: Annotated[
        bool,
        typer.Option("--require-all", help="Activate nothing unless every receiver staged it."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Name the version that all receivers in the mode `active` serve."""
    with WeightStore.open(store, settings=environment_settings()) as opened:
        done = opened.activate(selector, timeout_s=timeout, require_all=require_all)
    if as_json:
        print_json(asdict(done))
        return
    if done.repeated:
        out.print(f"version {done.version} was active already (slot {done.slot})")
    else:
        out.print(
            f"version {done.version} is active (slot {done.slot}); {done.staged_count} of "
            f"{counted(done.listed_count, 'receiver')} had it staged after {done.waited_s:.1f} s"
        )
    for each in done.missing:
        out.print(
            f"  not staged: {each.name} (host {each.host}, process {each.process}, "
            f"id {each.member_id}), {each.state}, last heard of {_age_text(each.age_s)} ago",
            markup=False,
            soft_wrap=True,
        )


def watch(
    store: StoreArgument,
    *,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    interval: Annotated[
        float,
        typer.Option(min=INTERVAL_MIN_S, max=INTERVAL_MAX_S, help="Seconds between two looks."),
    ] = 1.0,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=LOOK_COUNT_MAX, help="Looks until it ends.")
    ] = LOOK_COUNT_MAX,
    as_json: JsonOption = False,
) -> None:
    """Show what every receiver does, again and again: a table, or lines where no terminal is.

    Without a terminal a line is printed for each receiver that changed. With --json each look
    is one line.
    """
    with WeightStore.open(store, settings=environment_settings()) as opened:
        if once:
            _show_once(_look(opened), as_json=as_json)
            return
        clock = SystemClock()
        with _shown(as_json=as_json) as show:
            for number in range(count):
                if number:
                    clock.sleep(interval)
                show.look(_look_if_there(opened))


@dataclass(frozen=True)
class _Look:
    """The fleet at one moment; `trouble` says why it is not known."""

    newest: int | None = None
    active: int | None = None
    receivers: tuple[ReceiverInfo, ...] = ()
    trouble: str = ""

    @property
    def title(self) -> str:
        """The store in one line."""
        if self.trouble:
            return self.trouble
        return (
            f"newest version {_number(self.newest) or 'none'}, "
            f"active {_number(self.active) or 'none'}, {counted(len(self.receivers), 'receiver')}"
        )

    @property
    def document(self) -> dict[str, object]:
        """For programs."""
        return {
            "newest": self.newest,
            "active": self.active,
            "receivers": [asdict(each) for each in self.receivers],
            "trouble": self.trouble,
        }


def _look(store: WeightStore) -> _Look:
    state = store.state()
    return _Look(state.newest, state.active, store.receivers())


def _look_if_there(store: WeightStore) -> _Look:
    """A watch outlives an outage of the store, and says so."""
    try:
        return _look(store)
    except UnavailableError as error:
        return _Look(trouble=f"the store does not answer: {error.message}")


def _show_once(look: _Look, *, as_json: bool) -> None:
    if as_json:
        print_json(look.document)
    else:
        print_table(look.title, _COLUMNS, _rows(look.receivers))


class _Lines:
    """Looks as lines: JSON for each, or words for whoever changed."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._title = ""
        self._before: dict[str, str] = {}

    def look(self, look: _Look) -> None:
        """Print what is new."""
        if self._as_json:
            sys.stdout.write(json.dumps(look.document, sort_keys=True) + "\n")
        else:
            self._print_changes(look)
        sys.stdout.flush()

    def _print_changes(self, look: _Look) -> None:
        if look.title != self._title:
            self._title = look.title
            out.print(look.title, markup=False, soft_wrap=True)
        if look.trouble:
            return
        now = {each.member_id: _line(each) for each in look.receivers}
        for member_id, line in now.items():
            if self._before.get(member_id) != line:
                out.print(line, markup=False, soft_wrap=True)
        for member_id in self._before.keys() - now.keys():
            out.print(f"{self._before[member_id]}: gone", markup=False, soft_wrap=True)
        self._before = now


class _Table:
    """Looks as one table that stays in its place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._last = _Look()

    def look(self, look: _Look) -> None:
        """Show it; in an outage, what was seen last under the trouble."""
        if not look.trouble:
            self._last = look
        table = table_of(self._last.title, _COLUMNS, _rows(self._last.receivers))
        self._live.update(Group(table, escape(look.trouble)) if look.trouble else table)
        self._live.refresh()


@contextmanager
def _shown(*, as_json: bool) -> Iterator[_Lines | _Table]:
    if as_json or not out.is_terminal:
        yield _Lines(as_json=as_json)
        return
    with Live(console=out, auto_refresh=False, redirect_stdout=False) as live:
        yield _Table(live)


def _rows(listed: Sequence[ReceiverInfo]) -> list[tuple[object, ...]]:
    return [(*_cells(each), _age_text(each.age_s)) for each in listed]


def _cells(info: ReceiverInfo) -> tuple[str, ...]:
    return (
        info.name,
        info.mode,
        info.state,
        _number(info.live),
        _number(info.lag),
        _number(info.staged),
        info.phase,
        size_text(info.wire_bytes),
        size_text(info.applied_bytes),
        f"{info.last_pause_us / _US_PER_MS:.1f} ms" if info.refit_count else "",
    )


def _line(info: ReceiverInfo) -> str:
    """A receiver in words, without its age: a line is new when something else is."""
    name, *facts = _cells(info)
    said = ", ".join(
        f"{what} {fact}" for what, fact in zip(_COLUMNS[1:-1], facts, strict=True) if fact
    )
    return f"{name}: {said}"


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _age_text(age_s: float) -> str:
    """By two wall clocks, so that it may be below zero."""
    return f"{age_s:.0f} s"
