"""From a write mode and a frame to rows on a branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dagster_ips.core.capture import Mode
from dagster_ips.core.write_mode import Append, Merge, OverwritePartitions, Replace, WriteMode
from dagster_ips.errors import FragmentOverwriteError, UnknownColumnError
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.spark.branches import Branch
from dagster_ips.spark.session import DataFrame
from dagster_ips.spark.writes.append import append_rows, first_per_key
from dagster_ips.spark.writes.merge import latest_rows, merge_rows, refuse_repeated_keys
from dagster_ips.spark.writes.overwrite import ChangedKeys, replace_partitions, replace_rows


@dataclass(frozen=True)
class PartialFrame:
    """A frame taken from a view that holds only some of the upstream's rows: its name, and the keys it was cut by."""

    name: str
    keys: tuple[str, ...]
    changed_keys: DataFrame | None


@dataclass(frozen=True)
class Result:
    """What an asset returned, and how it is to be written."""

    frame: DataFrame
    write_mode: WriteMode
    mode: Mode
    taken: Sequence[PartialFrame] = ()

    def check(self, table: str, partition_columns: Sequence[str]) -> None:
        """Refuse what can be known to be wrong before anything is written.

        Raises:
            UnknownColumnError: the frame lacks a column that the write mode names or the table is partitioned by.
            FragmentOverwriteError: part of a partition would replace all of it.
        """
        named: tuple[str, ...] = ()
        match self.write_mode:
            case Append(dedup_on):
                named = dedup_on
            case Merge(on, latest_by):
                named = (*on, latest_by) if latest_by else on
            case OverwritePartitions():
                named = tuple(partition_columns)
            case Replace():
                pass
        for column in named:
            if column not in self.frame.columns:
                raise UnknownColumnError(
                    where=f"The frame returned for {table}",
                    column=column,
                    known=tuple(self.frame.columns),
                    remedy="Its write mode needs that column. Nothing was written and nothing was consumed.",
                )
        if isinstance(self.write_mode, OverwritePartitions) and self.mode is Mode.INCREMENTAL:
            for frame in self.taken:
                if not frame.keys or not set(frame.keys) <= set(partition_columns):
                    raise FragmentOverwriteError(
                        table=table, frame=frame.name, partition_columns=tuple(partition_columns)
                    )

    def write(self, branch: Branch, target: TableMetadata) -> None:
        """Write to ``branch``; ``target`` is the table as the branch was cut. Mode ``full`` replaces every row."""
        columns = target.identity_partition_columns()
        if self.mode is Mode.FULL:
            self._write_all(branch, table_is_empty=_holds_no_rows(target))
            return
        match self.write_mode:
            case Append(dedup_on):
                append_rows(self.frame, branch, dedup_on=dedup_on, partition_columns=columns)
            case Merge(on, latest_by):
                merge_rows(self.frame, branch, on=on, latest_by=latest_by, partition_columns=columns)
            case OverwritePartitions():
                changed = [ChangedKeys(f.keys, f.changed_keys) for f in self.taken if f.changed_keys is not None]
                replace_partitions(self.frame, branch, columns=columns, changed=changed)
            case Replace():
                replace_rows(self.frame, branch, table_is_empty=_holds_no_rows(target))

    def _write_all(self, branch: Branch, *, table_is_empty: bool) -> None:
        """Replace every row, by the same rules for rows that share a key."""
        match self.write_mode:
            case Append(dedup_on) if dedup_on:
                replace_rows(first_per_key(self.frame, dedup_on), branch, table_is_empty=table_is_empty)
            case Merge(on, latest_by):
                replace_rows(latest_rows(self.frame, on, latest_by), branch, table_is_empty=table_is_empty)
                # On what was written, which is read back by its keys alone, instead of computing the frame twice.
                refuse_repeated_keys(self.frame.sparkSession.table(branch.sql_name), on, table=branch.table)
            case _:
                replace_rows(self.frame, branch, table_is_empty=table_is_empty)


def _holds_no_rows(target: TableMetadata) -> bool:
    head = target.ancestry().head
    return head is None or head.summary.get("total-records") == "0"
