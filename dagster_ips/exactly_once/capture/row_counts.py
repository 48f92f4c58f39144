"""Counts the captured rows that a run's partitions take, whatever the metadata said about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_ips.core.partition_keys import NULL
from dagster_ips.core.ranges import Predicate
from dagster_ips.errors import UnmappedRowsError
from dagster_ips.exactly_once.capture.captured_input import CapturedInput
from dagster_ips.iceberg.null_partitions import misread_in
from dagster_ips.spark.counts import count_where, values_without
from dagster_ips.spark.frames import as_spark_reads, table_frame

if TYPE_CHECKING:
    from dagster_ips.spark.session import SparkSession

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class TakenRows:
    """How many rows of the captured files the run's partitions take, and how many rows there are."""

    taken: int
    captured: int


def count_rows(captured: CapturedInput, session: SparkSession, catalog: str) -> TakenRows | None:
    """How many rows the run's partitions take; None if the files' partition values say so already.

    Raises:
        UnmappedRowsError: no partition takes some of the rows, now or later.
    """
    if captured.of_any is None:
        return None
    rows = table_frame(session, catalog, captured.capture.icdc_table)
    rows = as_spark_reads(rows, misread_in(captured.source, captured.files.changes.touched))
    taken, of_any, every = count_where(rows, [captured.rows or Predicate("TRUE"), captured.of_any])
    if of_any < every:
        columns = captured.columns
        raise UnmappedRowsError(
            consumer=captured.capture.edge.consumer,
            upstream=captured.capture.edge.upstream,
            columns=columns,
            values=values_without(rows, captured.of_any, columns, null=NULL, most=_SHOWN),
        )
    return TakenRows(taken, every)
