"""Hourly, static, dynamic and two-dimensional partitions of a table whose files contain rows of many of them."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import dagster_ips as ips
from dagster_ips.core.edge import Edge
from dagster_ips.errors import UnmappedRowsError
from tests.support.lake import Lake
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import SENSOR, follow, run
from tests.support.progress import copied_state

HOURS = dg.HourlyPartitionsDefinition(start_date="2026-03-29-00:00", timezone="Europe/Berlin")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us", "it's"])
TITLES = dg.DynamicPartitionsDefinition(name="titles")
BOTH = dg.MultiPartitionsDefinition({"day": dg.DailyPartitionsDefinition(start_date="2026-03-28"), "region": REGIONS})
TABLE = "lake.media.plays"


def consumer(name: str, partitions: dg.PartitionsDefinition[str], expression: object) -> dg.AssetsDefinition:
    """A copy of its upstream, partition by partition."""

    @dg.asset(
        name=name,
        partitions_def=partitions,
        ins={"plays": ips.incremental()},
        metadata=ips.replace() | ips.table(f"media.{name}") | {"partition_expr": expression},
    )
    def copy(plays: ips.IcdcView) -> DataFrame:
        return plays.source

    return copy


ASSETS = (
    consumer("by_hour", HOURS, "at"),
    consumer("by_region", REGIONS, "region"),
    consumer("by_title", TITLES, "title"),
    consumer("by_both", BOTH, {"day": "day", "region": "region"}),
    consumer("by_text", dg.DailyPartitionsDefinition(start_date="2026-03-28"), "text_day"),
    consumer("by_wall", HOURS, "wall"),
)


def pipeline(lake: Lake) -> dg.Definitions:
    plays = ips.iceberg_asset("plays", table="media.plays")
    return definitions_on(lake.folder, lake.spark_folder, plays, *ASSETS)


def rows(lake: Lake, table: str) -> Counter[tuple[Any, ...]]:
    found = lake.sql(f"SELECT id, CAST(at AS STRING), region, title, day, text_day, wall FROM lake.media.{table}")
    return Counter(tuple(row) for row in found.collect())


def create_plays(lake: Lake) -> None:
    lake.catalog.create_namespace("media")
    columns = "id INT, at TIMESTAMP, region STRING, title INT, day DATE, text_day STRING, wall TIMESTAMP_NTZ"
    lake.sql(f"CREATE TABLE {TABLE} ({columns})")


def insert(lake: Lake, chance: random.Random, ids: range, titles: list[int]) -> None:
    """One file with rows of several hours around the change to summer time, regions, titles and days."""
    first = dt.datetime(2026, 3, 28, 23, tzinfo=dt.UTC)
    values = []
    for number in ids:
        at = first + dt.timedelta(minutes=chance.randrange(60 * 8))
        region = chance.choice(["eu", "us", "it''s"])
        day = dt.date(2026, 3, 28) + dt.timedelta(days=chance.randrange(3))
        text = at.strftime("%Y-%m-%d %H:%M:%S+00:00")
        wall = (at + dt.timedelta(hours=1)).strftime("%Y-%m-%d %H:%M:%S")  # also in the hour that clocks skip
        title = chance.choice(titles)
        values.append(
            f"({number}, TIMESTAMP '{text}', '{region}', {title}, DATE '{day}', '{day}', TIMESTAMP_NTZ '{wall}')"
        )
    lake.sql(f"INSERT INTO {TABLE} SELECT /*+ COALESCE(1) */ * FROM VALUES {', '.join(values)}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_partitions_of_every_kind_equal_their_upstream_whatever_changes(
    lake: Lake, instance: dg.DagsterInstance, seed: int
) -> None:
    chance, definitions = random.Random(seed), pipeline(lake)
    create_plays(lake)
    instance.add_dynamic_partitions("titles", ["1", "2"])
    for number in range(3):
        insert(lake, chance, range(number * 10, number * 10 + 6), [1, 2])
        if number:
            lake.sql(f"DELETE FROM {TABLE} WHERE id % 7 = {chance.randrange(7)}")
        if number == 2:
            insert(lake, chance, range(100, 103), [3])  # a title that has no partition yet
        follow(definitions, instance)
        there = rows(lake, "plays")
        for asset in ("by_hour", "by_region", "by_both", "by_text", "by_wall"):
            assert rows(lake, asset) == there, (number, asset)
        known = {int(key) for key in instance.get_dynamic_partitions("titles")}
        assert rows(lake, "by_title") == Counter({row: n for row, n in there.items() if row[3] in known}), number
    instance.add_dynamic_partitions("titles", ["3"])
    follow(definitions, instance)
    assert rows(lake, "by_title") == rows(lake, "plays")
    assert follow(definitions, instance) == []


def test_a_row_of_no_partition_is_an_error_whatever_the_metadata_of_its_file_says(
    lake: Lake, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_plays(lake)
    insert(lake, random.Random(1), range(3), [1])
    lake.sql(f"INSERT INTO {TABLE} SELECT /*+ COALESCE(1) */ 9, at, 'asia', 1, day, text_day, wall FROM {TABLE}")
    monkeypatch.setattr("dagster_ips.iceberg.file_spans.column_bound", lambda *_: "eu")

    with pytest.raises(UnmappedRowsError, match="asia"):
        run(pipeline(lake), instance, "by_region", "eu")

    assert copied_state(instance, Edge("by_region", "plays", "eu")).committed is None


def test_rows_of_a_partition_not_yet_added_are_no_error_and_are_computed_once_it_is(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    create_plays(lake)
    instance.add_dynamic_partitions("titles", ["1"])
    insert(lake, random.Random(1), range(8), [1, 2])
    definitions = pipeline(lake)
    run(definitions, instance, "by_title", "1")
    insert(lake, random.Random(2), range(10, 18), [1, 2])
    run(definitions, instance, "by_title", "1", **SENSOR)
    assert rows(lake, "by_title") == Counter({row: n for row, n in rows(lake, "plays").items() if row[3] == 1})

    instance.add_dynamic_partitions("titles", ["2"])
    run(definitions, instance, "by_title", "2", **SENSOR)

    assert rows(lake, "by_title") == rows(lake, "plays")
