"""An asset whose declaration changed doesn't continue with rows of the earlier declaration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.cli.context import Workplace
from dagster_ips.orchestration.run.known_consumers import known_consumers
from tests.support.lake import Lake, events
from tests.support.partitioned import DAYS, SENSOR, partitioned, run
from tests.support.pipeline import materialize, pipeline
from tests.support.variants import mostly_slow

BOTH = ["account", "seconds"]
SUMS = "SELECT account, sum(seconds) FROM lake.media.playback GROUP BY account"
ROWS = "SELECT account, seconds FROM lake.media.playback"
WAYS: dict[str, tuple[Mapping[str, Any], Callable[[ips.IcdcView], DataFrame], str]] = {
    "append": (ips.append(), lambda up: up.added.select(*BOTH), ROWS),
    "rows": (ips.append(remove_on=BOTH), lambda up: up.added.select(*BOTH), ROWS),
    "merge": (ips.merge(on=["account"]), lambda up: _sums(up.affected("account")), SUMS),
    "combine": (ips.combine(on=["account"], aggregates={"seconds": "sum(seconds)"}), lambda up: up.weighted, SUMS),
    "partitions": (ips.overwrite_partitions(), lambda up: _sums(up.affected("account")), SUMS),
}


def _sums(rows: DataFrame) -> DataFrame:
    return rows.groupBy("account").agg(F.sum("seconds").alias("seconds"))


def changing(way: str, policies: Mapping[str, Any]) -> dg.AssetsDefinition:
    write_mode, make, _ = WAYS[way]

    @dg.asset(
        ins={"playback": ips.incremental(**policies)},
        metadata=dict(write_mode) | ips.table("media.changing", partition_by=["account"]),
    )
    def changing(playback: ips.IcdcView) -> DataFrame:
        return make(playback)

    return changing


def mode(result: dg.ExecuteInProcessResult) -> str:
    (event,) = result.get_asset_materialization_events()
    return str(event.materialization.metadata["mode"].value)


@pytest.mark.parametrize(
    ("before", "after"),
    mostly_slow(
        [
            ("combine", "append"),
            ("append", "merge"),
            ("append", "partitions"),
            ("merge", "rows"),
            ("partitions", "merge"),
        ]
    ),
)
def test_another_write_mode_recomputes_the_table_once(
    lake: Lake, instance: dg.DagsterInstance, before: str, after: str
) -> None:
    lake.create_playback(events(range(9)))
    materialize(pipeline(lake.folder, lake.spark_folder, changing(before, {})), instance, "changing")
    if before == "append":
        lake.maintain("media.changing")
    definitions = pipeline(lake.folder, lake.spark_folder, changing(after, {}))
    for event, how in ((9, "full"), (11, "incremental")):
        lake.append(events([event]))
        result = materialize(definitions, instance, "changing")
        found = lake.sql("SELECT account, seconds FROM lake.media.changing").collect()
        assert sorted(found) == sorted(lake.sql(WAYS[after][2]).collect())
        assert mode(result) == how


def test_a_table_that_keeps_removed_rows_continues_until_they_must_be_removed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(3)))
    kept = {"on_removed": "ignore"}
    materialize(pipeline(lake.folder, lake.spark_folder, changing("append", kept)), instance, "changing")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 1")
    materialize(pipeline(lake.folder, lake.spark_folder, changing("append", kept)), instance, "changing")
    lake.append(events([5]))
    materialize(pipeline(lake.folder, lake.spark_folder, changing("rows", kept)), instance, "changing")
    assert lake.sql("SELECT * FROM lake.media.changing").count() == 4
    materialize(pipeline(lake.folder, lake.spark_folder, changing("rows", {})), instance, "changing")
    assert lake.sql("SELECT * FROM lake.media.changing").count() == 3


def united(*names: str) -> dg.AssetsDefinition:
    def make(**views: ips.IcdcView) -> DataFrame:
        first, *others = (view.added for view in views.values())
        return first.unionByName(*others) if others else first

    of = {name: ips.incremental() for name in names}
    write_mode = ips.append(remove_on=["event_id"])
    return dg.asset(name="united", ins=of, metadata=write_mode | ips.table("media.united"))(make)


def test_an_input_left_out_for_a_while_has_no_rows_in_the_table_until_it_is_back(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    lake.create_playback(events(range(6)))
    lake.create_playback(events(range(100, 103)), "media.archive")
    archive: Any = ips.iceberg_asset("archive", table="media.archive")
    both, one = (
        pipeline(lake.folder, lake.spark_folder, united(*names), archive)
        for names in (("playback", "archive"), ("playback",))
    )
    for event, (definitions, has_archive) in enumerate([(both, True), (one, False), (both, True)], start=6):
        lake.append(events([event]))
        materialize(definitions, instance, "united")
        wanted = lake.rows("media.playback") + (lake.rows("media.archive") if has_archive else Counter())
        assert lake.rows("media.united") == wanted


@pytest.mark.parametrize("policies", [{}, {"on_removed": "ignore"}], ids=["follows all", "keeps removed rows"])
@pytest.mark.parametrize("way", ["append", "combine"])
def test_rows_of_an_asset_that_read_its_input_as_a_whole_for_a_while_are_not_added_again(
    lake: Lake, instance: dg.DagsterInstance, way: str, policies: Mapping[str, Any]
) -> None:
    @dg.asset(name="changing", metadata=ips.table("media.changing", partition_by=["account"]))
    def whole(playback: DataFrame) -> DataFrame:
        return playback.select(*BOTH) if way == "append" else _sums(playback)

    assets = [changing(way, policies), whole, changing(way, policies)]
    lake.create_playback(events(range(3)))
    for event, asset in enumerate(assets, start=3):
        lake.append(events([event]))
        materialize(pipeline(lake.folder, lake.spark_folder, asset), instance, "changing")
        found = lake.sql("SELECT account, seconds FROM lake.media.changing").collect()
        assert sorted(found) == sorted(lake.sql(WAYS[way][2]).collect())


@pytest.mark.parametrize("expires", mostly_slow([False, True]), ids=["history kept", "history expired"])
def test_partitions_of_another_declaration_are_recomputed_as_they_change(
    lake: Lake, instance: dg.DagsterInstance, *, expires: bool
) -> None:
    def of(write_mode: Mapping[str, Any], make: Callable[[ips.IcdcView], DataFrame]) -> dg.Definitions:
        @dg.asset(
            partitions_def=DAYS,
            ins={"playback": ips.incremental()},
            metadata=dict(write_mode)
            | ips.table("media.dated", partition_by=["event_date"])
            | {"partition_expr": "event_date"},
        )
        def dated(playback: ips.IcdcView) -> DataFrame:
            return make(playback)

        return partitioned(lake.folder, lake.spark_folder, dated)

    lake.create_playback([*events(range(6)), *events(range(6, 9), day=1)])
    rows = of(ips.append(), lambda up: up.added.select("event_date", "seconds"))
    run(rows, instance, "dated", "2026-01-01", "2026-01-02")
    if expires:
        lake.append(events([10], day=1))
        run(rows, instance, "dated", "2026-01-02", **SENSOR)
        lake.maintain("media.dated")
    lake.append(events([9]))
    sums = of(
        ips.merge(on=["event_date"]),
        lambda up: up.affected("event_date").groupBy("event_date").agg(F.sum("seconds").alias("seconds")),
    )
    workplace = Workplace(known_consumers(sums), (), [sums], instance)
    said = str(workplace.older_rows(workplace.consumer("dated")))
    assert "it has rows written with append() of playback" in said
    assert "in 2 partitions (2026-01-01, 2026-01-02)" in said
    run(sums, instance, "dated", "2026-01-01", **SENSOR)
    if expires:
        lake.maintain("media.dated")
    said = str(workplace.older_rows(workplace.consumer("dated")))
    assert "it has rows written with append() of playback" in said
    assert "in 1 partition (2026-01-02)" in said
    query = "SELECT event_date, sum(seconds) FROM lake.media.playback WHERE day(event_date) = 1 GROUP BY event_date"
    found = lake.sql("SELECT event_date, seconds FROM lake.media.dated WHERE day(event_date) = 1").collect()
    assert found == lake.sql(query).collect()


def test_partitions_written_with_another_declaration_are_named_until_they_are_recomputed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    def of(*names: str) -> dg.Definitions:
        def dated(**views: ips.IcdcView) -> DataFrame:
            return next(iter(views.values())).added

        made = dg.asset(
            name="dated",
            partitions_def=DAYS,
            ins={name: ips.incremental() for name in names},
            metadata=ips.append(remove_on=["event_date", "event_id"])
            | ips.table("media.dated", partition_by=["event_date"])
            | {"partition_expr": "event_date"},
        )(dated)
        archive: Any = ips.iceberg_asset("archive", table="media.archive")
        return partitioned(lake.folder, lake.spark_folder, made, archive)

    lake.create_playback([*events([1]), *events([2], day=1)])
    lake.create_playback(events([3]), "media.archive")
    first, second = "2026-01-01", "2026-01-02"
    run(of("playback"), instance, "dated", first, second)
    swapped = of("archive")
    run(swapped, instance, "dated", first, **SENSOR)
    workplace = Workplace(known_consumers(swapped), (), [swapped], instance)
    made = "it has rows written with append(remove_on=['event_date', 'event_id']) of playback"
    said = str(workplace.older_rows(workplace.consumer("dated")))
    assert said.startswith(made)
    assert f"in 1 partition ({second}). To recompute them, launch a backfill of these partitions." in said
    run(swapped, instance, "dated", second)
    assert workplace.older_rows(workplace.consumer("dated")) is None
    assert lake.rows("media.dated") == lake.rows("media.archive")
