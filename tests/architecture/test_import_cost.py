"""What a plain import and the light commands may load; their seconds are a bench's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {
    "torch",
    "triton",
    "transformers",
    "numba",
    "llvmlite",
    "lmdb",
    "boto3",
    "botocore",
    "s3fs",
}

_REPORT = """
import json, sys
print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""

_COMMAND = """
import sys
from weightstore.cli import main
sys.argv = ["weightstore", *{arguments!r}]
try:
    main()
except SystemExit as end:
    if end.code:
        raise
"""


def _packages_after(script: str) -> set[str]:
    """Top-level packages in `sys.modules` when a new interpreter has run the script."""
    done = subprocess.run(
        [sys.executable, "-c", script + _REPORT],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _packages_after_command(*arguments: str) -> set[str]:
    return _packages_after(_COMMAND.format(arguments=arguments))


def test_import_loads_nothing_heavy() -> None:
    assert not _packages_after("import weightstore") & HEAVY


def test_help_loads_nothing_heavy() -> None:
    assert not _packages_after_command("log", "--help") & HEAVY


def test_init_and_log_of_a_store_load_nothing_heavy(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    assert not _packages_after_command("init", place) & HEAVY
    assert not _packages_after_command("log", place) & HEAVY


def test_the_probe_would_see_a_heavy_import() -> None:
    assert "numba" in _packages_after("import numba")
