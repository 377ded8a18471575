"""Steps of a machine that name versions, let them go, and read them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from weightstore.errors import (
    RefusedError,
    TagNotFoundError,
    VersionGoneError,
    VersionNotFoundError,
)
from weightstore.store import WeightStore
from weightstore.testing.machine.store_model import PICKS, StoreModel

TAGS = st.sampled_from(["best", "eval"])
OLD_HANDLE_COUNT_MAX = 3


class KeepRules(StoreModel):
    """Tags, retirements, and readers that stay open."""

    def __init__(self) -> None:
        super().__init__()
        self.old_handles: list[tuple[str, WeightStore]] = []

    @precondition(lambda self: self.versions)
    @rule(name=TAGS, pick=PICKS)
    def tag(self, name: str, pick: int) -> None:
        """Name a version that is there.

        After a crash: as `WeightStore.tag`.
        """
        version = 1 + pick % self.newest
        if version in self.gone:
            with pytest.raises(VersionGoneError):
                self.store.tag(name, version)
        else:
            assert self.store.tag(name, version).version == version
            self.tags[name] = version

    @rule(name=TAGS)
    def untag(self, name: str) -> None:
        """Remove a name.

        After a crash: as `WeightStore.untag`.
        """
        if name in self.tags:
            self.store.untag(name)
            del self.tags[name]
        else:
            with pytest.raises(TagNotFoundError):
                self.store.untag(name)

    @precondition(lambda self: self.versions)
    @rule(newest_count=st.integers(1, 3), picks=st.lists(PICKS, max_size=2))
    def retire(self, newest_count: int, picks: list[int]) -> None:
        """Let go of what nobody needs; what a dry run says is what happens.

        After a crash: as `WeightStore.retire`.
        """
        wanted = self.wanted(picks)
        planned = self.store.retire(
            keep_newest=newest_count, keep_versions=sorted(wanted), dry_run=True
        )
        must = self.must_stay(newest_count, wanted)
        done = self.store.retire(keep_newest=newest_count, keep_versions=sorted(wanted))
        assert done == planned
        self.take_gone(done.gone, must)

    def wanted(self, picks: Sequence[int]) -> set[int]:
        """Kept versions that a user asks to keep."""
        return {1 + pick % self.newest for pick in picks} - self.gone

    def must_stay(self, newest_count: int, wanted: set[int]) -> set[int]:
        """What no retirement may let go."""
        newest = self.kept[len(self.kept) - newest_count :] if newest_count else []
        return {self.newest, *wanted, *self.tags.values(), *newest}

    def take_gone(self, gone: Sequence[int], must: set[int]) -> None:
        """Versions are gone: none that must stay, and none a second time."""
        assert not must & set(gone)
        assert not self.gone & set(gone)
        self.gone |= set(gone)

    @precondition(lambda self: self.versions)
    @rule(pick=PICKS)
    def check_out(self, pick: int) -> None:
        """A version's bits, or that it is gone."""
        self._check_out(self.store, 1 + pick % self.newest)

    def _check_out(self, store: WeightStore, version: int) -> None:
        if version in self.gone:
            for call in (store.checkout, store.verify, store.describe):
                with pytest.raises(VersionGoneError):
                    call(version)
        else:
            self.check_read(store, version)

    @rule()
    def keep_a_handle(self) -> None:
        """A reader that stays open while others write, retire and die."""
        if len(self.old_handles) == OLD_HANDLE_COUNT_MAX:
            self.old_handles.pop(0)[1].close()
        self.old_handles.append((f"reader {self._opened_count}", self.handle()))

    @precondition(lambda self: self.versions and self.old_handles)
    @rule(which=PICKS, pick=PICKS)
    def read_by_an_old_handle(self, which: int, pick: int) -> None:
        """An old handle sees the newest version, and what is gone."""
        name, store = self.old_handles[which % len(self.old_handles)]
        self.check_newest(store, name)
        self._check_out(store, 1 + pick % self.newest)

    @precondition(lambda self: self.versions)
    @rule(scan=st.booleans())
    def check_everything(self, scan: bool) -> None:  # noqa: FBT001 -- hypothesis gives it
        """All that can be listed, verified and selected."""
        self.check_state(self.store)
        assert self.store.version().version == self.newest
        for version in self.kept:
            self.store.verify(version, scan=scan)
        run, step = self.places[self.newest]
        assert self.store.version(f"{run}@{step}").version == self.newest

    @rule(version=st.sampled_from([0, -3, 10_000]), name=st.sampled_from(["a b", "", "\u00e9"]))
    def ask_for_nothing(self, version: int, name: str) -> None:
        """What was never there."""
        with pytest.raises(VersionNotFoundError):
            self.store.checkout(version)
        with pytest.raises((RefusedError, VersionNotFoundError)):
            self.store.tag(name)

    def close_old_handles(self) -> None:
        """Nobody reads any more."""
        for _, store in self.old_handles:
            store.close()
        self.old_handles = []

    def teardown(self) -> None:
        """The readers end first."""
        self.close_old_handles()
        super().teardown()
