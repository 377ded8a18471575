"""A step that is not above the newest one is answered by its digest; nothing is written."""

from __future__ import annotations

from weightstore.codec.digest import state_digest
from weightstore.errors import SchemaMismatchError, StepConflictError
from weightstore.format.records import VersionRecord
from weightstore.format.rules import Prefix
from weightstore.history.claim import Claim
from weightstore.history.existence import check_kept
from weightstore.history.manifests import load_manifest, load_schema, load_table
from weightstore.history.publish import committed_step
from weightstore.history.versions import find_step
from weightstore.ids import Sha256, Step
from weightstore.trainer.binding import Binding
from weightstore.trainer.cast_rules import CastRules
from weightstore.trainer.inputs import Inputs
from weightstore.trainer.put_request import PutRequest
from weightstore.trainer.tools import Tools

_NO_DIGEST = Sha256("")


def is_repeat(prefix: Prefix, step: Step) -> bool:
    """Whether a step is not above the newest one of the open claim's run."""
    claim = prefix.now.claim
    return claim is not None and claim.last_step is not None and step <= claim.last_step


def answer_repeat(
    tools: Tools,
    claim: Claim,
    casts: CastRules,
    prefix: Prefix,
    request: PutRequest,
    inputs: Inputs,
) -> tuple[VersionRecord, int]:
    """Find the version that a repeated step is, if the given tensors are its own.

    Returns:
        The version, and the units of its tensors.

    Raises:
        FencedError: a newer claim owns the store.
        StepConflictError: the step is committed with other bytes.
        StepOrderError: the step was never committed.
        VersionGoneError: its version was retired, so that its bytes cannot be compared.
    """
    found = find_step(tools.log, prefix, claim.run, request.step)
    digest, unit_count = _NO_DIGEST, 0
    if found is not None:
        check_kept(prefix.now, found.version)
        digest, unit_count = _digest(tools, casts, found, request, inputs)
    record = committed_step(tools.log, prefix, claim, request.step, digest)
    assert record is not None
    return record, unit_count


def _digest(
    tools: Tools, casts: CastRules, found: VersionRecord, request: PutRequest, inputs: Inputs
) -> tuple[Sha256, int]:
    """State digest of given tensors under a version's schema, and its unit count."""
    manifest = load_manifest(tools.blobs, found, tools.limits)
    schema = load_schema(tools.blobs, manifest, tools.limits)
    try:
        binding = Binding(schema, inputs, casts, missing=request.missing)
        scanned = tools.scan.run(binding)
    except SchemaMismatchError as error:
        raise StepConflictError(
            f"{found.run}@{found.step} is version {found.version}; these tensors differ from"
            f" its schema: {error.message}",
            do="Put a later step, or claim with rewind_to below this step.",
            facts={"run": found.run, "step": found.step, "version": found.version},
        ) from error
    if scanned.unmentioned:
        kept = load_table(tools.blobs, manifest, schema, tools.limits)
        rows = list(scanned.unmentioned)
        scanned.table[rows] = kept[rows]
    return state_digest(schema, scanned.table), schema.unit_count
