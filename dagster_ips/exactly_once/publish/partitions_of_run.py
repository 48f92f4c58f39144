"""The partitions that a block of own statements computes: only their rows may change."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.ancestry import Snapshot
from dagster_ips.core.change_set import DataFile
from dagster_ips.core.interval import Interval
from dagster_ips.core.partition_keys import PartitionKeys
from dagster_ips.core.ranges import Predicate
from dagster_ips.exactly_once.snapshot_rows import snapshot_rows
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.change_reader import changed_files
from dagster_ips.iceberg.file_spans import column_kinds, span
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.spark.changelog import net_rows
from dagster_ips.spark.writes.overwrite_where import is_outside, refuse_rows_outside_partitions

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession


@dataclass(frozen=True, slots=True)
class PartitionsOfRun:
    """The run's partitions by their ``keys``; ``divided`` divides the table's rows among all of them."""

    divided: PartitionKeys
    keys: Sequence[str]

    def rows(self, target: TableMetadata, keys: Collection[str]) -> Predicate:
        """A condition on ``target`` for the rows of the partitions ``keys``."""
        return self.divided.predicate(keys, column_kinds(target, self.divided.columns))

    def require_within(
        self, session: SparkSession, lake: LakeCatalog, now: TableMetadata, since: Snapshot, written: Sequence[Snapshot]
    ) -> None:
        """Fail if the snapshots ``written`` after ``since``, oldest first, changed rows of other partitions.

        Rows are read only if a file that was added or removed may hold some of other partitions, as its metadata says.

        Raises:
            OutsidePartitionsError: a row was added or removed there.
        """
        if not written:
            return
        files = changed_files(lake.storage, now, Interval(since, tuple(written)), head=written[-1]).changes
        if all(self._hold(file, now) for file in files.touched):
            return
        own = self.rows(now, self.keys)
        before, after = (
            snapshot_rows(session, lake.name, now, each, storage=lake.storage).where(is_outside(own))
            for each in (since, written[-1])
        )
        changed = net_rows(before, after).rows
        if not changed.isEmpty():
            refuse_rows_outside_partitions(changed, own, table=now.table)

    def _hold(self, file: DataFile, table: TableMetadata) -> bool:
        """Whether every row of the file is known to be of one of the run's partitions."""
        found = self.divided.of_file([span(file, table, column) for column in self.divided.columns])
        return found.keys is not None and not found.unmapped and found.keys <= frozenset(self.keys)
