"""What a tick costs with hundreds of incremental assets: ``python -m benchmarks.ticks --assets 300``.

Each asset follows a table of its own. The first tick reads every table's metadata, and all of it is pending; then it is
consumed, and the second finds no pointer moved; before the third, one table in a hundred got a commit.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa

import dagster_ips as ips
from dagster_ips.core.capture import EdgeState
from dagster_ips.core.edge import Edge
from dagster_ips.core.watermark import Watermark
from dagster_ips.iceberg.catalog import LakeCatalog
from dagster_ips.orchestration.cursor_store import CursorStore
from dagster_ips.orchestration.pending_checks import PENDING_SENSOR
from dagster_ips.orchestration.sensors import OUTSIDE_TABLES_SENSOR

ROWS = pa.table({"id": [1, 2, 3]})


def _asset(number: int) -> dg.AssetsDefinition:
    @dg.asset(name=f"target_{number}", ins={"source": ips.incremental(f"source_{number}")}, metadata=ips.append())
    def target(source: ips.IcdcView) -> object:
        return source.added

    return target


def _definitions(folder: Path, count: int) -> dg.Definitions:
    manager = ips.IcdcIOManager(
        catalog=ips.IcebergCatalog(folder=str(folder)), spark=ips.LocalSparkConnect(server_folder=str(folder / "spark"))
    )
    sources = [ips.iceberg_asset(f"source_{number}", table=f"db.source_{number}") for number in range(count)]
    assets = [*sources, *(_asset(number) for number in range(count))]
    return ips.with_incremental(dg.Definitions(assets=assets, resources={"io_manager": manager}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets", type=int, default=300)
    count = parser.parse_args().assets
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        lake = LakeCatalog.embedded("lake", folder)
        lake.create_namespace("db")
        tables = [lake.client.create_table(f"db.source_{number}", ROWS.schema) for number in range(count)]
        for table in tables:
            table.append(ROWS)
        definitions = _definitions(folder, count)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            print("| seconds | first tick | nothing new | one in a hundred new |\n| --- | --- | --- | --- |")
            for title, tick in _ticks(definitions, instance).items():
                seconds: list[str] = []
                cursor = None
                _consume(lake, instance, count, committed=False)
                for round_number in range(3):
                    if round_number == 1:
                        _consume(lake, instance, count, committed=True)
                        cursor = tick(cursor)  # Sees it, so that what is measured is a tick in which nothing happens.
                    if round_number == 2:
                        for table in tables[::100]:
                            table.refresh().append(ROWS)
                    started = time.perf_counter()
                    cursor = tick(cursor)
                    seconds.append(f"{time.perf_counter() - started:.2f}")
                print(f"| {title}, {count} assets | {' | '.join(seconds)} |")


def _consume(lake: LakeCatalog, instance: dg.DagsterInstance, count: int, *, committed: bool) -> None:
    """As runs of every asset leave the cursors; or as if none ever ran."""
    store = CursorStore(instance)
    for number in range(count):
        edge = Edge(f"target_{number}", f"source_{number}")
        metadata = lake.load(f"db.source_{number}", asset="benchmark")
        head = metadata.ancestry().head
        at = Watermark.at(head, table_uuid=metadata.uuid, ref="main") if head and committed else None
        store.set(EdgeState(edge, committed=at, number=int(committed)))


def _ticks(definitions: dg.Definitions, instance: dg.DagsterInstance) -> dict[str, Callable[[Any], Any]]:
    def conditions(cursor: Any) -> Any:  # noqa: ANN401  # Dagster's
        result = dg.evaluate_automation_conditions(defs=definitions, instance=instance, cursor=cursor)
        return result.cursor

    def sensor(name: str) -> Callable[[Any], Any]:
        def tick(cursor: Any) -> Any:  # noqa: ANN401  # as above
            with dg.build_sensor_context(instance=instance, cursor=cursor, definitions=definitions) as context:
                return definitions.resolve_sensor_def(name).evaluate_tick(context).cursor

        return tick

    return {
        "automation conditions": conditions,
        "outside tables": sensor(OUTSIDE_TABLES_SENSOR),
        "pending checks": sensor(PENDING_SENSOR),
    }


if __name__ == "__main__":
    main()
