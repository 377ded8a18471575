"""A store that was opened before a fork and is used after it, on both sides.

Each story runs in a process of its own, whose only threads are those that it speaks of.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_BEGIN = """
import os, sys, threading
from pathlib import Path
from weightstore.errors import StoreClosedError, StoreOwnedError
from weightstore.storage.local import LocalBlobStore
from weightstore.testing.kill_operations import OPERATIONS, RUN, SETTINGS, opened, weights_of
from weightstore.testing.store_lab import store_on
from weightstore.testing.trainer_lab import bits_of

place = Path(sys.argv[1])
OPERATIONS["delta"].prepare(place, lambda *_: None)

def check(store, *steps):
    assert [info.step for info in store.versions()] == list(reversed(steps))
    for info in store.versions():
        host = store.checkout(info.version).host
        assert {name: each.units.tobytes() for name, each in host.items()} == bits_of(
            weights_of(info.step)
        )
        store.verify(info.version)

def refused(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised")

def in_child(run):
    child = os.fork()
    if child:
        return child
    try:
        run()
        os._exit(0)
    finally:
        os._exit(1)

def await_child(child):
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == 0, f"the child ended with {ended}"

def put(store, step):
    version = store.put_step(step, weights_of(step), run=RUN)
    assert version == step, version
"""

_UNOWNED = """
with opened(place) as store:
    check(store, 1)
    ready, go = os.pipe(), os.pipe()

    def child():
        check(store, 1)
        put(store, 2)
        os.write(ready[1], b".")
        os.read(go[0], 1)
        store.tag("child", 2)
        store.close()

    number = in_child(child)
    os.read(ready[0], 1)
    check(store, 1, 2)
    refused(StoreOwnedError, lambda: put(store, 3))
    os.write(go[1], b".")
    await_child(number)
    put(store, 3)
    check(store, 1, 2, 3)
    assert [tag.name for tag in store.tags()] == ["child"]
"""

_OWNED = """
with opened(place) as store:
    put(store, 2)

    def child():
        check(store, 1, 2)
        refused(StoreClosedError, lambda: put(store, 3))
        store.tag("child", 2)
        with opened(place) as other:
            refused(StoreOwnedError, lambda: put(other, 3))
        store.close()

    await_child(in_child(child))
    assert store.state().owner is not None
    put(store, 3)
    check(store, 1, 2, 3)
"""

_CLAIMING = """
class SlowBlobs(LocalBlobStore):
    'Waits in the put of a claim, while the process forks.'

    def put_if_absent(self, key, data, /, *, durable=True):
        if key.startswith("log/") and os.getpid() == parent:
            claiming.set()
            forked.wait()
        super().put_if_absent(key, data, durable=durable)

parent, claiming, forked = os.getpid(), threading.Event(), threading.Event()
store = store_on(SlowBlobs(place / "store"), settings=SETTINGS)
failed = []

def train():
    try:
        put(store, 2)
    except BaseException as error:
        failed.append(error)

thread = threading.Thread(target=train)
thread.start()
claiming.wait()

def child():
    check(store, 1)
    put(store, 2)
    store.close()

await_child(in_child(child))
forked.set()
thread.join()
# The child has been the owner in between, and has given the store up.
assert not failed, failed
put(store, 3)
store.close()
with opened(place) as store:
    check(store, 1, 2, 3)
"""


@pytest.mark.parametrize(
    "story", [_UNOWNED, _OWNED, _CLAIMING], ids=["unowned", "owned", "claiming"]
)
def test_a_fork_loses_nothing_and_hangs_nobody(folder: Path, story: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + story, str(folder / "place")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
