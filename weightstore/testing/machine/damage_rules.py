"""Steps of a machine that damage a stored object, look at what readers get, and restore it.

What needs the object ends in a typed error, what does not gives its very bits, and nobody
gets other ones. Once the object is there again, all is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from weightstore.errors import (
    CorruptError,
    NotAStoreError,
    NotFoundError,
    RetireRefusedError,
    UpgradeRequiredError,
    WeightStoreError,
)
from weightstore.format.keys import FORMAT_KEY, HEAD_KEY, LOG_PREFIX, parse_trainer_key
from weightstore.history.log import Log
from weightstore.history.store_format import open_store
from weightstore.storage.blobs import BlobStore
from weightstore.store import WeightStore
from weightstore.store.reading import Components
from weightstore.testing.faults import RecordingBlobs
from weightstore.testing.machine.places import Damage, damaged
from weightstore.testing.machine.store_model import (
    PICKS,
    RUN,
    SEEDS,
    SETTINGS,
    StoreModel,
    bits,
    copied,
    put_quietly,
    stepped,
    taken_bits,
)
from weightstore.testing.virtual_time import SeededEntropy, VirtualClock

KEPT_COUNT_ALL = 10**6
LOG_ERRORS = (CorruptError, NotAStoreError, NotFoundError, UpgradeRequiredError)
"""What may come of a damaged log or `FORMAT`: nobody vouches for the last record."""


@dataclass(frozen=True, slots=True)
class Links:
    """What a version's checkout rests on, as it was before any damage.

    Attributes:
        chain: Versions from this one down to the nearest full form.
        schema_id: The schema of all of them.
        verified_keys: Objects that `verify` reads.
    """

    chain: frozenset[int]
    schema_id: str
    verified_keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Blow:
    """Which object of a folder is damaged, and how; any numbers will do."""

    folder: str
    pick: int
    how: Damage
    place: int


BLOWS = st.builds(
    Blow,
    # Weights more often than what describes them, and flips more often than what a size tells.
    folder=st.sampled_from(
        ["anchors", "anchors", "packs", "packs", "manifests", "log", "receipts", "FORMAT", "head"]
    ),
    pick=PICKS,
    how=st.sampled_from([*Damage, Damage.FLIPPED, Damage.FLIPPED, Damage.FLIPPED]),
    place=st.integers(0, 1 << 22),
)


class DamageRules(StoreModel):
    """Damage to any object, and what it must and must not do."""

    def __init__(self) -> None:
        super().__init__()
        self._known_links: dict[int, Links] = {}

    @precondition(lambda self: self.versions)
    @rule(blows=st.lists(BLOWS, min_size=1, max_size=6))
    def damage_objects(self, blows: list[Blow]) -> None:
        """Damage one object after the other; each is restored before the next.

        After a crash: the example is over.
        """
        self.stop()
        for blow in blows:
            self.strike(blow)
        self.check_state(self.store)

    @precondition(lambda self: self.versions)
    @rule(blow=BLOWS, seed=SEEDS, is_put=st.booleans())
    def go_on_with_damage(self, blow: Blow, seed: int, is_put: bool) -> None:  # noqa: FBT001 -- hypothesis gives it
        """Retire nothing, or put a version, while an object is damaged.

        After a crash: the example is over.
        """
        self.stop()
        self.strike(blow, lambda key: self._go_on(key, seed, is_put=is_put))
        self.check_state(self.store)
        for version in self.kept:
            self.check_read(self.store, version)

    def strike(self, blow: Blow, go_on: Callable[[str], None] | None = None) -> None:
        """Damage an object, look, go on with it perhaps, restore, look again.

        After a crash: the example is over.
        """
        below = self.place.open()
        key = _picked(below, blow.folder, blow.pick)
        other = _picked(below, blow.folder, blow.place)
        good = _data(below, key)
        bad = damaged(good, blow.how, blow.place, _data(below, other))
        if bad == good:
            return
        links = {version: self._links(version) for version in self._looked_at(key)}
        self.place.exchange(key, bad)
        try:
            self._look(key, links)
            if go_on is not None and not _is_of_log(key):
                go_on(key)
        finally:
            self.place.exchange(key, good)
        for version in links:
            self.check_read(self.store, version)

    def _looked_at(self, key: str) -> list[int]:
        """Versions near the object: its own, the one after, the first and the newest."""
        found = parse_trainer_key(key)
        own = found.version if found and found.version else self.newest
        near = {own - 1, own, own + 1, own + 2, self.kept[0], self.newest}
        return sorted(near & set(self.kept))

    def _links(self, version: int) -> Links:
        """Found out once: a version never changes."""
        if version not in self._known_links:
            self._known_links[version] = self._new_links(version)
        return self._known_links[version]

    def _new_links(self, version: int) -> Links:
        chain = set()
        details = self.store.describe(version)
        schema_id = details.schema_id
        while True:
            chain.add(details.version)
            if details.has_full_form:
                break
            assert details.base is not None
            details = self.store.describe(details.base)
        recorder = RecordingBlobs(self.place.open())
        _reader(recorder).verify(version)
        keys = frozenset(call.key for call in recorder.calls)
        return Links(frozenset(chain), schema_id, keys)

    def _look(self, key: str, links: dict[int, Links]) -> None:
        """A new reader and the one that is open get the very bits, or a typed error."""
        try:
            reader = _reader(self.place.open())
        except LOG_ERRORS:
            assert _is_of_log(key)
            return
        readers = [reader] if _is_of_log(key) else [reader, self.store]
        for store in readers:
            for version, link in links.items():
                try:
                    found = taken_bits(store, version)
                except WeightStoreError as error:
                    assert _may_fail(key, link, error), f"{key}: {error}"
                else:
                    assert found == bits(self.versions[version]), key
        for version, link in links.items():
            self._verify(reader, key, version, link)

    def _verify(self, reader: WeightStore, key: str, version: int, link: Links) -> None:
        """What a version rests on is found by `verify`; what it does not, is no matter."""
        try:
            reader.verify(version)
        except WeightStoreError as error:
            assert _may_fail(key, link, error), f"{key}: {error}"
        else:
            assert not _is_needed(key, link), f"version {version} verifies, though {key} is damaged"

    def _go_on(self, key: str, seed: int, *, is_put: bool) -> None:
        """Retire nothing, or put a version, while the object under a key is damaged.

        After a crash: as `retire` and `put_step`.
        """
        store = self.handle()
        if is_put:
            weights = stepped(self.versions[self.newest], seed)
            with store.trainer(RUN, take_over=self.is_orphaned) as session:
                self.is_orphaned = False
                step = self.last_step + 1
                version = put_quietly(session, step, copied(weights), new_schema=True)
            assert version == len(self.versions) + 1
            self.note(version, weights, RUN, step)
            # It leans on nothing that is damaged.
            self.check_read(_reader(self.place.open()), version)
        else:
            self._retire_nothing(store, key)
        store.close()

    def _retire_nothing(self, store: WeightStore, key: str) -> None:
        """On any doubt nothing is deleted: not even garbage, while a needed object is missing.

        After a crash: as `retire`.
        """
        is_lost = not any(info.key == key for info in self.place.open().list(key))
        try:
            assert not store.retire(keep_newest=KEPT_COUNT_ALL).gone
        except (RetireRefusedError, CorruptError):
            return
        # Found out before the damage, for the versions near it.
        known = [
            self._known_links[version] for version in self.kept if version in self._known_links
        ]
        assert not (is_lost and any(_is_needed(key, link) for link in known)), key


def _is_of_log(key: str) -> bool:
    return key == FORMAT_KEY or key.startswith(LOG_PREFIX)


def _is_needed(key: str, link: Links) -> bool:
    """Whether a version names an object; log, `FORMAT` and hint are read, but named by none."""
    return key in link.verified_keys and not _is_of_log(key) and key != HEAD_KEY


def _may_fail(key: str, link: Links, error: WeightStoreError) -> bool:
    """Whether a version may fail so when an object is damaged."""
    if _is_of_log(key):
        return isinstance(error, LOG_ERRORS)
    found = parse_trainer_key(key)
    if not isinstance(error, CorruptError) or found is None or found.version is None:
        return False
    if key.endswith(".schema"):
        return found.version <= max(link.chain)
    return found.version in link.chain


def _picked(below: BlobStore, folder: str, pick: int) -> str:
    """A key of a folder, or of any if the folder is empty."""
    keys = [info.key for info in below.list(folder)] or [info.key for info in below.list("")]
    return keys[pick % len(keys)]


def _data(below: BlobStore, key: str) -> bytes:
    return below.get(key, max_size_bytes=below.size(key))


def _reader(below: BlobStore) -> WeightStore:
    """A handle that makes nothing, on a store that may be damaged."""
    store_id = open_store(below, Log(below, SETTINGS.limits))
    parts = Components(below, VirtualClock(), SeededEntropy("reader"))
    return WeightStore(parts, store_id, settings=SETTINGS, cast={})
