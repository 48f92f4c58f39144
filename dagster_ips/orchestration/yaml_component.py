"""A Dagster Component for outside tables, their catalog and their Spark, declared in YAML."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Annotated, Any

import dagster as dg
from pydantic import Field

from dagster_ips.errors import DeclarationError
from dagster_ips.orchestration.declare.declarations import iceberg_asset
from dagster_ips.orchestration.platform.resources import IcebergCatalog, LocalSparkConnect
from dagster_ips.orchestration.run.io_manager import IcdcIOManager

_VARIABLE = re.compile(r"""\{\{\s*env(?:\.(?P<name>\w+)|\(\s*(?P<quote>['"])(?P<named>\w+)(?P=quote)\s*\))\s*\}\}""")


def _setting(context: dg.ResolutionContext, value: str) -> str:
    """A setting's text; or the environment variable, if it is nothing else: Dagster stores and shows texts."""
    if (found := _VARIABLE.fullmatch(value.strip())) is not None:
        return dg.EnvVar(found["name"] or found["named"])
    # As a template, "8" would become a number.
    return str(context.resolve_value(value)) if "{{" in value else value


def _settings(context: dg.ResolutionContext, values: Mapping[str, str] | str) -> dict[str, str]:
    if isinstance(values, str):  # A template of all of them.
        found: Any = context.resolve_value(values)
        return dict(found)
    return {key: _setting(context.at_path(key), value) for key, value in values.items()}


def _address(context: dg.ResolutionContext, value: str | None) -> str | None:
    return None if value is None else _setting(context, value)


_Settings = Annotated[dict[str, Any], dg.Resolver(_settings, model_field_type=dict[str, str])]
_Address = Annotated[Any, dg.Resolver(_address, model_field_type=str | None, inject_before_resolve=False)]


class CatalogModel(dg.Model, dg.Resolvable):
    """Like ``IcebergCatalog``: either ``folder``, or PyIceberg's ``properties``."""

    name: str = "lake"
    folder: str | None = None
    properties: _Settings = Field(default_factory=dict, repr=False)
    spark_properties: _Settings = Field(default_factory=dict, repr=False)
    icdc_location: str | None = None


class SparkModel(dg.Model, dg.Resolvable):
    """The Spark to use: the Spark Connect server at the address ``remote``, or else a ``LocalSparkConnect``."""

    remote: _Address = Field(default=None, repr=False)
    spark_config: _Settings = Field(default_factory=dict, repr=False)
    driver_memory: str = "2g"
    cores: int | None = None
    server_folder: str | None = None
    server_config: _Settings = Field(default_factory=dict, repr=False)
    extra_jars: list[str] = Field(default_factory=list)


class OutsideTableModel(dg.Model, dg.Resolvable):
    """A table that an outside job writes, like ``iceberg_asset``."""

    key: str
    table: str
    valid_through: str | None = None
    lateness_minutes: float = 0
    group_name: str | None = None
    description: str | None = None
    owners: list[str] = Field(default_factory=list)


class ExampleScaffolder(dg.Scaffolder):
    """Writes an example declaration with everything that is required, for the user to change."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Write the files that ``dg scaffold defs`` asks for."""
        example = {"catalog": {"folder": "/data/lake"}, "tables": [{"key": "playback", "table": "media.playback"}]}
        dg.scaffold_component(request, example)


@dg.scaffold_with(ExampleScaffolder)
class IcebergTablesComponent(dg.Component, dg.Model, dg.Resolvable):
    """Outside Iceberg tables as assets, and the IO manager for the assets that read them.

    Python assets read the tables with ``incremental()`` and use this IO manager through ``io_manager_key``. Pass all of
    the project's definitions through ``with_incremental``, once:

        @dg.definitions
        def defs():
            return ips.with_incremental(dg.load_from_defs_folder(path_within_project=Path(__file__).parent))
    """

    catalog: CatalogModel = Field(default_factory=CatalogModel)
    spark: SparkModel = Field(default_factory=SparkModel)
    tables: list[OutsideTableModel] = Field(default_factory=list)
    io_manager_key: str = "io_manager"
    default_namespace: str = "default"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002  # Dagster's signature
        """The assets, and the IO manager among the resources.

        Raises:
            DeclarationError: a declaration can't work.
        """
        manager = IcdcIOManager(
            catalog=IcebergCatalog(**dict(self.catalog)),
            spark=_spark(self.spark),
            default_namespace=self.default_namespace,
        )
        assets = [_asset(each, self.io_manager_key) for each in self.tables]
        return dg.Definitions(assets=assets, resources={self.io_manager_key: manager})


def _spark(declared: SparkModel) -> Any:  # noqa: ANN401  # dagster-pyspark's resource or this library's
    if declared.remote is None:
        return LocalSparkConnect(**{name: value for name, value in declared if name != "remote"})
    if ignored := sorted(declared.model_fields_set - {"remote", "spark_config"}):
        problem = f"its remote Spark is configured where it is started, so {', '.join(ignored)} can't apply."
        raise DeclarationError(asset="IcebergTablesComponent", problem=problem, remedy="Leave them or remote out.")
    from dagster_pyspark import LazyPySparkResource  # noqa: PLC0415  # needed only with a separate Spark

    return LazyPySparkResource(spark_config={**declared.spark_config, "spark.remote": declared.remote})


def _asset(declared: OutsideTableModel, io_manager_key: str) -> dg.AssetSpec:
    return iceberg_asset(
        dg.AssetKey.from_user_string(declared.key),
        table=declared.table,
        io_manager_key=io_manager_key,
        valid_through=declared.valid_through,
        lateness=dt.timedelta(minutes=declared.lateness_minutes),
        group_name=declared.group_name,
        description=declared.description,
        owners=declared.owners,
    )
