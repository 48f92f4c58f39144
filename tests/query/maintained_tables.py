"""Tables declared by queries in a lake, computed through Dagster and compared with the queries over the sources."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

import dagster_ips as ips
from dagster_ips.local_spark.connect_server import ensure_connect_server, stop_connect_server
from dagster_ips.orchestration.declare.maintained_rows import REFRESH
from tests.histories.composed.fuzz import new_assets
from tests.support.lake import Lake
from tests.support.lake_catalog import catalog_resource
from tests.support.quick_spark import ensure_quick_server
from tests.support.spark_resource import spark_resource

FAILED = "failed"
_FEW_ROWS = {"spark.sql.shuffle.partitions": "1"}


@dataclass
class MaintainedTables:
    """The tables of the queries ``texts``, by name, in the namespace ``media`` of ``lake``, as are their sources."""

    lake: Lake
    instance: dg.DagsterInstance
    texts: Mapping[str, str]
    sources: Collection[str]
    refresh: str = "incremental"
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Further arguments of the declarations, by query."""
    spark_config: Mapping[str, str] = field(default_factory=lambda: _FEW_ROWS)
    driver_memory: str = "2g"
    figures: Counter[str] = field(default_factory=Counter)
    """The number of pairs of a query and a change, by the strategy that updated the table."""
    wrong: list[str] = field(default_factory=list)

    def definitions(self) -> dg.Definitions:
        """The definitions, as a user writes them."""
        manager = ips.IcdcIOManager(
            catalog=catalog_resource(self.lake.folder),
            spark=spark_resource(self.lake.spark_folder, self.spark_config, driver_memory=self.driver_memory),
            icdc_keep_last=1,
        )
        made = [
            ips.sql_asset(name, text, table=f"media.{name}", refresh=self.refresh, **self.options.get(name, {}))
            for name, text in self.texts.items()
        ]
        sources = [ips.iceberg_asset(name, table=f"media.{name}") for name in self.sources]
        return ips.with_incremental(dg.Definitions(assets=[*sources, *made], resources={"io_manager": manager}))

    def follow(self, names: Collection[str], what_changed: object) -> None:
        """Materialize the tables ``names``, and record those that differ from their queries afterwards."""
        job = self.definitions().resolve_implicit_global_asset_job_def()
        selection = [dg.AssetKey(name) for name in names]
        result = job.execute_in_process(instance=self.instance, asset_selection=selection, raise_on_error=False)
        for source in self.sources:
            self.lake.sql(f"SELECT * FROM lake.media.{source}").createOrReplaceTempView(source)
        for name in names:
            strategy, problem = strategy_of(result, name), None
            if strategy == FAILED:
                problem = _error(result, name)
            else:
                found, expected = self._rows(name)
                lacks, has = ((a - b).most_common(3) for a, b in ((expected, found), (found, expected)))
                problem = f"lacks {lacks}, has {has}" if lacks or has else None
            self.figures[strategy] += 1
            if problem:
                self.wrong.append(f"{name} by {strategy} after {what_changed}: {problem}\n  {self.texts[name]}")
                logging.getLogger(__name__).critical(self.wrong[-1])

    def drop(self) -> None:
        """Drop the tables of the queries."""
        for name in self.texts:
            self.lake.sql(f"DROP TABLE IF EXISTS lake.media.{name} PURGE")

    def _rows(self, name: str) -> tuple[Counter[tuple[Any, ...]], Counter[tuple[Any, ...]]]:
        """The rows of the table, with the query's columns in its order, and the rows that the query gives."""
        wanted = self.lake.sql(self.texts[name])
        columns = ", ".join(f"`{column}`" for column in wanted.columns)
        found = self.lake.sql(f"SELECT {columns} FROM lake.media.{name}")
        return Counter(map(_hashable, found.collect())), Counter(map(_hashable, wanted.collect()))


def _hashable(row: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(repr(value) if isinstance(value, list | dict) else value for value in row)


def strategy_of(result: dg.ExecuteInProcessResult, name: str) -> str:
    """The strategy by which a run updated the table; ``FAILED`` if it didn't."""
    for event in result.get_asset_materialization_events():
        if event.asset_key == dg.AssetKey(name):
            return str(event.materialization.metadata[REFRESH].value)
    return FAILED


def _error(result: dg.ExecuteInProcessResult, name: str) -> str:
    for event in result.all_events:
        if event.is_step_failure and event.step_key == name:
            error = event.step_failure_data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return error.message.strip() if error else "it failed"
    return "it did not run"


@contextlib.contextmanager
def temporary_lake(*, quick: bool = True, driver_memory: str = "2g") -> Iterator[tuple[Lake, dg.DagsterInstance]]:
    """A lake with its own Spark and Dagster instance, all of which are removed at the end."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        spark = folder / "spark"
        try:
            server = ensure_quick_server(spark) if quick else ensure_connect_server(spark, driver_memory=driver_memory)
            with new_assets(folder, spark, server) as assets:
                yield assets.lake, assets.instance
        finally:
            stop_connect_server(spark)
