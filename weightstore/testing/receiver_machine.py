"""A receiver against a dictionary: any order of steps, cuts, rollbacks and damage.

The model is what the arrays must hold, or that they may hold anything because the receiver
does not serve. Whatever it serves must be exactly a committed version.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weightstore.errors import InputRefusedError, LiveWeightsError, NotReadyError, WrongBaseError
from weightstore.layout.dtypes import DType
from weightstore.layout.schema import Alias, Schema
from weightstore.layout.tensors import TensorSpec
from weightstore.receiver.live_state import Dirty, Empty, Ready, Whole
from weightstore.receiver.receiver_settings import ReceiverSettings
from weightstore.testing.real_versions import next_weights, random_weights
from weightstore.testing.receiver_lab import CUT_WAYS, Cut, ReceiverLab

_SCHEMA = Schema.build(
    [
        TensorSpec("bias", DType.F32, (7,)),
        TensorSpec("norm", DType.BF16, (40,)),
        TensorSpec("scalar", DType.F64, ()),
        TensorSpec("w", DType.BF16, (280, 240)),
    ],
    aliases=[Alias("w.tied", "w")],
)
_VERSION_COUNT_MAX = 12
_ROOMY_BYTES = 1_000_000
"""A pool that every small step fits."""
_SMALL_SHARE = 0.001
_LAUNCHES_SOMETIMES = st.none() | st.integers(0, 8)
_WAYS = st.sampled_from(CUT_WAYS)


class ReceiverMachine(RuleBasedStateMachine):
    """One receiver of host arrays and the store below it."""

    def __init__(self) -> None:
        super().__init__()
        self.lab = ReceiverLab(_SCHEMA, piece_unit_count=30_000)
        self.lab.put(random_weights(_SCHEMA, 0))
        self.is_damaged = False

    @initialize(pool_size_bytes=st.sampled_from([64, 3_000, _ROOMY_BYTES]))
    def attach(self, pool_size_bytes: int) -> None:
        """Some receivers stream every change, some none."""
        settings = ReceiverSettings(
            pool_size_bytes=pool_size_bytes,
            launch_size_bytes=1,
            block_timeout_s=1.0,
            scan_refit_count=4,
        )
        self.receiver, self.arrays = self.lab.host_receiver(settings)

    @rule(
        seed=st.integers(0, 1_000),
        share=st.sampled_from([0.0, 0.0001, 0.01, 0.3]),
        full=st.booleans(),
    )
    @precondition(lambda self: len(self.lab.weights) < _VERSION_COUNT_MAX)
    def put(self, seed: int, share: float, full: bool) -> None:  # noqa: FBT001 -- drawn
        """The trainer commits a step."""
        before = self.lab.weights[max(self.lab.weights)]
        after = next_weights(before, seed, share) if share else before
        self.lab.put(after, full=full)

    @rule(data=st.data(), left=_LAUNCHES_SOMETIMES, way=_WAYS)
    def refit(self, data: st.DataObject, left: int | None, way: str) -> None:
        """To any version, cut at some write or not."""
        version = data.draw(st.sampled_from(sorted(self.lab.weights)))
        if self._runs(lambda: self.receiver.refit(version), left, way):
            assert self.receiver.version == version

    @rule(data=st.data())
    def stage(self, data: st.DataObject) -> None:
        """Writes nothing."""
        version = data.draw(st.sampled_from(sorted(self.lab.weights)))
        before = {name: units.tobytes() for name, units in self.arrays.items()}
        self._runs(lambda: self.receiver.stage(version), None, "before")
        assert before == {name: units.tobytes() for name, units in self.arrays.items()}

    @rule(left=_LAUNCHES_SOMETIMES, way=_WAYS)
    @precondition(lambda self: isinstance(self.receiver.staged, Ready))
    def apply(self, left: int | None, way: str) -> None:
        """Whatever is staged, or was cut."""
        staged = self.receiver.staged
        assert isinstance(staged, Ready)
        if self._runs(self.receiver.apply, left, way):
            assert self.receiver.live == Whole(staged.target)

    @rule(left=_LAUNCHES_SOMETIMES, way=_WAYS)
    def recover(self, left: int | None, way: str) -> None:
        """Leaves a whole version, or is cut."""
        if self._runs(self.receiver.recover, left, way):
            assert isinstance(self.receiver.live, Whole)

    @rule(left=_LAUNCHES_SOMETIMES, way=_WAYS)
    def rollback(self, left: int | None, way: str) -> None:
        """To the version before, where its bits are kept."""
        self._runs(self.receiver.rollback, left, way)

    @rule(seed=st.integers(0, 1_000), left=_LAUNCHES_SOMETIMES, way=_WAYS)
    @precondition(lambda self: self.receiver.settings.pool_size_bytes == _ROOMY_BYTES)
    @precondition(lambda self: len(self.lab.weights) < _VERSION_COUNT_MAX)
    def step_and_roll_back(self, seed: int, left: int | None, way: str) -> None:
        """The old bits of a small step are kept, whether it went through or was cut."""
        base = max(self.lab.weights)
        if not self._runs(lambda: self.receiver.refit(base), None, way):
            return
        target = self.lab.put(next_weights(self.lab.weights[base], seed, _SMALL_SHARE))
        self._runs(lambda: self.receiver.refit(target), left, way)
        try:
            report = self.receiver.rollback()
        except (InputRefusedError, LiveWeightsError):
            assert self.is_damaged
        else:
            assert (report.base, report.target) == (target, base)
            assert self.receiver.version == base

    @rule()
    def invalidate(self) -> None:
        """Somebody says that the weights are others now."""
        was_empty = isinstance(self.receiver.live, Empty)
        self.receiver.invalidate()
        assert isinstance(self.receiver.live, Empty if was_empty else Dirty)

    @rule(data=st.data())
    def corrupt(self, data: st.DataObject) -> None:
        """Somebody changes a bit and says nothing."""
        name = data.draw(st.sampled_from(sorted(self.arrays)))
        units = self.arrays[name]
        units[data.draw(st.integers(0, units.size - 1))] ^= 1
        self.is_damaged = True

    @rule()
    @precondition(lambda self: isinstance(self.receiver.live, Whole))
    def verify(self) -> None:
        """Finds damage exactly where there is some."""
        version = self.receiver.version
        assert version is not None
        is_right = self.lab.is_at(self.arrays, version)
        try:
            self.receiver.verify()
        except LiveWeightsError:
            assert not is_right
            assert isinstance(self.receiver.live, Dirty)
        else:
            assert is_right
            self.is_damaged = False

    @rule()
    @precondition(lambda self: isinstance(self.receiver.live, Whole))
    def scan_a_round(self) -> None:
        """As many scans as a round has find what a full scan finds."""
        version = self.receiver.version
        assert version is not None
        is_right = self.lab.is_at(self.arrays, version)
        try:
            for _ in range(self.receiver.settings.scan_refit_count):
                self.receiver.scan()
        except LiveWeightsError:
            assert not is_right
        else:
            assert is_right
            self.is_damaged = False

    @invariant()
    def what_is_served_is_a_version(self) -> None:
        """Unless somebody changed a bit that nobody has looked at yet."""
        try:
            with self.receiver.serving() as version:
                is_right = self.lab.is_at(self.arrays, version)
        except NotReadyError:
            assert not isinstance(self.receiver.live, Whole)
            assert self.receiver.version is None
            return
        assert self.receiver.version == version
        assert is_right or self.is_damaged
        if is_right:
            self.is_damaged = False

    def _runs(self, action: Callable[[], object], left: int | None, way: str) -> bool:
        """Do something that may be cut; whether it went through."""
        self.lab.fuse.set(left, way)
        try:
            action()
        except Cut:
            assert isinstance(self.receiver.live, Dirty)
            return False
        except (LiveWeightsError, WrongBaseError):
            # Only damage that was done behind the receiver's back is a reason.
            assert self.is_damaged
            assert isinstance(self.receiver.live, Dirty)
            return False
        except InputRefusedError:
            # Only of the version before the bits may be gone.
            assert action == self.receiver.rollback
            return False
        finally:
            self.lab.fuse.set(None)
        return True
