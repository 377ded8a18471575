"""Whether everything that versions name is there: every problem, not only the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weightstore.errors import BlobNotFoundError, WeightStoreError
from weightstore.format.records import VersionRecord
from weightstore.history.references import References
from weightstore.ids import VersionId
from weightstore.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Presence:
    """What was found of one version.

    Attributes:
        version: The version.
        needs: The version that its delta is applied to; None if it has a full form.
        object_count: Objects that it names itself; 0 if its manifest cannot be read.
        size_bytes: Their sizes, as committed.
        problems: What is missing, of a wrong size or unreadable; for people.
    """

    version: VersionId
    needs: VersionId | None
    object_count: int
    size_bytes: int
    problems: tuple[str, ...]


def look_up_objects(
    blobs: BlobStore, records: Iterable[VersionRecord], references: References
) -> Iterator[Presence]:
    """Read each version's manifest and look up every object that it names, by size.

    Args:
        blobs: The store.
        records: Of kept versions.
        references: Knows what a version names.
    """
    for record in records:
        base = record.base.version if record.base else None
        try:
            objects = references.objects_of(record)
            is_full = references.is_full(record)
        except WeightStoreError as error:
            yield Presence(record.version, base, 0, 0, (error.message,))
            continue
        yield Presence(
            version=record.version,
            needs=None if is_full else base,
            object_count=len(objects),
            size_bytes=sum(each.size_bytes for each in objects),
            problems=tuple(
                problem
                for each in objects
                if (problem := _problem(blobs, each.key, each.size_bytes)) is not None
            ),
        )


def readable(found: Iterable[Presence], damaged: Iterable[VersionId]) -> tuple[VersionId, ...]:
    """The versions that can be checked out, rising.

    Args:
        found: Of all kept versions, rising.
        damaged: Versions whose own objects are not as they should be.
    """
    lost = set(damaged)
    whole: list[VersionId] = []
    seen: set[VersionId] = set()
    for each in found:
        is_lost = each.version in lost or (
            each.needs is not None and (each.needs in lost or each.needs not in seen)
        )
        seen.add(each.version)
        if is_lost:
            lost.add(each.version)
        else:
            whole.append(each.version)
    return tuple(whole)


def _problem(blobs: BlobStore, key: str, size_bytes: int) -> str | None:
    try:
        found = blobs.size(key)
    except BlobNotFoundError:
        return f"{key} is missing"
    except WeightStoreError as error:
        return error.message
    return None if found == size_bytes else f"{key} has {found} bytes, not {size_bytes}"
