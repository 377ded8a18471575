"""Eight rank processes of one machine and one host agent, as they are run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from weightstore.store import WeightStore
from weightstore.testing.store_lab import LAB_SETTINGS

RANK_COUNT = 8
TIMEOUT_S = 100
UNIT_COUNT = 80_000
RANK = """
import hashlib, json, sys
import numpy as np
from weightstore import Box, ReceiverSettings, WeightStore
store, socket, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
live = {"w": np.zeros(count, np.uint32), "b": np.zeros(1000, np.uint32)}
settings = ReceiverSettings(agent_socket=socket, agent_wait_s=60, agent_answer_s=60)
with WeightStore.open(store) as opened:
    boxes = {"w": Box((first,), (count,))}
    receiver = opened.receiver(live, boxes=boxes, settings=settings)
    receiver.refit(1)
    reports = [receiver.refit(version) for version in (2, 4)]
print(json.dumps({
    "ways": [each.way.value for each in reports],
    "reasons": [each.reason for each in reports],
    "wire": sum(each.size_bytes.wire for each in reports),
    "sha256": hashlib.sha256(live["w"].tobytes() + live["b"].tobytes()).hexdigest(),
}))
"""


def test_each_piece_is_decoded_once_for_eight_rank_processes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal(UNIT_COUNT).astype(np.float32),
        "b": rng.standard_normal(1000).astype(np.float32),
    }
    part = UNIT_COUNT // RANK_COUNT
    with WeightStore.open(tmp_path / "store", create=True, settings=LAB_SETTINGS) as store:
        for step in range(4):
            store.put_step(step, weights)
            weights["w"][rng.integers(0, UNIT_COUNT, 3000)] += 1
            weights["b"][step] += 1
        final = {name: store.checkout(4).host[name].units for name in weights}
        delta_piece_count = sum(store.describe(version).piece_count or 0 for version in (2, 3, 4))
        with store.host_agent(tmp_path / "agent") as agent:
            ranks = [
                subprocess.Popen(
                    [
                        *(sys.executable, "-c", RANK, str(tmp_path / "store")),
                        *(str(tmp_path / "agent"), str(rank * part), str(part)),
                    ],
                    stdout=subprocess.PIPE,
                )
                for rank in range(RANK_COUNT)
            ]
            said = [json.loads(each.communicate(timeout=TIMEOUT_S)[0]) for each in ranks]
            found = agent.stats()
    for rank, each in enumerate(said):
        own = final["w"][rank * part : (rank + 1) * part]
        assert each == {
            "ways": ["change", "change"],
            "reasons": ["", ""],
            "wire": 0,
            "sha256": hashlib.sha256(own.tobytes() + final["b"].tobytes()).hexdigest(),
        }
    assert found.decoded_piece_count == delta_piece_count > 0
    assert found.served_piece_count == RANK_COUNT * delta_piece_count
    assert found.busy_count == found.failed_count == 0
