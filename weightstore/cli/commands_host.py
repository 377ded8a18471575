"""The command that serves the receivers of one machine: host."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from weightstore.arguments import counted
from weightstore.cli.environment import environment_settings
from weightstore.cli.options import JsonOption, StoreArgument
from weightstore.cli.output import out, print_facts, print_json, size_text
from weightstore.store import AgentStats, WeightStore

_SIZE = re.compile(r"([1-9][0-9]{0,14}) ?(B|KiB|MiB|GiB|TiB)?")
_FACTORS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command(
        epilog="Examples: weightstore host /data/policy --socket /run/ws.sock --memory 8GiB; "
        "weightstore host /data/policy --socket /run/ws.sock --stats. Ctrl-C ends it."
    )(host)


def host(
    store: StoreArgument,
    *,
    socket: Annotated[
        str,
        typer.Option(
            "--socket", metavar="PATH", help="Where the receivers of this machine find it."
        ),
    ],
    memory: Annotated[
        str,
        typer.Option("--memory", metavar="SIZE", help="Bound on what it holds, such as 512MiB."),
    ] = "4GiB",
    stats: Annotated[
        bool, typer.Option("--stats", help="Say what the agent that runs there has done, and end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read and decode each pack once for all receivers of this machine, until it is ended."""
    memory_bytes = _size_bytes(memory)
    with WeightStore.open(store, settings=environment_settings()) as opened:
        if stats:
            _print(opened.host_agent_stats(socket), as_json=as_json)
            return
        with (
            _ending_signals() as wait_for_one,
            opened.host_agent(socket, memory_bytes=memory_bytes) as agent,
        ):
            if not as_json:
                text = f"serving {opened.location} at {socket}, up to {size_text(memory_bytes)}"
                out.print(text, markup=False, soft_wrap=True)
            wait_for_one()
            done = agent.stats()
    _print(done, as_json=as_json)


def _size_bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(
            f"{text!r} is no size; give a number with KiB, MiB, GiB or TiB",
            param_hint="--memory",
        )
    return int(found[1]) * _FACTORS[found[2] or "B"]


@contextmanager
def _ending_signals() -> Iterator[Callable[[], None]]:
    """What waits for Ctrl-C or SIGTERM: both are the ordinary end of an agent.

    The signal itself writes into a pipe. A handler in Python would run between two steps of the
    wait: not at all once it blocks, and inside the lock of an event while that is being taken.
    """
    with ExitStack() as undone:
        reading, writing = os.pipe()
        undone.callback(os.close, reading)
        undone.callback(os.close, writing)
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        undone.callback(signal.set_wakeup_fd, before)
        # Only now: a signal that came between would be taken, and written nowhere.
        for each in _ENDING_SIGNALS:
            undone.callback(signal.signal, each, signal.signal(each, lambda *_: None))

        def wait() -> None:
            while os.read(reading, 1)[0] not in _ENDING_SIGNALS:
                continue

        yield wait


def _print(found: AgentStats, *, as_json: bool) -> None:
    if as_json:
        print_json(found.model_dump(mode="json", exclude={"kind"}))
        return
    print_facts(
        {
            "decoded": f"{counted(found.decoded_piece_count, 'piece')} of "
            f"{counted(found.decoded_pack_count, 'pack')}, "
            f"{size_text(found.wire_bytes)} read",
            "served": f"{counted(found.served_piece_count, 'piece')} of "
            f"{counted(found.served_pack_count, 'pack')}",
            "turned away": f"{found.busy_count} busy, {found.failed_count} failed",
            "holds": f"{counted(found.segment_count, 'segment')}, "
            f"{size_text(found.memory_bytes)} of {size_text(found.memory_limit_bytes)}",
            "connections": found.connection_count,
        }
    )
