"""Commands that look closely or look after a store: diff, doctor, migrate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from weightstore.arguments import counted
from weightstore.cli.environment import environment_settings
from weightstore.cli.exit_codes import ExitCode
from weightstore.cli.options import (
    DryRunOption,
    JsonOption,
    NewArgument,
    OldArgument,
    QuietOption,
    StoreArgument,
)
from weightstore.cli.output import out, print_json, print_table, progress_bars
from weightstore.store import (
    MigrationPlan,
    Severity,
    TensorChange,
    VersionDiff,
    WeightStore,
    examine,
    migrate_store,
    plan_migration,
)

LIMIT_MAX = 1_000_000
_EXIT_CODES = {
    Severity.OK: ExitCode.OK,
    Severity.NOTE: ExitCode.OK,
    Severity.WARNING: ExitCode.FOUND_WARNINGS,
    Severity.ERROR: ExitCode.FOUND_ERRORS,
}
_STYLES = {
    Severity.OK: "green",
    Severity.NOTE: "cyan",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
}


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the app."""
    app.command(
        epilog="Examples: weightstore diff /data/policy grpo@411 grpo@412; "
        "weightstore diff /data/policy 7 latest --counts --limit 0 --json. "
        "Ulps: steps from one representable number to the next."
    )(diff)
    app.command(
        epilog="Examples: weightstore doctor /data/policy; weightstore doctor /data/policy --deep. "
        "Exit codes: 0 nothing is wrong, 10 warnings, 11 errors."
    )(doctor)
    app.command(epilog="Example: weightstore migrate /data/policy --dry-run")(migrate)


def diff(
    store: StoreArgument,
    old: OldArgument,
    new: NewArgument = "latest",
    *,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts",
            help="Only count what changed. Between neighbours that reads no weights.",
        ),
    ] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, max=LIMIT_MAX, help="How many tensors, densest first; 0: all."
        ),
    ] = 20,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two versions: what changed in which tensor, how much, and how far."""
    with (
        WeightStore.open(store, settings=environment_settings()) as opened,
        progress_bars(quiet=quiet or as_json) as progress,
    ):
        found = opened.diff(old, new, counts=counts, progress=progress)
    shown = found.tensors[: limit or None]
    if as_json:
        print_json(_diff_document(found, shown))
        return
    _print_changes(shown)
    for change in found.schema:
        out.print(
            f"{change.name}: {change.old or 'not there'} -> {change.new or 'not there'}",
            markup=False,
            soft_wrap=True,
        )
    for line in _diff_totals(found, len(shown)):
        out.print(line, soft_wrap=True)


def doctor(
    store: StoreArgument,
    *,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also read every object of every kept version and hash it."),
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is wrong with a store and what to do. Changes nothing; damage does not stop it."""
    with progress_bars(quiet=quiet or as_json) as progress:
        report = examine(store, deep=deep, progress=progress)
    if as_json:
        print_json(
            {
                "location": report.location,
                "deep": report.is_deep,
                "worst": report.worst.value,
                "findings": [
                    asdict(each) | {"severity": each.severity.value} for each in report.findings
                ],
            }
        )
    else:
        for each in report.findings:
            style = _STYLES[each.severity]
            out.print(f"[{style}]{each.severity.value:<8}[/]", end="")
            out.print(f"{each.check:<12} {each.what}", markup=False, soft_wrap=True)
            if each.do:
                out.print(f"{'':<20} -> {each.do}", markup=False, soft_wrap=True)
        if not report.is_deep:
            out.print("the contents of objects were not hashed; --deep does that")
    raise typer.Exit(_EXIT_CODES[report.worst])


def migrate(
    store: StoreArgument,
    *,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Raise a store to the newest format that this release knows."""
    plan = plan_migration(store) if dry_run else migrate_store(store)
    if as_json:
        print_json(asdict(plan) | {"done": not dry_run and bool(plan.steps)})
    else:
        out.print(_migration_text(plan, is_done=not dry_run), soft_wrap=True)


def _print_changes(shown: Sequence[TensorChange]) -> None:
    print_table(
        "",
        ("tensor", "dtype", "shape", "changed", "density", "largest ulps", "largest absolute"),
        [
            (
                each.name,
                each.dtype,
                "x".join(map(str, each.shape)) or "()",
                f"{each.changed_count:,}",
                f"{100 * each.density:.4f} %",
                _ulps(each),
                "" if each.largest_absolute is None else f"{each.largest_absolute:.6g}",
            )
            for each in shown
        ],
    )


def _ulps(change: TensorChange) -> str:
    if change.largest_ulps is None:
        return ""
    others = f" ({change.nonfinite_count:,} not finite)" if change.nonfinite_count else ""
    return f"{change.largest_ulps:,}{others}"


def _diff_totals(found: VersionDiff, shown_count: int) -> list[str]:
    lines = []
    if shown_count < len(found.tensors):
        more = counted(len(found.tensors) - shown_count, "more tensor")
        lines.append(f"and {more} (--limit 0 shows all)")
    lines.append(
        f"version {found.old.version} ({found.old.run}@{found.old.step}) to "
        f"{found.new.version} ({found.new.run}@{found.new.step}): "
        f"{found.changed_count:,} of {counted(found.compared_unit_count, 'element')} "
        f"({100 * found.density:.4f} %) in {len(found.tensors)} of "
        f"{counted(found.compared_count, 'tensor')}"
    )
    if found.schema:
        names = counted(len(found.schema), "name is", "names are")
        lines.append(f"{names} not the same tensor in both")
    return lines


def _diff_document(found: VersionDiff, shown: tuple[TensorChange, ...]) -> dict[str, object]:
    return {
        "old": asdict(found.old),
        "new": asdict(found.new),
        "source": found.source,
        "changed_count": found.changed_count,
        "changed_tensor_count": len(found.tensors),
        "compared_count": found.compared_count,
        "compared_unit_count": found.compared_unit_count,
        "density": found.density,
        "schema": [asdict(each) for each in found.schema],
        "tensors": [asdict(each) | {"density": each.density} for each in shown],
    }


def _migration_text(plan: MigrationPlan, *, is_done: bool) -> str:
    if not plan.steps:
        return f"format {plan.format} is the newest; nothing to do"
    verb = "was" if is_done else "would be"
    return f"the store {verb} raised from format {plan.format} to {plan.newest}: " + ", ".join(
        plan.steps
    )
