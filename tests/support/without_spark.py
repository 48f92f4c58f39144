"""A lake for what needs no Spark: sensors, checks, conditions and plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster_ips as ips
from dagster_ips.iceberg.catalog import LakeCatalog
from tests.support.lake import BY_DATE, SCHEMA, Lake


class Tables(Lake):
    """A lake without Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = LakeCatalog.embedded("lake", folder)

    def create(self, name: str) -> None:
        self.catalog.create_namespace("media")
        self.catalog.client.create_table(f"media.{name}", SCHEMA, partition_spec=BY_DATE)


def manager_of(folder: Path | str, **settings: Any) -> ips.IcdcIOManager:  # noqa: ANN401  # of several types
    """The IO manager of a lake whose Spark is never asked for."""
    catalog, spark = ips.IcebergCatalog(folder=str(folder)), ips.LocalSparkConnect(server_folder="unused")
    return ips.IcdcIOManager(**{"catalog": catalog, "spark": spark} | settings)
