"""Where a receiver's packs come from, and who decodes their pieces: itself, or a host agent."""

from __future__ import annotations

from typing import Protocol

from weightstore.format.manifest import Manifest, PackRef
from weightstore.history.pack_jobs import PackJob, load_pack
from weightstore.layout.schema import Schema
from weightstore.settings import Limits
from weightstore.storage.blobs import BlobStore


class WrongAnswerError(Exception):
    """Somebody else decoded a pack wrongly: everything of his is given up, and done again."""


class PieceFeed(Protocol):
    """Gives verified packs. Loading is safe from several threads; the rest is not.

    A pack is verified by its user's own manifest wherever it came from. Pieces that somebody
    else decoded come with it; nothing of them is known but what can be checked here.
    """

    def load(self, schema: Schema, manifest: Manifest, pack: PackRef, /) -> PackJob:
        """One pack, whole and verified.

        Raises:
            ObjectMissingError: it is not there.
            CorruptObjectError: it is damaged.
            WrongAnswerError: somebody else gave wrong bytes.
        """
        ...

    def release(self, job: PackJob, /) -> None:
        """Say that the pieces of a pack will not be looked at any more."""
        ...

    def release_all(self) -> None:
        """Say it of every pack that was loaded, also of those that nobody took."""
        ...

    def distrust(self) -> None:
        """Take nothing any more from whoever gave wrong answers."""
        ...

    def take_note(self) -> str:
        """What went otherwise than it should since the last note; empty if nothing did."""
        ...


class OwnFeed:
    """Packs straight from the store; whoever takes them decodes their pieces.

    Args:
        blobs: The store.
        limits: Hard bounds.
    """

    def __init__(self, blobs: BlobStore, limits: Limits) -> None:
        self._blobs = blobs
        self._limits = limits

    def load(self, schema: Schema, manifest: Manifest, pack: PackRef, /) -> PackJob:
        """One pack of the store."""
        return load_pack(self._blobs, schema, manifest, pack, self._limits)

    def release(self, job: PackJob, /) -> None:
        """Nothing is held."""

    def release_all(self) -> None:
        """Nothing is held."""

    def distrust(self) -> None:
        """There is nobody else."""

    def take_note(self) -> str:
        """Nothing ever."""
        return ""
