"""The second process of `weightstore demo`: reads versions and compares them bit for bit."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from weightstore.clock import SystemClock
from weightstore.storage.buffers import byte_view
from weightstore.store import WeightStore


def read_all(store: Path, expected: dict[str, dict[str, str]]) -> None:
    """Check out each expected version and print one line of JSON for it.

    Args:
        store: The store's directory.
        expected: Version to tensor name to the SHA-256 of the tensor's bytes.
    """
    clock = SystemClock()
    with WeightStore.open(store) as opened:
        for version, fingerprints in expected.items():
            before_s = clock.monotonic_s()
            taken = opened.checkout(int(version))
            checkout_s = clock.monotonic_s() - before_s
            found = {
                name: hashlib.sha256(byte_view(host.units.data)).hexdigest()
                for name, host in taken.host.items()
            }
            wrong = sorted(
                name
                for name in {*found, *fingerprints}
                if found.get(name) != fingerprints.get(name)
            )
            line = {
                "version": int(version),
                "checkout_s": round(checkout_s, 3),
                "result": "bit-exact" if not wrong else f"differs: {', '.join(wrong[:5])}",
            }
            sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    read_all(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
