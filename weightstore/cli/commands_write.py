"""Commands that add to a store: init, import, put, tag, retire."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import typer

from weightstore.arguments import counted
from weightstore.cli.environment import environment_settings
from weightstore.cli.options import (
    DryRunOption,
    JsonOption,
    NamedArgument,
    NewSchemaOption,
    QuietOption,
    StoreArgument,
    TakeOverOption,
)
from weightstore.cli.output import (
    err,
    out,
    print_facts,
    print_json,
    print_table,
    progress_bars,
    size_text,
)
from weightstore.errors import InputRefusedError, NotAStoreError, VersionNotFoundError
from weightstore.format import kept as kept_sets
from weightstore.ids import VersionId
from weightstore.store import RetireReport, WeightStore

_KEEP_COUNT = re.compile(r"[1-9][0-9]{0,14}")
_KEEP_RANGE = re.compile(r"v([0-9]{1,15})(?:-v([0-9]{1,15}))?")


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command(epilog="Example: weightstore init /data/policy")(init)
    app.command(
        "import", epilog="Example: weightstore import /data/policy ./Qwen3-0.6B --run base --step 0"
    )(import_)
    app.command(epilog="Example: weightstore put /data/policy ./step-412 --run grpo --step 412")(
        put
    )
    app.command(
        epilog="Examples: weightstore tag /data/policy latest --name best; "
        "weightstore tag /data/policy --name best --remove; weightstore tag /data/policy"
    )(tag)
    app.command(
        epilog="Example: weightstore retire /data/policy --keep 8 --dry-run. "
        "The newest, active and tagged versions always stay, each with its chain."
    )(retire)


def init(store: StoreArgument, *, as_json: JsonOption = False) -> None:
    """Make an empty store in a new or empty directory."""
    opened, created = _opened_or_made(store)
    with opened:
        facts = {"location": opened.location, "store_id": opened.store_id}
    if as_json:
        print_json(facts | {"created": created})
        return
    print_facts(facts)
    if not created:
        out.print("is a store already; nothing was changed")


def _opened_or_made(store: str) -> tuple[WeightStore, bool]:
    """The store, and whether it had to be made."""
    try:
        return WeightStore.open(store, settings=environment_settings()), False
    except NotAStoreError:
        return WeightStore.open(store, create=True, settings=environment_settings()), True


def import_(
    store: StoreArgument,
    checkpoint: Annotated[
        Path, typer.Argument(help="A safetensors file or a Hugging Face directory.", exists=True)
    ],
    *,
    run: Annotated[str, typer.Option(help="Run to record the version under.")] = "base",
    step: Annotated[int, typer.Option(min=0, help="Step to record it as.")] = 0,
    take_over: TakeOverOption = False,
    new_schema: NewSchemaOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a checkpoint into the store as a full version. Makes the store if there is none."""
    with (
        WeightStore.open(store, create=True, settings=environment_settings()) as opened,
        progress_bars(quiet=quiet or as_json) as progress,
    ):
        info = opened.import_checkpoint(
            checkpoint,
            run=run,
            step=step,
            take_over=take_over,
            new_schema=new_schema,
            progress=progress,
        )
    if as_json:
        print_json(asdict(info))
        return
    out.print(f"version {info.version}  {info.run}@{info.step}  digest {info.digest[:16]}")
    if info.skipped:
        entries = counted(len(info.skipped), "entry", "entries")
        err.print(f"[bold]not taken over[/]: {entries} of the directory")
    for skipped in info.skipped:
        # With escapes, since what could not be stored may not be printable either.
        err.print(f"  {skipped.name!r}: {skipped.reason}", markup=False, soft_wrap=True)


def put(
    store: StoreArgument,
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A safetensors file or a directory of them: the new weights.", exists=True
        ),
    ],
    *,
    step: Annotated[int, typer.Option(min=0, help="The trainer's step; rises within a run.")],
    run: Annotated[str, typer.Option(help="Name of the training run.")] = "main",
    anchor: Annotated[bool, typer.Option("--anchor", help="Write the full form too.")] = False,
    missing: Annotated[
        Literal["refuse", "unchanged"],
        typer.Option(help="What a tensor means that the checkpoint lacks."),
    ] = "refuse",
    new_schema: NewSchemaOption = False,
    cast: Annotated[
        list[str] | None,
        typer.Option(help="PATTERN=DTYPE: a declared lossy cast, such as '*=bf16'. Repeatable."),
    ] = None,
    rewind_to: Annotated[
        int | None,
        typer.Option(min=0, help="Put steps above this one anew (after a resume)."),
    ] = None,
    take_over: TakeOverOption = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Record a checkpoint as the next version: only the bits that changed are stored."""
    _check_rewind(rewind_to, step)
    with (
        WeightStore.open(store, cast=_casts(cast or []), settings=environment_settings()) as opened,
        opened.trainer(run=run, take_over=take_over, rewind_to=rewind_to) as trainer,
        progress_bars(quiet=quiet or as_json) as progress,
    ):
        pending = trainer.put_step(
            step,
            checkpoint,
            anchor=anchor,
            missing=missing,
            new_schema=new_schema,
            progress=progress,
        )
        report = pending.report()
    if as_json:
        print_json(asdict(report))
        return
    if report.repeated:
        out.print(f"version {report.version} ({run}@{step}) holds these bytes already")
        return
    print_facts(
        {
            "version": f"{report.version} ({run}@{step})",
            "changed": f"{report.changed_count:,} of {counted(report.unit_count, 'element')}",
            "stored": _stored(report.wire_size_bytes, report.full_size_bytes),
        }
    )


def _stored(delta_size_bytes: int, full_size_bytes: int) -> str:
    """All that was written; a full form is told apart, since most steps have none."""
    total = size_text(delta_size_bytes + full_size_bytes)
    if not full_size_bytes:
        return total
    return f"{total} (full form {size_text(full_size_bytes)}, delta {size_text(delta_size_bytes)})"


def _check_rewind(rewind_to: int | None, step: int) -> None:
    """Refuse a rewind that leaves no room for the step, before anything is claimed."""
    if rewind_to is not None and rewind_to >= step:
        raise InputRefusedError(
            f"--rewind-to {rewind_to} is not below --step {step}",
            do="Rewind to the last step that stays, which is below the step to put.",
            facts={"rewind_to": rewind_to, "step": step},
        )


def tag(
    store: StoreArgument,
    selector: NamedArgument = None,
    *,
    name: Annotated[str | None, typer.Option(help="Tag to set; without it, list all.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the tag.")] = False,
    owner: Annotated[str, typer.Option(help="Who needs the version, for others to read.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Name a version, so that it is kept; list or remove names."""
    if name is None and remove:
        raise InputRefusedError("--remove needs a tag", do="Add --name TAG.")
    if name is None and selector is not None:
        raise typer.BadParameter(
            f"a version without a tag; write: weightstore tag {store} {selector} --name TAG"
        )
    with WeightStore.open(store, settings=environment_settings()) as opened:
        if name is None:
            tags = [asdict(each) for each in opened.tags()]
        elif remove:
            opened.untag(name, owner=owner)
            tags = []
        else:
            version = opened.tag(name, selector or "latest", owner=owner).version
            tags = [{"name": name, "version": version, "owner": owner}]
    if as_json:
        print_json(tags)
    elif name is None:
        rows = [(each["name"], each["version"], each["owner"]) for each in tags]
        print_table("", ("tag", "version", "owner"), rows)
    elif remove:
        out.print(f"tag {name} is removed", markup=False)
    else:
        out.print(f"tag {name} is version {tags[0]['version']}", markup=False)


def retire(
    store: StoreArgument,
    *,
    keep: Annotated[
        list[str],
        typer.Option(
            help="A count (the newest N), or v7, v3-v9 for versions. Repeatable; all are kept."
        ),
    ],
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let old versions go and free their space."""
    newest_count, ranges = _kept(keep)
    with WeightStore.open(store, settings=environment_settings()) as opened:
        report = opened.retire(
            keep_newest=max(newest_count, 1),  # the newest always stays
            keep_versions=_versions(opened, ranges),
            dry_run=dry_run,
        )
    if as_json:
        print_json(asdict(report))
        return
    if dry_run:
        _print_kept(report)
    out.print(_retired_text(report, dry_run=dry_run))


def _retired_text(report: RetireReport, *, dry_run: bool) -> str:
    """What went, or would go."""

    def verb(count: int) -> str:
        if dry_run:
            return "would be"
        return "was" if count == 1 else "were"

    gone, deleted = len(report.gone), report.deleted_count
    which = f" ({_ranges(report.gone)})" if gone else ""
    text = (
        f"{counted(gone, 'version')}{which} {verb(gone)} retired, {counted(deleted, 'object')} "
        f"({size_text(report.deleted_size_bytes)}) {verb(deleted)} deleted"
    )
    if report.unknown_count:
        stays = "stays" if report.unknown_count == 1 else "stay"
        text += f"; {counted(report.unknown_count, 'unknown object')} {stays}"
    return text


def _print_kept(report: RetireReport) -> None:
    """What stays and why; neighbours that stay for the same reasons in one row."""
    rows = [
        (_ranges([each.version for each in same]), ", ".join(why))
        for why, same in groupby(report.kept, key=lambda each: each.reasons)
    ]
    print_table("", ("stays", "because of"), rows)


def _ranges(versions: Iterable[int]) -> str:
    """1-3, 7."""
    parts = kept_sets.of_versions(VersionId(version) for version in versions)
    return ", ".join(
        f"{each.first}-{each.last}" if each.first < each.last else f"{each.first}" for each in parts
    )


def _casts(words: list[str]) -> dict[str, str]:
    pairs = {}
    for word in words:
        pattern, sign, dtype = word.rpartition("=")
        if not sign or not pattern or not dtype:
            raise InputRefusedError(
                f"--cast {word!r} is not PATTERN=DTYPE", do="Write, for example, --cast '*=bf16'."
            )
        pairs[pattern] = dtype
    return pairs


def _kept(words: list[str]) -> tuple[int, list[tuple[int, int]]]:
    """The count of newest versions to keep, and ranges of versions, both ends included."""
    newest_count = 0
    ranges: list[tuple[int, int]] = []
    for word in words:
        found = _KEEP_RANGE.fullmatch(word)
        if _KEEP_COUNT.fullmatch(word):
            newest_count = max(newest_count, int(word))
        elif found and int(found[1]) <= int(found[2] or found[1]):
            ranges.append((int(found[1]), int(found[2] or found[1])))
        else:
            raise InputRefusedError(
                f"--keep {word!r} is not a count, a version or a range",
                do="Write --keep 8, --keep v7 or --keep v3-v9.",
            )
    return newest_count, ranges


def _versions(store: WeightStore, ranges: list[tuple[int, int]]) -> list[int]:
    """Every version of the ranges, none of which may end above the newest."""
    newest = store.state().newest or 0
    for _, last in ranges:
        if last > newest:
            raise VersionNotFoundError(
                f"version {last} does not exist: the newest is {newest}",
                do=f"Keep versions from 1 to {newest}.",
                facts={"version": last, "newest": newest},
            )
    return [version for first, last in ranges for version in range(first, last + 1)]
