"""Files that are known to be one version, every bit of them; and how that is found out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weightstore.codec.digest import state_digest
from weightstore.errors import LiveWeightsError
from weightstore.layout.schema import Schema
from weightstore.receiver.delta_work import LiveTables
from weightstore.receiver.host_files.file_layout import MappedFiles, map_files
from weightstore.receiver.host_files.mark import Mark, foreign_change
from weightstore.receiver.rolling_scan import RollingScan, damaged_tensors
from weightstore.settings import Settings


@dataclass(frozen=True, slots=True, eq=False)
class WholeFiles:
    """A folder that holds a version.

    Attributes:
        folder: The folder.
        mark: Which version, and which files.
        files: Where its tensors are.
        tables: What is known of their bits.
        rolling: Which of them are looked at next.
        thread_count: For scans.
    """

    folder: Path
    mark: Mark
    files: MappedFiles
    tables: LiveTables
    rolling: RollingScan
    thread_count: int

    @classmethod
    def prove(
        cls, folder: Path, mark: Mark, schema: Schema, settings: Settings, scan_refit_count: int
    ) -> WholeFiles:
        """Look at every byte of a folder and take it for what a mark says (P8 a).

        Raises:
            LiveWeightsError: it is not that.
            CorruptObjectError, SchemaMismatchError: a file with weights is none any more.
        """
        found = foreign_change(folder, mark)
        if found:
            raise LiveWeightsError(f"the files are not those of {mark.ref}: {found}")
        names = [each.name for each in mark.files if each.has_weights]
        files = map_files(folder, names, schema, settings.limits)
        table = files.table(settings.thread_count)
        if table is None or state_digest(schema, table) != mark.digest:
            raise LiveWeightsError(f"the bits of the files are not those of {mark.ref}")
        indices = [each.tensor_index for each in files.placement.destinations]
        tables = LiveTables(table, table[indices])
        rolling = RollingScan(files.placement, scan_refit_count)
        return cls(folder, mark, files, tables, rolling, settings.thread_count)

    def moved(self, mark: Mark, tables: LiveTables) -> WholeFiles:
        """The same files after a change."""
        return replace(self, mark=mark, tables=tables)

    def changed_by_others(self) -> str:
        """Look at every byte: what others have done, in words; or nothing."""
        return foreign_change(self.folder, self.mark) or self._damage(
            range(len(self.files.placement.destinations))
        )

    def changed_in_share(self) -> str:
        """Look at the sizes of all files and at the next share of the bits."""
        return foreign_change(self.folder, self.mark, sizes_only=True) or self._damage(
            self.rolling.take()
        )

    def _damage(self, numbers: Iterable[int]) -> str:
        names: Sequence[str] = damaged_tensors(
            self.files.placement, numbers, self.tables.lanes, self.thread_count
        )
        return f"{len(names)} tensors changed, the first {names[0]!r}" if names else ""
