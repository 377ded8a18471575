"""The newest version as the next put needs it, from the store."""

from __future__ import annotations

from weightstore.format.records import VersionRecord
from weightstore.history.chain import CheckoutPlan, plan_checkout
from weightstore.trainer.drafts import Head
from weightstore.trainer.tools import Tools


def read_head(tools: Tools, record: VersionRecord) -> tuple[Head, CheckoutPlan]:
    """Read a version's chain, schema and digest table.

    Raises:
        CorruptError: one of its objects is missing or damaged.
    """
    plan = plan_checkout(tools.blobs, tools.log, record, tools.limits)
    manifest = plan.manifest
    head = Head(
        version=record.version,
        digest=record.digest,
        schema=plan.schema,
        schema_ref=manifest.schema_ref,
        table=plan.last_table,
        full=plan.full,
        chain_count=manifest.chain_count,
        chain_size_bytes=manifest.chain_size_bytes,
    )
    return head, plan
