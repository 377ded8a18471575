"""`weightstore demo`: the whole job on one machine, checked bit for bit by a second process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightstore.arguments import counted, expanded, place_text
from weightstore.cli.exit_codes import ExitCode
from weightstore.cli.options import JsonOption
from weightstore.cli.output import err, out, print_json, print_table, size_text
from weightstore.clock import SystemClock
from weightstore.errors import InputRefusedError

if TYPE_CHECKING:
    from weightstore.cli.demo_model import Policy

READER_TIMEOUT_S = 600
PAUSE_S_MAX = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """What the trainer saw of one put."""

    version: int
    step: int
    reward: float
    changed_count: int
    unit_count: int
    wire_size_bytes: int
    full_size_bytes: int
    put_s: float

    @property
    def stored_size_bytes(self) -> int:
        """Everything that the put wrote, the full form too."""
        return self.wire_size_bytes + self.full_size_bytes


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    app.command(
        epilog="Examples: weightstore demo; weightstore demo --model ./SmolLM2-135M --steps 5"
    )(demo)


def demo(
    *,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps to train and put.")] = 20,
    model: Annotated[
        Path | None, typer.Option(help="A Hugging Face causal model to train instead.")
    ] = None,
    store: Annotated[
        # As text, since a path would lose a slash of a URL, and be made as a directory.
        str | None,
        typer.Option(metavar="PATH", help="Keep the store here; it must be new or empty."),
    ] = None,
    learning_rate: Annotated[float, typer.Option("--lr", help="Of AdamW.")] = 1e-6,
    seed: Annotated[int, typer.Option(help="For weights, prompts and samples.")] = 0,
    pause_s: Annotated[
        float,
        typer.Option("--pause", min=0, max=PAUSE_S_MAX, help="Seconds to wait after each put."),
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Train a small policy, put every step as bf16, and check all versions bit for bit."""
    kept = None if store is None else expanded(Path(place_text(store, "store")))
    if kept is not None:
        _refuse_used(kept)
    try:
        from weightstore.cli import demo_model  # noqa: PLC0415 -- torch is optional and slow
    except ImportError as error:
        raise InputRefusedError(
            "the demo trains a model and needs torch", do="Install weightstore[torch]."
        ) from error
    policy = demo_model.pretrained_policy(model) if model else demo_model.built_in_policy(seed=seed)
    trainer = demo_model.PolicyGradient(policy, learning_rate=learning_rate, seed=seed)
    scratch = Path(tempfile.mkdtemp(prefix="weightstore-demo-"))
    try:
        where = kept if kept is not None else scratch / "store"
        facts, digests = _train(
            policy, trainer, steps=steps, store=where, quiet=as_json, pause_s=pause_s
        )
        expected = scratch / "expected.json"
        expected.write_text(json.dumps(digests), encoding="utf-8")
        readings = _read_elsewhere(where, expected)
        exact = _report(policy, facts, readings, store=where, as_json=as_json)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not exact:
        err.print("[bold red]not bit-exact[/]: see the table")
        raise typer.Exit(ExitCode.CORRUPT)


def _refuse_used(store: Path) -> None:
    """Refuse a place that holds anything, before a run is claimed in somebody's store."""
    try:
        used = any(store.iterdir())
    except FileNotFoundError:
        used = False
    except OSError as error:
        raise InputRefusedError(
            f"--store {store} is no readable directory: {error.strerror}",
            do="Name a new or empty directory, or leave --store out.",
            facts={"store": str(store)},
        ) from error
    if used:
        raise InputRefusedError(
            f"--store {store} is not empty; the demo writes to a new store only",
            do="Name a new or empty directory, or leave --store out.",
            facts={"store": str(store)},
        )


def _train(
    policy: Policy, trainer: object, *, steps: int, store: Path, quiet: bool, pause_s: float = 0.0
) -> tuple[list[StepFacts], dict[int, dict[str, str]]]:
    """Put the first weights and each step; the oracle is torch's own cast and SHA-256."""
    from weightstore.cli.demo_model import PolicyGradient, bf16_fingerprints  # noqa: PLC0415 -- torch is slow
    from weightstore.store import WeightStore  # noqa: PLC0415 -- torch is slow

    assert isinstance(trainer, PolicyGradient)
    clock = SystemClock()
    facts: list[StepFacts] = []
    fingerprints: dict[int, dict[str, str]] = {}
    with (
        WeightStore.open(store, create=True, cast={"*": "bf16"}) as opened,
        opened.trainer(run="demo") as session,
    ):
        for step in range(steps + 1):
            reward = trainer.step() if step else 0.0
            weights = policy.module.state_dict()
            before_s = clock.monotonic_s()
            report = session.put_step(step, weights).report()
            put_s = clock.monotonic_s() - before_s
            fingerprints[report.version] = bf16_fingerprints(weights)
            facts.append(
                StepFacts(
                    version=report.version,
                    step=step,
                    reward=reward,
                    changed_count=report.changed_count,
                    unit_count=report.unit_count,
                    wire_size_bytes=report.wire_size_bytes,
                    full_size_bytes=report.full_size_bytes,
                    put_s=put_s,
                )
            )
            if not quiet:
                # A line and no bar: a log or a pipe must not look hung for minutes.
                err.print(
                    f"step {step} of {steps}: version {report.version}, "
                    f"{size_text(facts[-1].stored_size_bytes)} stored, put in {put_s:.2f} s"
                )
            if pause_s and step < steps:
                clock.sleep(pause_s)
    return facts, fingerprints


def _read_elsewhere(store: Path, expected: Path) -> list[dict[str, object]]:
    """Check every version out in a new process; one line of JSON per version."""
    command = [sys.executable, "-m", "weightstore.cli.demo_reader", str(store), str(expected)]
    done = subprocess.run(  # noqa: S603 -- our own module and paths
        command, check=False, capture_output=True, text=True, timeout=READER_TIMEOUT_S
    )
    if done.returncode:
        err.print(done.stderr, markup=False)
        err.print(f"the reading process failed with exit code {done.returncode}")
        raise typer.Exit(ExitCode.FAILED)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _report(
    policy: Policy,
    facts: list[StepFacts],
    readings: list[dict[str, object]],
    *,
    store: Path,
    as_json: bool,
) -> bool:
    """Print the table; True if every version was read back bit for bit."""
    full_size_bytes = 2 * facts[0].unit_count
    read = {reading["version"]: reading for reading in readings}
    rows = [
        _row(fact, read.get(fact.version, {}), full_size_bytes=full_size_bytes) for fact in facts
    ]
    exact = len(facts) == len(readings) and all(row["result"] == "bit-exact" for row in rows)
    if as_json:
        print_json({"parameters": policy.parameter_count, "versions": rows, "bit_exact": exact})
        return exact
    print_table(
        f"{policy.parameter_count:,} parameters, {size_text(full_size_bytes)} as bf16",
        (
            "version", "step", "reward", "changed %", "stored", "% of full",
            "B/changed", "put s", "checkout s", "second process",
        ),
        [
            (
                row["version"], row["step"], row["reward"], row["changed_percent"],
                size_text(fact.stored_size_bytes), _or_empty(row["of_full_percent"]),
                _or_empty(row["bytes_per_changed"]), row["put_s"], row["checkout_s"],
                row["result"],
            )
            for row, fact in zip(rows, facts, strict=True)
        ],
    )  # fmt: skip
    out.print(_closing_line(facts, full_size_bytes=full_size_bytes, exact=exact), soft_wrap=True)
    if store.exists() and not store.is_relative_to(tempfile.gettempdir()):
        out.print(f"the store is kept: weightstore show {store}", soft_wrap=True)
    return exact


def _row(fact: StepFacts, reading: dict[str, object], *, full_size_bytes: int) -> dict[str, object]:
    """One version; no ratios where a full form was written, since they are about deltas."""
    of_full_percent = round(100 * fact.wire_size_bytes / full_size_bytes, 3)
    bytes_per_changed = round(fact.wire_size_bytes / max(fact.changed_count, 1), 3)
    return {
        "version": fact.version,
        "step": fact.step,
        "reward": round(fact.reward, 4),
        "changed_percent": round(100 * fact.changed_count / fact.unit_count, 3),
        "stored_bytes": fact.stored_size_bytes,
        "full_form_bytes": fact.full_size_bytes,
        "of_full_percent": None if fact.full_size_bytes else of_full_percent,
        "bytes_per_changed": None if fact.full_size_bytes else bytes_per_changed,
        "put_s": round(fact.put_s, 3),
        "checkout_s": reading.get("checkout_s", "-"),
        "result": reading.get("result", "not read"),
    }


def _or_empty(value: object) -> object:
    return "" if value is None else value


def _closing_line(facts: list[StepFacts], *, full_size_bytes: int, exact: bool) -> str:
    """What the steps took, and the full forms that they do not count."""
    deltas = facts[1:]
    stored = sum(fact.wire_size_bytes for fact in deltas)
    changed = sum(fact.changed_count for fact in deltas)
    full_forms = "".join(
        f", plus {size_text(fact.full_size_bytes)} for the full form of version {fact.version}"
        for fact in facts
        if fact.full_size_bytes
    )
    return (
        f"{counted(len(deltas), 'step')} in {size_text(stored)} instead of "
        f"{size_text(full_size_bytes * len(deltas))}{full_forms}: "
        f"{stored / max(changed, 1):.3f} bytes per changed element; "
        f"{'all versions bit-exact' if exact else 'NOT bit-exact'}"
    )
