"""A forked child neither puts through its parent's session nor ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PARENT = """
import os, sys
import numpy as np
from weightstore import WeightStore
from weightstore.errors import StoreClosedError

weights = np.zeros((300, 300), np.float32)
store = WeightStore.open(sys.argv[1], create=True)
trainer = store.trainer("run")
trainer.put_step(0, {"w": weights}).result()
child = os.fork()
if child == 0:
    code = 1
    try:
        trainer.put_step(1, {"w": weights + 1})
    except StoreClosedError:
        trainer.close()
        store.close()
        code = 42
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 42, status
weights[0, 0] = 1
print(trainer.put_step(1, {"w": weights}).result())
store.close()
trainer.close()
"""


def test_a_forked_child_is_refused_and_its_parent_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PARENT, str(tmp_path / "store")],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)
