"""Pieces into packs, packs into the store, while the detection pass goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightstore.codec.piece import Piece
from weightstore.format.manifest import PackRef
from weightstore.format.pack import PackBuilder, PiecePlace
from weightstore.layout.schema import Schema
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore
from weightstore.trainer.objects import put_own


@dataclass(frozen=True, slots=True, eq=False)
class OwnPack:
    """A pack of this attempt, kept until the verdict.

    Attributes:
        ref: How the manifest names it.
        data: Its bytes.
    """

    ref: PackRef
    data: bytes


class PackSink:
    """Fills packs in the order of `add`, and uploads each one when it is full.

    Packs are kept in memory until the verdict, because the baseline moves by them; so
    uploads are never waited for before `finish`.

    Args:
        blobs: The store.
        schema: Of the version.
        next_key: Gives each pack a name that nobody else uses.
        uploader: One thread, so that packs go out in order.
        rank: Of this process in the launch.
        settings: Size of the packs, and limits.
    """

    def __init__(
        self,
        blobs: BlobStore,
        schema: Schema,
        next_key: Callable[[], str],
        *,
        uploader: Executor,
        rank: int,
        settings: Settings,
    ) -> None:
        self._blobs = blobs
        self._schema = schema
        self._next_key = next_key
        self._rank = rank
        self._settings = settings
        self._builder = PackBuilder(schema)
        self._uploads: list[Future[OwnPack]] = []
        self._uploader = uploader

    def add(
        self, place: PiecePlace, piece: Piece, member_changed_counts: NDArray[np.int64] | None
    ) -> None:
        """Take a piece.

        Raises:
            WeightStoreError: an earlier pack could not be uploaded.
        """
        self._builder.add(place, piece, member_changed_counts)
        if self._builder.size_bytes >= self._settings.pack_size_bytes:
            self._close_pack()
            self._raise_early()

    def finish(self) -> tuple[OwnPack, ...]:
        """Close the last pack and wait for all uploads.

        After a crash: packs that no record names.
        """
        if self._builder.piece_count:
            self._close_pack()
        return tuple(upload.result() for upload in self._uploads)

    def close(self) -> None:
        """Wait for the upload in flight and drop those that wait; nothing of this runs on."""
        for upload in self._uploads:
            upload.cancel()
        wait(self._uploads)

    def _close_pack(self) -> None:
        builder, self._builder = self._builder, PackBuilder(self._schema)
        self._uploads.append(self._uploader.submit(self._upload, self._next_key(), builder))

    def _upload(self, key: str, builder: PackBuilder) -> OwnPack:
        data = b"".join(builder.finish())
        ref = put_own(self._blobs, key, data, self._settings.limits)
        return OwnPack(
            PackRef(
                key=ref.key,
                size_bytes=ref.size_bytes,
                sha256=ref.sha256,
                rank=self._rank,
                piece_count=builder.piece_count,
            ),
            data,
        )

    def _raise_early(self) -> None:
        """A store that fails must not be found out after the whole pass."""
        for upload in self._uploads:
            if upload.done():
                upload.result()
