"""Definitions of assets on a test's lake, as a user declares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

import dagster_ips as ips
from tests.support.lake_catalog import catalog_resource
from tests.support.spark_resource import spark_resource


def manager_on(lake_folder: Path, spark_folder: Path, **settings: Any) -> ips.IcdcIOManager:  # noqa: ANN401  # its own
    """The IO manager of the lake's tables."""
    return ips.IcdcIOManager(catalog=catalog_resource(lake_folder), spark=spark_resource(spark_folder), **settings)


def definitions_on(lake_folder: Path, spark_folder: Path, *assets: Any, **more: Any) -> dg.Definitions:  # noqa: ANN401  # Dagster's
    """Definitions of ``assets`` whose tables are in the lake; ``more`` are other arguments of ``Definitions``."""
    resources = {"io_manager": manager_on(lake_folder, spark_folder)}
    return ips.with_incremental(dg.Definitions(assets=assets, resources=resources, **more))
