"""From a request to a segment: read the pack, verify it, decode every piece."""

from __future__ import annotations

import threading
from collections import OrderedDict

from weightstore.codec.codec import PieceCodec, PieceWorker
from weightstore.errors import CorruptObjectError
from weightstore.format.pack import PackReader
from weightstore.history.manifests import fetch_object
from weightstore.history.workers import Lender, Workers
from weightstore.ids import Sha256, VersionId
from weightstore.layout.schema import Schema
from weightstore.receiver.host_agent.messages import PackRequest
from weightstore.receiver.host_agent.segment_cache import Made, Reservation
from weightstore.receiver.host_agent.segments import SegmentLayout, make_segment
from weightstore.settings import Settings
from weightstore.storage.blobs import BlobStore


class PackMaker:
    """Makes segments. Safe from several threads.

    What is asked for is named by key, size and SHA-256, which the rank has from a manifest
    that it verified; objects never change, so no log has to be read here.

    Args:
        blobs: The store.
        settings: Threads and limits.
        schema_count: Parsed schemas that are kept.
        codec: Kernels to use; None makes one.
    """

    def __init__(
        self,
        blobs: BlobStore,
        settings: Settings,
        *,
        schema_count: int,
        codec: PieceCodec | None = None,
    ) -> None:
        self._blobs = blobs
        self._settings = settings
        self._schema_count = schema_count
        self._schemas: OrderedDict[Sha256, Schema] = OrderedDict()
        self._lock = threading.Lock()
        used = codec or PieceCodec(limits=settings.limits)
        self._lender: Lender[PieceWorker] = Lender(used.worker)

    def make(self, request: PackRequest, reservation: Reservation) -> Made:
        """Read and decode what a request names.

        After a crash: nothing; segments go with the process and its ranks.

        Raises:
            ObjectMissingError: the pack or the schema is not there.
            CorruptObjectError: one of them is damaged, or a piece is.
            BusyError: there is no memory for it.
            OSError: the system has no memory for it.
        """
        limits, pack = self._settings.limits, request.pack
        schema = self._schema(request)
        reservation.take(min(pack.size_bytes, limits.pack_size_bytes))
        data = fetch_object(
            self._blobs,
            pack,
            version=VersionId(request.version),
            what="pack",
            max_size_bytes=limits.pack_size_bytes,
        )
        reader = PackReader(data, schema, limits)
        if reader.piece_count != request.piece_count:
            raise CorruptObjectError(
                f"the pack {pack.key} has {reader.piece_count} pieces, {request.piece_count} "
                "were asked for",
                facts={"key": pack.key},
            )
        layout = SegmentLayout.of(pack.size_bytes, reader)
        reservation.take(layout.size_bytes)
        with Workers(self._settings.thread_count) as workers:
            file = make_segment(data, reader, layout, self._lender, workers)
        return Made(file, layout.size_bytes, reader.piece_count, pack.size_bytes)

    def _schema(self, request: PackRequest) -> Schema:
        with self._lock:
            known = self._schemas.get(request.schema_id)
            if known is not None:
                self._schemas.move_to_end(request.schema_id)
                return known
        data = fetch_object(
            self._blobs,
            request.schema_ref,
            version=VersionId(request.version),
            what="schema",
            max_size_bytes=self._settings.limits.schema_size_bytes,
        )
        schema = Schema.from_bytes(data)
        if schema.id != request.schema_id:
            raise CorruptObjectError(
                f"the schema {request.schema_ref.key} has the id {schema.id}, not "
                f"{request.schema_id}",
                facts={"key": request.schema_ref.key},
            )
        with self._lock:
            self._schemas[request.schema_id] = schema
            while len(self._schemas) > self._schema_count:
                self._schemas.popitem(last=False)
        return schema
