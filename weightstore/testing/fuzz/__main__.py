"""Fuzzes decoders in a process with a bound on memory and time; says what came out as JSON."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path

from weightstore.settings import MIB
from weightstore.testing.fuzz import campaign
from weightstore.testing.fuzz.decoders import GROUPS, decoders_of


def main(arguments: list[str]) -> None:
    """Run the campaign that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m weightstore.testing.fuzz")
    parser.add_argument("--group", choices=GROUPS, action="append", help="default: all of them")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same inputs")
    parser.add_argument("--count", type=int, default=1000, help="inputs of a decoder of share 1")
    parser.add_argument("--memory-mib", type=int, default=512, help="above what is loaded")
    parser.add_argument("--cpu-s", type=int, default=600, help="killed when it takes longer")
    given = parser.parse_args(arguments)
    outcomes: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory(prefix="weightstore-fuzz-") as folder:
        decoders = [
            decoder
            for group in given.group or GROUPS
            for decoder in decoders_of(group, Path(folder))
        ]
        for decoder in decoders:
            campaign.run(decoder, given.seed, 0)  # compiles the kernels before memory is bounded
        bound_memory(given.memory_mib * MIB)
        resource.setrlimit(resource.RLIMIT_CPU, (given.cpu_s, given.cpu_s))
        for decoder in decoders:
            found = campaign.run(decoder, given.seed, max(1, int(given.count * decoder.share)))
            outcomes[decoder.name] = (found.decoded_count, found.refused_count)
    sys.stdout.write(json.dumps(outcomes, indent=1) + "\n")


def bound_memory(more_bytes: int) -> None:
    """Let this process have so much address space beyond what it has; then `MemoryError`."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main(sys.argv[1:])
