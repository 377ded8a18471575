"""Every problem of every version is told, and which versions read all the same."""

from __future__ import annotations

from weightstore.format.records import VersionRecord
from weightstore.history.presence import Presence, look_up_objects, readable
from weightstore.history.references import References
from weightstore.ids import VersionId
from weightstore.storage.blobs import BlobInfo
from weightstore.testing.real_versions import ThreeVersions


def found_in(chain: ThreeVersions) -> list[Presence]:
    store = chain.versions.store
    references = References(chain.blobs, store.log, store.settings.limits)
    return list(look_up_objects(chain.blobs, chain.versions.records, references))


def keys_of(chain: ThreeVersions, record: VersionRecord) -> list[str]:
    store = chain.versions.store
    references = References(chain.blobs, store.log, store.settings.limits)
    return [each.key for each in references.objects_of(record)]


def test_whole_versions_have_no_problems(chain: ThreeVersions) -> None:
    found = found_in(chain)
    assert [each.version for each in found] == [1, 2, 3]
    assert [each.needs for each in found] == [None, 1, 2]
    assert all(each.problems == () for each in found)
    assert all(each.object_count >= 3 and each.size_bytes > 0 for each in found)
    assert readable(found, ()) == (1, 2, 3)


class Renamed(References):
    """Names the same objects by other keys, as if another layout of keys had come."""

    def objects_of(self, record: VersionRecord) -> tuple[BlobInfo, ...]:
        return tuple(
            BlobInfo(f"at/{each.key}", each.size_bytes) for each in super().objects_of(record)
        )


def test_whether_a_version_needs_its_base_is_what_its_manifest_says(chain: ThreeVersions) -> None:
    record = chain.versions.put(chain.weights[0], full=True)
    assert record.base is not None
    store = chain.versions.store
    references = Renamed(chain.blobs, store.log, store.settings.limits)
    found = list(look_up_objects(chain.blobs, chain.versions.records, references))
    assert [each.needs for each in found] == [None, 1, 2, None]


def test_all_that_is_missing_or_of_another_size_is_told(chain: ThreeVersions) -> None:
    first, second, *_ = [
        key for key in keys_of(chain, chain.versions.records[1]) if key.startswith("packs/")
    ]
    del chain.blobs._blobs[first]
    chain.blobs._blobs[second] += b"x"
    found = found_in(chain)
    assert found[0].problems == found[2].problems == ()
    missing, longer = sorted(found[1].problems, key=lambda text: "bytes" in text)
    assert missing == f"{first} is missing"
    assert longer.startswith(f"{second} has ")
    assert readable(found, [VersionId(2)]) == (1,)


def test_a_manifest_that_cannot_be_read_is_a_problem(chain: ThreeVersions) -> None:
    key = keys_of(chain, chain.versions.records[2])[0]
    chain.blobs._blobs[key] = b"{}"
    found = found_in(chain)
    assert len(found[2].problems) == 1
    assert found[2].object_count == 0
    assert readable(found, [VersionId(3)]) == (1, 2)


def test_a_version_reads_if_all_below_it_up_to_a_full_form_does() -> None:
    def of(version: int, needs: int | None) -> Presence:
        below = None if needs is None else VersionId(needs)
        return Presence(VersionId(version), below, 1, 1, ())

    found = [of(1, None), of(2, 1), of(3, 2), of(4, None), of(5, 4), of(7, 6)]
    assert readable(found, [VersionId(2)]) == (1, 4, 5)
    assert readable(found, [VersionId(1), VersionId(4)]) == ()
