"""Creates the table that an asset writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_ips.core.table_name import namespace_of
from dagster_ips.exactly_once.effects import Effect, effect
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.iceberg.metadata import TableMetadata
from dagster_ips.spark.targets import TableDescription, create_table, order_table

if TYPE_CHECKING:
    from dagster_ips.spark.session import DataFrame, SparkSession


def create_target(
    lake: LakeCatalog, session: SparkSession, table: str, like: DataFrame, description: TableDescription
) -> None:
    """Create ``table``, and its namespace, for rows like ``like``; it stays empty.

    Raises:
        LayoutError: as ``create_table``.
    """
    with effect(Effect.CREATE_TARGET):
        lake.create_namespace(namespace_of(table))
        create_table(session, lake.name, table, like, description)


def order_new_target(
    session: SparkSession, catalog: str, table: str, existing: TableMetadata | None, description: TableDescription
) -> None:
    """Set a new table's sort order; ``existing`` is the table before the run, None if the run created it.

    A table without a snapshot counts as new: a run that is killed right after creating it leaves it without an order.
    """
    if description.sort_by and (existing is None or existing.head_snapshot_id() is None):
        with effect(Effect.ORDER_TARGET):
            order_table(session, catalog, table, description.sort_by)
