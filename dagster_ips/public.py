"""The public names, which ``dagster_ips`` itself gives."""

from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import ChangeRange, Predicate, RangeKind
from dagster_ips.errors import IpsError
from dagster_ips.orchestration.audits import audit
from dagster_ips.orchestration.automation import blocked, on_change, pending
from dagster_ips.orchestration.declarations import (
    append,
    combine,
    iceberg_asset,
    incremental,
    incremental_dep,
    lookup,
    merge,
    overwrite_partitions,
    replace,
    table,
    target_lag,
    trusted,
)
from dagster_ips.orchestration.definitions import with_incremental
from dagster_ips.orchestration.io_manager import IcdcIOManager
from dagster_ips.orchestration.overwrite import Overwrite
from dagster_ips.orchestration.own_sql import OwnSql, capture
from dagster_ips.orchestration.pending_sensor import pending_sensor
from dagster_ips.orchestration.proofs import proof
from dagster_ips.orchestration.resources import IcebergCatalog, LocalSparkConnect
from dagster_ips.orchestration.valid_through import valid_through
from dagster_ips.view import IcdcView, ViewStats, affected

__all__ = [
    "ChangeRange",
    "IcdcIOManager",
    "IcdcView",
    "IcebergCatalog",
    "IpsError",
    "LocalSparkConnect",
    "Mode",
    "Overwrite",
    "OwnSql",
    "Predicate",
    "RangeKind",
    "ViewStats",
    "affected",
    "append",
    "audit",
    "blocked",
    "capture",
    "combine",
    "iceberg_asset",
    "incremental",
    "incremental_dep",
    "lookup",
    "merge",
    "on_change",
    "overwrite_partitions",
    "pending",
    "pending_sensor",
    "proof",
    "replace",
    "table",
    "target_lag",
    "trusted",
    "valid_through",
    "with_incremental",
]
