"""Commands that only read a store: log, show, checkout, export, verify."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from weightstore.arguments import counted
from weightstore.cli.environment import environment_settings
from weightstore.cli.exit_codes import ExitCode
from weightstore.cli.options import JsonOption, QuietOption, SelectorArgument, StoreArgument
from weightstore.cli.output import (
    err,
    error_document,
    out,
    print_error,
    print_facts,
    print_json,
    print_table,
    progress_bars,
    size_text,
    time_text,
)
from weightstore.errors import CorruptError, VersionGoneError
from weightstore.history.progress import Progress
from weightstore.store import VersionDetails, WeightStore

CONFIG_NAME = "config.json"

COUNT_MAX = 1_000_000
CountOption = Annotated[
    int, typer.Option("--count", "-n", min=1, max=COUNT_MAX, help="How many, newest first.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command(epilog="Example: weightstore log /data/policy -n 50 --json")(log)
    app.command(
        epilog="Examples: weightstore show /data/policy; weightstore show /data/policy grpo@412"
    )(show)
    app.command(epilog="Example: weightstore checkout /data/policy tag:best best.safetensors")(
        checkout
    )
    app.command(epilog="Example: weightstore export /data/policy latest ./policy-hf")(export)
    app.command(epilog="Example: weightstore verify /data/policy --all --scan")(verify)


def log(store: StoreArgument, *, count: CountOption = 20, as_json: JsonOption = False) -> None:
    """List the log's records, newest first."""
    with WeightStore.open(store, settings=environment_settings()) as opened:
        rows = [asdict(row) for row in islice(opened.log(), count)]
    if as_json:
        print_json(rows)
        return
    print_table(
        "",
        ("slot", "kind", "epoch", "run", "what", "written (UTC)"),
        [
            (
                row["slot"],
                row["kind"],
                row["epoch"],
                row["run"] or "",
                row["what"] if row["void"] is None else f"VOID ({row['void']}): {row['what']}",
                time_text(row["written_unix_ms"]),
            )
            for row in rows
        ],
    )


def show(
    store: StoreArgument,
    selector: SelectorArgument = "",
    *,
    count: CountOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show one version in full, or without VERSION the store and its newest versions."""
    with WeightStore.open(store, settings=environment_settings()) as opened:
        if selector:
            details = opened.describe(selector)
            if as_json:
                print_json(asdict(details))
            else:
                print_facts(_version_facts(details))
            return
        state = opened.state()
        versions = [asdict(info) for info in islice(opened.versions(), count)]
    if as_json:
        print_json({"store": asdict(state), "versions": versions})
        return
    print_facts(
        {
            "store": state.location,
            "id": state.store_id,
            "format": state.format,
            "log records": state.record_count,
            "newest version": state.newest or "none yet",
            "owner": state.owner or "none",
            **({"active version": state.active} if state.active else {}),
        }
    )
    print_table(
        "",
        ("version", "run@step", "base", "digest", "kept", "written (UTC)"),
        [
            (
                info["version"],
                f"{info['run']}@{info['step']}",
                info["base"] or "",
                info["digest"][:16],
                "yes" if info["kept"] else "retired",
                time_text(info["written_unix_ms"]),
            )
            for info in versions
        ],
    )


def checkout(
    store: StoreArgument,
    selector: SelectorArgument,
    target: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    *,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a version's weights into one safetensors file."""
    with (
        WeightStore.open(store, settings=environment_settings()) as opened,
        progress_bars(quiet=quiet or as_json) as progress,
    ):
        info = opened.checkout_to_file(selector, target, progress=progress)
    if as_json:
        print_json(asdict(info))
    else:
        out.print(f"version {info.version} ({info.run}@{info.step}) is in {target}", soft_wrap=True)


def export(
    store: StoreArgument,
    selector: SelectorArgument,
    directory: Annotated[Path, typer.Argument(help="A new directory.")],
    *,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a version as a Hugging Face checkpoint directory, configuration included."""
    with (
        WeightStore.open(store, settings=environment_settings()) as opened,
        progress_bars(quiet=quiet or as_json) as progress,
    ):
        info = opened.export(selector, directory, progress=progress)
    if not (directory / CONFIG_NAME).exists():
        err.print(
            f"[bold yellow]warning[/]: version {info.version} has no {CONFIG_NAME}, so "
            "from_pretrained loads the directory only once you put one there",
            soft_wrap=True,
        )
    if as_json:
        print_json(asdict(info))
    else:
        out.print(
            f"version {info.version} ({info.run}@{info.step}) is in {directory}", soft_wrap=True
        )


def verify(
    store: StoreArgument,
    selector: SelectorArgument = "latest",
    *,
    every: Annotated[bool, typer.Option("--all", help="Verify every kept version.")] = False,
    scan: Annotated[
        bool, typer.Option("--scan", help="Also rebuild all weights and digest every element.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Read a version's objects again and check every size, hash, stream and digest."""
    damage: list[tuple[int, CorruptError]] = []
    with (
        WeightStore.open(store, settings=environment_settings()) as opened,
        progress_bars(quiet=quiet or as_json) as progress,
    ):
        if every:
            rows, damage = _verify_kept(opened, scan=scan, progress=progress)
        else:
            rows = [asdict(opened.verify(selector, scan=scan, progress=progress))]
    if as_json:
        print_json([*rows, *(_damaged_row(*each) for each in damage)])
    else:
        _print_verified(rows, damage)
    if damage:
        raise typer.Exit(ExitCode.CORRUPT)


def _verify_kept(
    store: WeightStore, *, scan: bool, progress: Progress
) -> tuple[list[dict[str, Any]], list[tuple[int, CorruptError]]]:
    """Verify every kept version; damage of one does not stop the others."""
    rows: list[dict[str, Any]] = []
    damage: list[tuple[int, CorruptError]] = []
    for version in [info.version for info in store.versions() if info.kept]:
        try:
            rows.append(asdict(store.verify(version, scan=scan, progress=progress)))
        except VersionGoneError as gone:
            err.print(f"version {version} was retired meanwhile", markup=False)
            del gone
        except CorruptError as error:
            damage.append((version, error))
    return rows, damage


def _damaged_row(version: int, error: CorruptError) -> dict[str, object]:
    return {"version": version, "error": error_document(error)}


def _print_verified(rows: list[dict[str, Any]], damage: list[tuple[int, CorruptError]]) -> None:
    checked = [
        (
            row["version"],
            row["object_count"],
            size_text(row["read_size_bytes"]),
            "every element" if row["scanned"] else "every object",
        )
        for row in rows
    ]
    checked += [(version, "", "", "DAMAGED") for version, _ in damage]
    print_table("", ("version", "objects", "read", "checked"), checked)
    for version, error in damage:
        err.print(f"version {version}:")
        print_error(error, as_json=False)
    if damage:
        count = counted(len(damage), "version")
        err.print(f"{count} of {len(rows) + len(damage)} damaged")


def _version_facts(details: VersionDetails) -> dict[str, object]:
    """A version in words and sizes for people."""
    base = "none: a full version" if details.base is None else f"version {details.base}"
    facts: dict[str, object] = {
        "version": f"{details.version} ({details.run}@{details.step})",
        "base": base,
        "digest": details.digest,
        "schema": details.schema_id,
        "tensors": f"{details.tensor_count:,} with {counted(details.unit_count, 'element')}, "
        f"{size_text(details.full_size_bytes)}",
    }
    if details.changed_count is not None:
        share = 100 * details.changed_count / max(details.unit_count, 1)
        facts["changed"] = f"{counted(details.changed_count, 'element')} ({share:.3f} %)"
        facts["delta"] = (
            f"{size_text(details.delta_size_bytes or 0)} in "
            f"{counted(details.piece_count or 0, 'piece')}, "
            f"{counted(details.pack_count or 0, 'pack')}"
        )
    facts["manifest"] = size_text(details.manifest_size_bytes)
    facts["full form"] = "yes" if details.has_full_form else "no"
    facts["checkout reads"] = (
        "the full form alone"
        if details.has_full_form
        else f"a full form and {counted(details.chain_count, 'delta')} of "
        f"{size_text(details.chain_size_bytes)} together"
    )
    return facts
