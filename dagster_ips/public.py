"""The public names, which ``dagster_ips`` itself gives."""

from dagster_ips.core.capture import Mode
from dagster_ips.core.ranges import ChangeRange, Predicate, RangeKind
from dagster_ips.errors import IpsError
from dagster_ips.orchestration.automate.conditions import blocked, on_change, pending
from dagster_ips.orchestration.automate.pending_sensor import pending_sensor
from dagster_ips.orchestration.automate.valid_through_condition import valid_through
from dagster_ips.orchestration.declare.dbt_models import DbtModels, dbt_models
from dagster_ips.orchestration.declare.declarations import (
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
from dagster_ips.orchestration.declare.overwrite_result import Overwrite
from dagster_ips.orchestration.declare.sql_assets import sql_asset
from dagster_ips.orchestration.definitions import with_incremental
from dagster_ips.orchestration.platform.resources import IcebergCatalog, LocalSparkConnect
from dagster_ips.orchestration.prove.proofs import proof
from dagster_ips.orchestration.run.audits import audit
from dagster_ips.orchestration.run.io_manager import IcdcIOManager
from dagster_ips.orchestration.run.own_sql import OwnSql, capture
from dagster_ips.orchestration.yaml_component import IcebergTablesComponent
from dagster_ips.view import IcdcView, ViewStats, affected

__all__ = [
    "ChangeRange",
    "DbtModels",
    "IcdcIOManager",
    "IcdcView",
    "IcebergCatalog",
    "IcebergTablesComponent",
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
    "dbt_models",
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
    "sql_asset",
    "table",
    "target_lag",
    "trusted",
    "valid_through",
    "with_incremental",
]
