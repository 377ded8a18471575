"""Any sequence of puts, repeats and restarts, against a dictionary of what was put."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from weightstore.errors import StepConflictError
from weightstore.layout.dtypes import DType
from weightstore.layout.tensors import HostTensor, TensorSpec
from weightstore.storage.memory import MemoryBlobStore
from weightstore.testing.trainer_lab import Bits, TrainerLab, lab_settings
from weightstore.trainer.binding import Missing
from weightstore.trainer.inputs import TensorSource

State = dict[str, HostTensor]
HARD = (0, 1, 0x8000, 0x7F80, 0x7FC0, 0x7FC1, 0xFFC0, 0x0001, 0x3F80, 0xFFFF)


@dataclass(frozen=True)
class Action:
    """One thing that a trainer does.

    Attributes:
        kind: What.
        seed: Which units change, and to what.
        ratio: Share of the units that change.
        streamed: Give a stream in an order of its own.
    """

    kind: Literal["put", "anchor", "part", "repeat", "conflict", "restart", "schema"]
    seed: int
    ratio: float
    streamed: bool


ACTIONS = st.builds(
    Action,
    st.sampled_from(
        ["put", "put", "put", "anchor", "part", "repeat", "conflict", "restart", "schema"]
    ),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.001, 0.02, 0.6, 1.0]),
    st.booleans(),
)
SPECS = st.lists(
    st.builds(
        lambda dtype, shape: (dtype, shape),
        st.sampled_from([DType.BF16, DType.BF16, DType.F32, DType.F8_E4M3, DType.I64, DType.BOOL]),
        st.sampled_from([(), (0, 3), (1,), (7, 1), (5, 33), (300, 219), (66_000,)]),
    ),
    min_size=1,
    max_size=6,
)


def fresh(specs: list[tuple[DType, tuple[int, ...]]], seed: int) -> State:
    rng = np.random.default_rng(seed)
    state = {}
    for number, (dtype, shape) in enumerate(specs):
        spec = TensorSpec(f"t{number}", dtype, shape)
        raw = rng.integers(0, 256, spec.size_bytes, dtype=np.uint8)
        state[spec.name] = HostTensor(spec, raw.view(dtype.unit_dtype))
    return state


def moved(state: State, action: Action) -> State:
    rng = np.random.default_rng(action.seed)
    after = {}
    for name, host in state.items():
        units = host.units.copy()
        count = int(np.ceil(action.ratio * units.size))
        chosen = rng.permutation(units.size)[:count]
        values = rng.choice(HARD, count).astype(np.uint16).astype(units.dtype)
        units[chosen] = np.where(rng.random(count) < 0.5, units[chosen] + values, values)
        after[name] = HostTensor(host.spec, units)
    return after


def bits_of(state: State) -> Bits:
    return {name: host.units.tobytes() for name, host in state.items()}


class Model:
    """A store, its trainer, and what every version must be."""

    def __init__(self, directory: Path, state: State, thread_count: int) -> None:
        self._settings = lab_settings(
            thread_count=thread_count,
            pack_size_bytes=2000,
            anchor_file_size_bytes=100_000,
            full_after_chain_count=3,
        )
        self._blobs = MemoryBlobStore()
        self._path = directory / "baseline"
        self._starts = 0
        self.state = state
        self.versions: list[Bits] = []
        self.step = 0
        self._open().create()
        self._trainer = self.lab.trainer(baseline_path=self._path)
        self._put(self.state, new_schema=True)

    def _open(self) -> TrainerLab:
        self._starts += 1
        self.lab = TrainerLab(self._blobs, self._starts, self._settings)
        return self.lab

    def close(self) -> None:
        self._trainer.close()

    def run(self, action: Action) -> None:
        match action.kind:
            case "put" | "anchor":
                self.state = moved(self.state, action)
                given = self._given(self.state, action)
                self._put(self.state, given, anchor=action.kind == "anchor")
            case "part":
                part = dict(list(moved(self.state, action).items())[:2])
                self.state = {**self.state, **part}
                self._put(self.state, self._given(part, action), missing="unchanged")
            case "repeat":
                pending = self._trainer.put_step(self.step, self._given(self.state, action))
                assert pending.report().repeated
                assert pending.result() == len(self.versions)
            case "conflict":
                self._conflict(action)
            case "restart":
                self._trainer.close()
                path = self._path if action.streamed else None
                self._trainer = self._open().trainer(baseline_path=path)
            case "schema":
                self.state = dict(list(moved(self.state, action).items())[::2])
                self._put(self.state, self._given(self.state, action), new_schema=True)

    def _conflict(self, action: Action) -> None:
        other = moved(self.state, action)
        if bits_of(other) == bits_of(self.state):
            return
        pending = self._trainer.put_step(self.step, self._given(other, action))
        try:
            pending.result()
        except StepConflictError:
            return
        raise AssertionError("other bytes were taken for the same step")

    def _put(
        self,
        state: State,
        given: TensorSource | None = None,
        *,
        anchor: bool = False,
        missing: Missing = "refuse",
        new_schema: bool = False,
    ) -> None:
        self.step += 1
        pending = self._trainer.put_step(
            self.step, given or state, anchor=anchor, missing=missing, new_schema=new_schema
        )
        version = pending.result()
        self.versions.append(bits_of(state))
        assert version == len(self.versions)

    def _given(self, state: State, action: Action) -> State | Iterator[tuple[str, HostTensor]]:
        if not action.streamed:
            return state
        order = np.random.default_rng(action.seed).permutation(list(state))
        return ((str(name), _borrowed(state[name])) for name in order)


def _borrowed(host: HostTensor) -> HostTensor:
    units: NDArray[Any] = host.units.copy()
    return HostTensor(host.spec, units)


@settings(max_examples=60)
@given(SPECS, st.lists(ACTIONS, max_size=8), st.sampled_from([1, 2, 3]))
def test_every_version_is_what_was_put(
    specs: list[tuple[DType, tuple[int, ...]]], actions: list[Action], thread_count: int
) -> None:
    with TemporaryDirectory() as directory:
        model = Model(Path(directory), fresh(specs, 0), thread_count)
        for action in actions:
            model.run(action)
        model.close()
        for version, expected in enumerate(model.versions, start=1):
            assert model.lab.bits(version) == expected
