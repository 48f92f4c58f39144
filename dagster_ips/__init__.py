"""Incremental processing of Iceberg tables as Dagster assets, on Spark.

Read the change instead of the window: an upstream's new data files, from metadata alone, as an Iceberg table of their
own; each consumed exactly once.
"""

from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import ChangeRange, Predicate, RangeKind
from dagster_ips.errors import IpsError
from dagster_ips.orchestration.automation import blocked, on_change, pending
from dagster_ips.orchestration.declarations import (
    append,
    iceberg_asset,
    incremental,
    merge,
    overwrite_partitions,
    replace,
    table,
)
from dagster_ips.orchestration.definitions import with_incremental
from dagster_ips.orchestration.io_manager import IcdcIOManager
from dagster_ips.orchestration.overwrite import Overwrite
from dagster_ips.orchestration.pending_sensor import pending_sensor
from dagster_ips.orchestration.resources import IcebergCatalog, LocalSparkConnect
from dagster_ips.view import IcdcView, ViewStats

__all__ = [
    "ChangeRange",
    "IcdcIOManager",
    "IcdcView",
    "IcebergCatalog",
    "IpsError",
    "LocalSparkConnect",
    "Mode",
    "Overwrite",
    "Predicate",
    "RangeKind",
    "ViewStats",
    "append",
    "blocked",
    "iceberg_asset",
    "incremental",
    "merge",
    "on_change",
    "overwrite_partitions",
    "pending",
    "pending_sensor",
    "replace",
    "table",
    "with_incremental",
]
