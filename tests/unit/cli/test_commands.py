"""The command line as a person and a script meet it: output, JSON, exit codes, no tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

import weightstore
from weightstore.cli.exit_codes import ExitCode
from weightstore.store import WeightStore
from weightstore.testing.command_lab import Run
from weightstore.testing.store_lab import tree

COMMANDS = (
    "init", "import", "put", "log", "show", "checkout", "export", "verify", "tag", "retire", "diff",
    "doctor", "migrate", "demo", "receivers", "activate", "watch",
)  # fmt: skip


def weights_file(path: Path, value: float, count: int = 1000) -> Path:
    """A checkpoint of two tensors."""
    weights: dict[str, NDArray[Any]] = {
        "w": np.full(count, value, np.float32),
        "b": np.arange(4, dtype=np.float16),
    }
    safetensors.numpy.save_file(weights, path)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of three versions: an import, and two steps that change one element each."""
    with WeightStore.open(tmp_path / "store", create=True) as store:
        store.import_checkpoint(weights_file(tmp_path / "v1", 1.0))
        weights = safetensors.numpy.load_file(tmp_path / "v1")
        for step in (1, 2):
            weights["w"][step] = 7
            store.put_step(step, weights, run="grpo")
    return tmp_path / "store"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(run: Run, command: str) -> None:
    ran = run(command, "--help")
    assert ran.code == ExitCode.OK
    assert "Example" in ran.out
    assert f"weightstore {command}" in " ".join(ran.out.split())


def test_the_help_lists_the_commands_and_exit_codes(run: Run) -> None:
    ran = run("--help")
    assert all(command in ran.out for command in COMMANDS)
    text = " ".join(ran.out.split())
    for code in ExitCode:
        assert f"{int(code)} " in text


def test_init_makes_a_store_once(run: Run, tmp_path: Path) -> None:
    first = run("init", tmp_path / "store")
    assert (first.code, first.err) == (ExitCode.OK, "")
    assert str(tmp_path / "store") in first.out
    assert "already" not in first.out
    again = run("init", tmp_path / "store", "--json").json
    assert again["store_id"] in first.out
    assert again["created"] is False
    assert "is a store already; nothing was changed" in run("init", tmp_path / "store").out
    assert run("init", tmp_path / "other", "--json").json["created"] is True


def test_version_says_the_format_too(run: Run) -> None:
    told = run("--version")
    assert (told.code, told.err) == (ExitCode.OK, "")
    assert told.out == f"weightstore {weightstore.__version__}, store format 1\n"


@pytest.mark.parametrize(
    "words",
    [
        ("init",), ("import", "{file}"), ("put", "{file}", "--step", 1), ("log",), ("show",),
        ("checkout", "latest", "{file}"), ("export", "latest", "out"), ("verify",), ("tag",),
        ("retire", "--keep", 1), ("diff", 1), ("doctor",), ("migrate",), ("migrate", "--dry-run"),
        ("receivers",), ("activate",), ("watch",), ("watch", "--once"),
    ],
)  # fmt: skip
def test_a_url_is_refused_as_the_user_wrote_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = weights_file(tmp_path / "weights", 1.0)
    command, *rest = [file if word == "{file}" else word for word in words]
    ran = run(command, "s3://bucket/x", *rest)
    assert ran.code == ExitCode.REFUSED
    assert "s3://bucket/x is a URL, and object storage is not there yet" in ran.err.replace(
        "\n", " "
    )
    assert list(tmp_path.iterdir()) == [file]


def test_an_import_names_every_file_that_it_leaves_behind(run: Run, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    weights_file(checkpoint / "model.safetensors", 1.0)
    (checkpoint / "config.json").write_text("{}")
    left = {"caf\u00e9.json", "tokenizer [1].json", "bad\udcff.txt", "optimizer.pt"}
    for name in left:
        (checkpoint / name).write_text("x")
    told = run("import", tmp_path / "store", checkpoint)
    assert told.code == ExitCode.OK
    assert "version 1" in told.out
    assert "4 entries of the directory" in told.err
    for name in left:
        (line,) = (line for line in told.err.splitlines() if repr(name) in line)
        assert ("another form" if name.endswith(".pt") else "printable ASCII") in line
    again = run("import", tmp_path / "store", checkpoint, "--json").json
    assert again["version"] == 1
    assert {entry["name"] for entry in again["skipped"]} == left
    assert all(entry["reason"] for entry in again["skipped"])
    exported = run("export", tmp_path / "store", 1, tmp_path / "out")
    assert exported.code == ExitCode.OK
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json", "model.safetensors",
    ]  # fmt: skip


def test_an_import_that_takes_everything_says_nothing_more(run: Run, tmp_path: Path) -> None:
    told = run("import", tmp_path / "store", weights_file(tmp_path / "a", 1.0))
    assert told.err == ""
    assert run("import", tmp_path / "store", tmp_path / "a", "--json").json["skipped"] == []


def test_import_put_and_checkout_do_the_round_trip(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    imported = run("import", store, weights_file(tmp_path / "a", 1.0), "--json").json
    assert (imported["version"], imported["run"], imported["step"]) == (1, "base", 0)
    told = run("put", store, weights_file(tmp_path / "b", 1.0), "--run", "grpo", "--step", 5)
    assert told.code == ExitCode.OK
    assert "2 (grpo@5)" in told.out
    assert "0 of 1,004" in told.out
    changed = weights_file(tmp_path / "c", 1.0)
    weights = safetensors.numpy.load_file(changed)
    weights["w"][3] = 2.0
    safetensors.numpy.save_file(weights, changed)
    report = run("put", store, changed, "--run", "grpo", "--step", 6, "--anchor", "--json").json
    assert (report["version"], report["changed_count"], report["repeated"]) == (3, 1, False)
    assert run("put", store, changed, "--run", "grpo", "--step", 6, "--json").json["repeated"]
    again = run("put", store, changed, "--run", "grpo", "--step", 6).out
    assert again == "version 3 (grpo@6) holds these bytes already\n"

    told = run("checkout", store, "grpo@6", tmp_path / "out")
    assert (told.code, told.err) == (ExitCode.OK, "")
    assert f"version 3 (grpo@6) is in {tmp_path / 'out'}" in told.out
    assert np.array_equal(safetensors.numpy.load_file(tmp_path / "out")["w"], weights["w"])
    exported = run("export", store, 1, tmp_path / "hf", "--json").json
    assert exported["version"] == 1
    assert (tmp_path / "hf" / "model.safetensors").is_file()


def test_put_casts_where_it_is_told_to(run: Run, tmp_path: Path) -> None:
    store, file = tmp_path / "store", weights_file(tmp_path / "a", 1.0)
    run("init", store)
    assert run("put", store, file, "--step", 0, "--cast", "w=bf16").code == ExitCode.OK
    with WeightStore.open(store) as opened:
        specs = {name: host.spec.dtype.value for name, host in opened.checkout().host.items()}
    assert specs == {"w": "BF16", "b": "F16"}
    assert run("put", store, file, "--step", 1).code == ExitCode.REFUSED
    assert run("put", store, file, "--step", 1, "--cast", "bf16").code == ExitCode.REFUSED


@pytest.mark.parametrize("rewind_to", [9, 30])
def test_put_refuses_a_rewind_that_is_not_below_the_step(
    run: Run, place: Path, tmp_path: Path, rewind_to: int
) -> None:
    before = tree(place)
    words = ("put", place, tmp_path / "v1", "--run", "grpo", "--step", 9, "--rewind-to")
    told = run(*words, rewind_to)
    assert told.code == ExitCode.REFUSED
    assert f"--rewind-to {rewind_to} is not below --step 9" in told.err
    assert tree(place) == before
    assert run(*words, 1).code == ExitCode.OK


def test_log_lists_records_newest_first(run: Run, place: Path) -> None:
    rows = run("log", place, "--json").json
    assert [row["slot"] for row in rows] == list(range(len(rows) - 1, -1, -1))
    table = run("log", place, "-n", 3)
    lines = [line for line in table.out.splitlines() if "grpo" in line]
    assert len(lines) == 3
    assert "version 3, step 2, from 2" in table.out
    assert "base" not in table.out


def test_show_tells_a_store_and_a_version(run: Run, place: Path) -> None:
    told = run("show", place)
    for words in (str(place), "newest version", "grpo@2", "base@0"):
        assert words in told.out
    assert run("show", place, "-n", 1, "--json").json["versions"][0]["version"] == 3
    version = run("show", place, "grpo@1").out
    for words in (
        "2 (grpo@1)",
        "version 1",
        "2 with 1,004 elements, 3.9 KiB",
        "1 element (0.100 %)",
        "full form",
        "a full form and 1 delta of",
    ):
        assert words in version
    assert run("show", place, "2", "--json").json["changed_count"] == 1
    assert "none: a full version" in run("show", place, "1").out


def test_verify_tells_what_it_read(run: Run, place: Path) -> None:
    assert "every object" in run("verify", place).out
    rows = run("verify", place, "--all", "--scan", "--json").json
    assert [row["version"] for row in rows] == [3, 2, 1]
    assert all(row["scanned"] for row in rows)


def test_tags_are_set_listed_and_removed(run: Run, place: Path) -> None:
    assert "best is version 2" in run("tag", place, "grpo@1", "--name", "best", "--owner", "me").out
    assert run("tag", place, "--json").json == [{"name": "best", "version": 2, "owner": "me"}]
    table = run("tag", place).out
    assert all(words in table for words in ("best", "2", "me"))
    assert "removed" in run("tag", place, "--name", "best", "--remove").out
    assert run("tag", place, "--json").json == []
    assert run("tag", place, "--remove").code == ExitCode.REFUSED
    for selector in ("grpo@1", "latest"):
        told = run("tag", place, selector)
        assert told.code == ExitCode.USAGE
        assert "--name TAG" in told.err
    assert "best is version 3" in run("tag", place, "--name", "best").out
    assert "removed" in run("tag", place, "--name", "best", "--remove").out
    assert run("tag", place, "--name", "best", "--remove").code == ExitCode.NOT_FOUND


def test_retire_says_what_goes_before_and_after(run: Run, place: Path, tmp_path: Path) -> None:
    with WeightStore.open(place) as store:
        store.put_step(3, tmp_path / "v1", run="grpo", anchor=True)
    planned = run("retire", place, "--keep", 1, "--dry-run")
    assert "3 versions (1-3) would be retired" in planned.out
    kept = run("retire", place, "--keep", "v2", "--json").json
    assert kept["gone"] == [3]
    done = run("retire", place, "--keep", 1)
    assert "2 versions (1-2) were retired" in done.out
    assert run("checkout", place, 2, tmp_path / "out").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    "keep", ["all", "0", "-3", "v", "v3-", "v3-v1", "v0x1", "3-5", "1.5", "v1-v2-v3"]
)
def test_retire_refuses_to_guess(run: Run, place: Path, keep: str) -> None:
    assert run("retire", place, f"--keep={keep}").code == ExitCode.REFUSED
    with WeightStore.open(place) as store:
        assert all(info.kept for info in store.versions())


def test_retire_needs_to_be_told_what_stays(run: Run, place: Path) -> None:
    assert run("retire", place).code == ExitCode.USAGE
    assert run("retire", place, "--keep", "v1-v999999999999").code == ExitCode.NOT_FOUND


FAILURES: dict[str, tuple[ExitCode, tuple[str, ...]]] = {
    "no command": (ExitCode.USAGE, ()),
    "an unknown command": (ExitCode.USAGE, ("fetch", "{store}")),
    "an unknown option": (ExitCode.USAGE, ("log", "{store}", "--sideways")),
    "a step that is no number": (ExitCode.USAGE, ("put", "{store}", "{file}", "--step", "two")),
    "no checkpoint": (ExitCode.USAGE, ("import", "{tmp}/new", "{tmp}/missing")),
    "refused": (ExitCode.REFUSED, ("show", "{store}", "newest")),
    "a conflict of a step": (
        ExitCode.REFUSED,
        ("put", "{store}", "{file}", "--run", "grpo", "--step", "1"),
    ),
    "a file in the way": (ExitCode.REFUSED, ("checkout", "{store}", "latest", "{file}")),
    "not found": (ExitCode.NOT_FOUND, ("show", "{store}", "99")),
    "no store": (ExitCode.NOT_FOUND, ("log", "{tmp}/nowhere")),
    "corrupt": (ExitCode.CORRUPT, ("verify", "{damaged}")),
    "unavailable": (ExitCode.UNAVAILABLE, ("log", "{newer}")),
}


@pytest.mark.parametrize("case", FAILURES)
def test_each_failure_has_its_code_and_a_message_on_standard_error(
    run: Run, place: Path, tmp_path: Path, case: str
) -> None:
    code, words = FAILURES[case]
    _damage(tmp_path / "damaged")
    _make_newer(tmp_path / "newer")
    names = {
        "store": place,
        "tmp": tmp_path,
        "file": weights_file(tmp_path / "file", 9.0),
        "damaged": tmp_path / "damaged",
        "newer": tmp_path / "newer",
    }
    filled = [word.format(**names) for word in words]
    ran = run(*filled)
    assert ran.code == code
    assert ran.out == "" or code == ExitCode.USAGE
    assert ran.err or not words
    if code != ExitCode.USAGE:
        assert ran.err.startswith("error WS-")
        assert "->" in ran.err
        document = json.loads(run(*filled, "--json").err)
        assert document["exit_code"] == code
        assert document["code"] in ran.err
        assert document["message"]
    assert not (tmp_path / "new").exists()


def _damage(place: Path) -> None:
    with WeightStore.open(place, create=True) as store:
        store.put_step(0, {"w": np.zeros(9, np.uint8)})
    (file,) = place.glob("anchors/*/*.safetensors")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")


def _make_newer(place: Path) -> None:
    WeightStore.open(place, create=True).close()
    file = place / "FORMAT"
    document = json.loads(file.read_bytes()) | {"format": 2}
    file.chmod(0o644)
    file.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))


def test_a_store_that_somebody_owns_is_a_conflict_and_may_be_taken_over(
    run: Run, place: Path, tmp_path: Path
) -> None:
    words = ("put", place, tmp_path / "v1", "--run", "grpo", "--step", 9)
    with WeightStore.open(place) as owner, owner.trainer("grpo") as session:
        assert run(*words).code == ExitCode.CONFLICT
        assert run(*words, "--take-over").code == ExitCode.OK
        assert session.run == "grpo"


def test_progress_bars_are_silent_where_no_terminal_is(
    run: Run, place: Path, tmp_path: Path
) -> None:
    for words in (
        ("checkout", place, "latest", tmp_path / "out"),
        ("verify", place),
        ("import", tmp_path / "other", tmp_path / "v1"),
        ("export", place, "latest", tmp_path / "hf", "--quiet"),
        ("put", place, tmp_path / "v1", "--run", "grpo", "--step", 9),
    ):
        err = run(*words).err
        assert err == "" or (words[0] == "export" and err.startswith("warning: "))


def test_words_with_brackets_are_printed_as_they_are(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "[red]store[/]"
    assert str(place) in run("init", place).out
    assert str(tmp_path / "[bold]no") in run("log", tmp_path / "[bold]no").err


@pytest.mark.slow
def test_the_demo_is_bit_exact() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "weightstore", "demo", "--steps", "2", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    document = json.loads(ended.stdout)
    assert document["bit_exact"] is True
    assert [row["result"] for row in document["versions"]] == ["bit-exact"] * 3
    assert all(row["changed_percent"] < 5 for row in document["versions"][1:])
