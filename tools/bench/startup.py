"""How long a new process takes until weightstore is there.

python tools/bench/startup.py --json FILE
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tools.bench.bench import Bench, Findings, Options, run
from tools.bench.report import Side, Target, against, at_most
from tools.bench.turns import Timed, in_turns, seconds

COMMAND = Path(sys.executable).with_name("weightstore")
TURN_COUNT = 10
NO_CACHE = "PYTHONDONTWRITEBYTECODE"
EMPTY = "python -c pass"
IMPORT = "import weightstore"
TARGETS: dict[str, Target] = {IMPORT: at_most(0.3, of=Side.MEASURED)}


def start(command: list[str]) -> None:
    """Run a command to its end.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    # Where Python may not keep what it compiles, every start compiles all modules again.
    environment = {name: each for name, each in os.environ.items() if name != NO_CACHE}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


def measure(options: Options, findings: Findings) -> None:
    """Run every command in turns."""
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="weightstore-startup-") as folder:
        place = str(Path(folder) / "store")
        start([str(COMMAND), "init", place])
        commands = {
            EMPTY: [python, "-c", "pass"],
            IMPORT: [python, "-c", "import weightstore"],
            "weightstore --help": [str(COMMAND), "--help"],
            "weightstore log": [str(COMMAND), "log", place],
        }
        work: dict[str, Timed] = {
            name: partial(seconds, partial(start, command)) for name, command in commands.items()
        }
        taken = in_turns(work, options.turns(TURN_COUNT))
    findings.add(
        *(
            against(name, "s", times, EMPTY, taken[EMPTY], target=TARGETS.get(name))
            for name, times in taken.items()
            if name != EMPTY
        )
    )


BENCH = Bench(
    name="startup",
    summary="Wall seconds of whole processes, against one of Python that does nothing.",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(run(BENCH))
