"""Whether what the ranks say of their shares adds up to a version, before anybody relies on it."""

from __future__ import annotations

from weightstore.errors import RanksDisagreeError
from weightstore.format.records import VersionRecord
from weightstore.history.manifests import load_manifest, load_table
from weightstore.layout.schema import Schema
from weightstore.receiver.live_state import VersionRef
from weightstore.receiver.ranks.answers import Answers
from weightstore.receiver.ranks.messages import Answer, Tables, ref_of
from weightstore.receiver.ranks.shares import (
    Accounts,
    Lanes,
    Place,
    decode_boxes,
    plan_accounts,
)
from weightstore.receiver.version_source import VersionSource


class DigestSums:
    """Adds up the partial digests of all ranks, version by version. One thread at a time.

    Args:
        source: The store.
    """

    def __init__(self, source: VersionSource) -> None:
        self._source = source
        self._boxes: tuple[bytes, ...] = ()
        self._accounts: Accounts | None = None
        self._open: tuple[Schema, Lanes] | None = None
        self._staged: tuple[Schema, Lanes] | None = None
        self._after: list[Lanes | None] = []

    def attach(self, answers: Answers) -> None:
        """See that the ranks have every element once, if all have the newest version's tensors.

        Raises:
            SchemaMismatchError: their boxes overlap or leave something out; lists all of it.
            CorruptObjectError: what a rank says of its boxes cannot be.
        """
        schema = self._source.schema(self._source.find("latest"))
        if {answer.schema_id for answer, _ in answers} == {schema.id}:
            self._account(answers, schema)

    def check_staged(
        self, answers: Answers, record: VersionRecord, base: VersionRef | None
    ) -> None:
        """Compare what the ranks hold, and what they have staged, with the tables of both.

        Args:
            answers: What they say.
            record: Of the version that they have staged.
            base: The version that is open on every rank; None while there is none.

        Raises:
            RanksDisagreeError: sums or copies differ; names ranks and tensors.
            SchemaMismatchError, CorruptObjectError: as `attach`.
            CorruptError, VersionGoneError: of the version.
        """
        target = VersionRef.of(record)
        schema = self._source.schema(record)
        limits, blobs = self._source.settings.limits, self._source.blobs
        with self._source.gone_if_retired(record):
            table = load_table(blobs, load_manifest(blobs, record, limits), schema, limits)
        accounts = self._account(answers, schema)
        if base is not None and self._open is not None and self._open[0] == schema:
            known = [
                tables.before if one.held is not None and ref_of(one.held) == base else None
                for one, tables in answers
            ]
            accounts.check(known, self._open[1], what=f"before {target}, {base}")
        self._after = [tables.after for _, tables in answers]
        accounts.check(self._after, table, what=f"{target}, as staged")
        self._staged = (schema, table)

    def check_applied(self, answers: Answers, target: VersionRef) -> None:
        """See that every element of the staged version is on a rank that accounts for it.

        Raises:
            RanksDisagreeError: sums or copies differ, or a rank has not said what it holds.
        """
        lanes = [
            said if tables.after is None else tables.after
            for said, (_, tables) in zip(self._after, answers, strict=True)
        ]
        silent = tuple(rank for rank, each in enumerate(lanes) if each is None)
        if silent:
            raise RanksDisagreeError(
                f"ranks {silent} have not said what they hold", facts={"ranks": silent}
            )
        assert self._accounts is not None
        assert self._staged is not None
        self._accounts.check(lanes, self._staged[1], what=f"{target}, as applied")

    def open(self) -> None:
        """Take the staged version for the one that is open on every rank."""
        self._open = self._staged

    def _account(self, answers: Answers, schema: Schema) -> Accounts:
        """Who answers for what, planned again where a rank's places are others than before."""
        boxes = (schema.id.encode(), *(_box_bytes(tables) for _, tables in answers))
        if self._accounts is None or boxes != self._boxes:
            shares = tuple(_places(one, tables, schema) for one, tables in answers)
            limits = self._source.settings.limits
            self._accounts, self._boxes = plan_accounts(schema, shares, limits), boxes
        return self._accounts


def _box_bytes(tables: Tables) -> bytes:
    return b"" if tables.box_words is None else tables.box_words.tobytes()


def _places(answer: Answer, tables: Tables, schema: Schema) -> tuple[Place, ...]:
    what = f"the answer of rank {answer.rank}"
    if tables.box_words is None or answer.schema_id != schema.id:
        raise RanksDisagreeError(f"{what} is about other tensors", facts={"rank": answer.rank})
    return decode_boxes(tables.box_words, schema, what=what)
