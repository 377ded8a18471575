"""What a look at live weights has found, tensor by tensor."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from weightstore.errors import InputRefusedError, LiveWeightsError
from weightstore.ids import Sha256, VersionId
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.placement import Placement


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """One tensor that was looked at.

    Attributes:
        name: As in the version; tied names count once, under the least.
        place_count: Places that it lives in here.
        unit_count: Units of all of them: all of the tensor, or the parts that live here.
        is_same: Whether each place has the digest that it must have.
    """

    name: str
    place_count: int
    unit_count: int
    is_same: bool


@dataclass(frozen=True, slots=True)
class LiveCheck:
    """What one receiver, so one rank, has found in its live weights.

    Attributes:
        version: The version that they were said to be.
        digest: Of that version.
        tensors: Those that were looked at, by name.
    """

    version: VersionId
    digest: Sha256
    tensors: tuple[TensorCheck, ...]

    @property
    def is_same(self) -> bool:
        """Whether all that was looked at is as in the version."""
        return not self.differing

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of tensors that are not as in the version."""
        return tuple(each.name for each in self.tensors if not each.is_same)

    def raise_if_differing(self) -> None:
        """Let nobody go on with weights that differ.

        Raises:
            LiveWeightsError: some do; names them.
        """
        names = self.differing
        if names:
            raise LiveWeightsError(
                f"{len(names)} of {len(self.tensors)} live tensors, the first {names[0]!r}, are "
                f"not those of version {self.version}",
                facts={"version": self.version, "tensors": names},
            )


def destinations_of(placement: Placement, names: Iterable[str] | None) -> list[int]:
    """The destinations of some tensors, or of all.

    Raises:
        InputRefusedError: a name is no tensor of the version, or nothing of it lives here.
    """
    if names is None:
        return list(range(len(placement.destinations)))
    found: set[int] = set()
    for name in names:
        index = placement.schema.index_of(name) if name in placement.schema else None
        places = () if index is None else placement.by_tensor.get(index, ())
        if not places:
            raise InputRefusedError(
                f"no live tensor is called {name!r}",
                do="Name tensors of the version that live here.",
                facts={"tensor": name},
            )
        found.update(number for number, _ in places)
    return sorted(found)


def live_check(
    placement: Placement, ref: VersionRef, numbers: Sequence[int], damaged: Collection[str]
) -> LiveCheck:
    """Put together what was looked at.

    Args:
        placement: Where the tensors live.
        ref: What they were said to be.
        numbers: Destinations that were looked at.
        damaged: Names of tensors that differ somewhere.
    """
    unit_counts: dict[int, list[int]] = {}
    for number in numbers:
        destination = placement.destinations[number]
        counts = unit_counts.setdefault(destination.tensor_index, [])
        counts.append(destination.extent.unit_count)
    tensors = []
    for index, counts in sorted(unit_counts.items()):
        name = placement.schema.tensors[index].name
        tensors.append(TensorCheck(name, len(counts), sum(counts), name not in damaged))
    return LiveCheck(ref.version, ref.digest, tuple(tensors))
