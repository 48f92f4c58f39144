"""Tidies up a table: fewer files, and no snapshots that are no longer needed. Neither changes a row."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.ranges import quoted
from dagster_ips.spark.branches import table_argument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Compacted:
    """How many data files were rewritten into how many."""

    rewritten: int
    added: int


def compact(session: SparkSession, catalog: str, table: str, *, min_input_files: int) -> Compacted:
    """Rewrite partitions with ``min_input_files`` small files or more, and every file that has deletes beside it.

    Deletes are applied because every read pays for each of them. Source: Iceberg's Spark procedure
    ``rewrite_data_files``.
    """
    options = {"min-input-files": str(min_input_files), "delete-file-threshold": "1", "remove-dangling-deletes": "true"}
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    (row,) = session.sql(
        f"CALL {quoted(catalog)}.system.rewrite_data_files(table => {table_argument(table)}, options => map({listed}))"
    ).collect()
    return Compacted(row["rewritten_data_files_count"], row["added_data_files_count"])


def expire_snapshots(session: SparkSession, catalog: str, table: str, *, before_ms: int) -> None:
    """Expire snapshots committed before ``before_ms`` that no branch or tag points to, with the files of their own.

    Source: Iceberg's Spark procedure ``expire_snapshots``.
    """
    before = dt.datetime.fromtimestamp(before_ms / 1000, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    session.sql(
        f"CALL {quoted(catalog)}.system.expire_snapshots(table => {table_argument(table)}, "
        f"older_than => TIMESTAMP '{before}Z', retain_last => 1)"
    ).collect()
