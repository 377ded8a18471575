"""One try at one version: the objects it writes before its record, and their names.

The order is fixed: the `open` receipt, packs and the full form, digest table and schema,
the manifest, and last the record. Until the record is in the log nothing names them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from weightstore.format.canonical import encode_model
from weightstore.format.digest_table import encode_table
from weightstore.format.keys import (
    digest_table_key,
    manifest_key,
    pack_key,
    receipt_key,
    schema_key,
    trainer_anchor_id,
)
from weightstore.format.manifest import Manifest
from weightstore.format.objects import ObjectRef
from weightstore.format.receipts import OpenReceipt, encode_receipt
from weightstore.history.claim import Claim
from weightstore.ids import Attempt as AttemptNumber
from weightstore.ids import CommitId, Step, VersionId
from weightstore.layout.schema import Schema
from weightstore.storage.machine import host_name, process_id
from weightstore.trainer.objects import put_own
from weightstore.trainer.packing import PackSink
from weightstore.trainer.tools import Tools

_MS_PER_S = 1000


class Attempt:
    """Names and writes the objects of one attempt.

    Attributes:
        version: Which it would make.
        number: Which try at it, from 1.
        step: The trainer's count.
        commit_id: Of its record.

    Args:
        tools: The store and its log.
        claim: Under which it is made.
        rank: Of this process in the launch.
    """

    def __init__(
        self,
        tools: Tools,
        claim: Claim,
        *,
        version: VersionId,
        number: AttemptNumber,
        step: Step,
        rank: int = 0,
    ) -> None:
        self.version = version
        self.number = number
        self.step = step
        self.commit_id: CommitId = tools.writer.new_commit_id()
        self._tools = tools
        self._claim = claim
        self._rank = rank

    @property
    def anchor_id(self) -> str:
        """Id of the full form, if one is written."""
        return trainer_anchor_id(self._claim.run, self._claim.epoch, self.version, self.number)

    def open(self) -> None:
        """Put the `open` receipt.

        After a crash: the receipt is there or not; it proves nothing to readers.
        """
        claim, clock = self._claim, self._tools.clock
        timeout_ms = int(self._tools.settings.commit_timeout_s * _MS_PER_S)
        receipt = OpenReceipt(
            run=claim.run,
            epoch=claim.epoch,
            session=claim.session,
            version=self.version,
            attempt=self.number,
            commit_id=self.commit_id,
            deadline_unix_ms=clock.unix_ms() + timeout_ms,
            host=host_name(),
            process=process_id(),
        )
        key = receipt_key(
            claim.run, claim.epoch, claim.session, self.version, self.number, rank=None
        )
        self._put(key, encode_receipt(receipt), durable=False)

    def pack_sink(self, schema: Schema) -> PackSink:
        """Takes the pieces of this attempt."""
        return PackSink(
            self._tools.blobs,
            schema,
            self._next_pack_key,
            uploader=self._tools.uploader,
            rank=self._rank,
            settings=self._tools.settings,
        )

    def put_table(self, table: NDArray[np.uint64], schema: Schema) -> ObjectRef:
        """Store the digest table, shape (tensors, 2), uint64.

        After a crash: no table, or the whole one; nothing names it.
        """
        key = digest_table_key(self._claim.run, self._claim.epoch, self.version, self.commit_id)
        return self._put(key, encode_table(table, schema))

    def put_schema(self, schema: Schema) -> ObjectRef:
        """Store a new schema.

        After a crash: no schema, or the whole one; nothing names it.
        """
        key = schema_key(self._claim.run, self._claim.epoch, self.version, self.commit_id)
        return self._put(key, schema.to_bytes())

    def put_manifest(self, manifest: Manifest) -> ObjectRef:
        """Store the manifest: after all that it names, before the record that names it.

        After a crash: no manifest, or the whole one; nothing names it.
        """
        key = manifest_key(self._claim.run, self._claim.epoch, self.version, self.commit_id)
        return self._put(key, encode_model(manifest))

    def _put(self, key: str, data: Buffer, *, durable: bool = True) -> ObjectRef:
        return put_own(self._tools.blobs, key, data, self._tools.limits, durable=durable)

    def _next_pack_key(self) -> str:
        return pack_key(
            self._claim.run,
            self._claim.epoch,
            self.version,
            self.number,
            self._rank,
            self._tools.entropy.hex128(),
        )
