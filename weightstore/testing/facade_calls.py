"""Every public method of the facade with good arguments, one of which a test makes wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch

from weightstore.store import WeightStore
from weightstore.testing.members import MemberActor, member_id
from weightstore.testing.store_lab import LAB_SETTINGS, other_weights

Arguments: TypeAlias = dict[str, object]

# Relative to the folder `here` of a stage.
GOOD: dict[str, Callable[[], Arguments]] = {
    "open": lambda: {"location": "new", "create": True},
    "trainer": lambda: {"run": "main"},
    "put_step": lambda: {"step": 3, "tensors": other_weights(3)},
    "import_checkpoint": lambda: {"path": "../model.safetensors", "step": 9},
    "tag": lambda: {"name": "best"},
    "forget_receiver": lambda: {"member_id": member_id(1)},
    "untag": lambda: {"name": "best"},
    "checkout_into": lambda: {"selector": "latest", "state_dict": {"w": torch.zeros(8)}},
    "engine": lambda: {
        "targets": {"w": torch.zeros(8)},
        "rank": 0,
        "rank_count": 1,
        "channel": "channel",
    },
    "receiver": lambda: {"targets": {"w": torch.zeros(8)}},
    "checkout_to_file": lambda: {"selector": "latest", "path": "file"},
    "export": lambda: {"selector": "latest", "directory": "folder"},
    "host_agent": lambda: {"socket": "socket"},
    "host_agent_stats": lambda: {"socket": "socket"},
    "host_files": lambda: {"directory": "live"},
    "diff": lambda: {"old": 1},
    "overwrite_set": lambda: {"version": "latest", "base": 1},
}
"""What a method needs; one that is not here needs nothing."""


def public_methods() -> tuple[str, ...]:
    """Names of all methods that take an argument, by name."""
    names = [name for name in dir(WeightStore) if not name.startswith("_")]
    return tuple(name for name in names if parameters_of(name))


def parameters_of(method: str) -> tuple[str, ...]:
    """Names of a method's parameters; none of a property."""
    found = getattr(WeightStore, method)
    if not callable(found):
        return ()
    return tuple(name for name in inspect.signature(found).parameters if name != "self")


def make_stage(base: Path) -> None:
    """Make a store with two versions, a tag and a receiver, a checkpoint, and a folder `here`."""
    (base / "here").mkdir(parents=True)
    with WeightStore.open(base / "store", create=True, settings=LAB_SETTINGS) as store:
        store.put_step(1, other_weights(1))
        store.put_step(2, other_weights(2))
        store.tag("best", 1)
        MemberActor(store._blobs).say(mode="controller")  # noqa: SLF001 -- a receiver would
        store.checkout_to_file(2, base / "model.safetensors")


def call(store: WeightStore, method: str, given: Mapping[str, object]) -> None:
    """Call a method to its end; what it has opened is closed again."""
    good = GOOD[method]() if method in GOOD else {}
    result = getattr(store, method)(**{**good, **given})
    if isinstance(result, Iterator):
        list(result)
    elif method in {"host_files", "open", "trainer"}:
        result.close()
