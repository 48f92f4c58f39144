"""A partitioned asset's own statements, or its job, compute the run's partitions and leave all others as they are."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pytest

import dagster_ips as ips
from dagster_ips.errors import DeclarationError, IpsError, OutsidePartitionsError
from tests.support.lake import FIRST_DAY, Event, Lake, events
from tests.support.lake_definitions import definitions_on
from tests.support.partitioned import DAYS, FROM_DAYS, SENSOR, WEEKS, expected_week, follow, key, run
from tests.support.variants import mostly_slow

TABLE = "media.by_day"
COLUMNS = "day DATE, account STRING, plays BIGINT"
ADD_UP = """MERGE INTO {target} t USING (
        SELECT event_date AS day, account, sum(n) AS plays FROM (
            SELECT event_date, account, 1 AS n FROM {added} UNION ALL SELECT event_date, account, -1 FROM {removed}
        ) GROUP BY ALL
    ) c ON t.day = c.day AND t.account = c.account
    WHEN MATCHED AND t.plays + c.plays = 0 THEN DELETE
    WHEN MATCHED THEN UPDATE SET plays = t.plays + c.plays WHEN NOT MATCHED THEN INSERT *"""
SETTLED = "SELECT * FROM {removed} LIMIT 0"
Write = Callable[[ips.OwnSql], object]


def by_day(write: Write, *, partition_by: Sequence[str] = ("day",), **declared: int | str) -> dg.AssetsDefinition:
    @dg.asset(
        name="by_day",
        partitions_def=DAYS,
        deps=[ips.incremental_dep("playback", partition_column="event_date", **declared)],  # type: ignore[arg-type]
        metadata=ips.table(TABLE, partition_by=[*partition_by]) | {"partition_expr": "day"},
    )
    def made(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns=COLUMNS) as icdc:
            write(icdc)

    return made


def defined(lake: Lake, *assets: dg.AssetsDefinition) -> dg.Definitions:
    playback = ips.iceberg_asset("playback", table="media.playback")
    return definitions_on(lake.folder, lake.spark_folder, playback, *assets)


def statements(*texts: str) -> Write:
    return lambda icdc: [icdc.sql(text) for text in texts]


def by_job(lake: Lake, seen: list[dict[str, Any]], *texts: str) -> Write:
    """A session of its own stands for the other process: it has nothing but the JSON value."""

    def write(icdc: ips.OwnSql) -> None:
        job = json.loads(json.dumps(icdc.job))
        seen.append(job)
        session = lake.another_session()
        for name, value in job["spark_conf"].items():
            session.conf.set(name, value)
        for text in texts:
            session.sql(text.format_map(job))

    return write


def expected(rows: Sequence[Event]) -> Counter[tuple[Any, ...]]:
    return Counter((*group, plays) for group, plays in Counter((row[1], row[2]) for row in rows).items())


def days(*numbers: int, first_id: int = 0) -> list[Event]:
    return [
        row
        for number in numbers
        for row in events(range(first_id + 10 * number, first_id + 10 * number + 5), day=number)
    ]


@pytest.mark.parametrize(("by", "partition_by"), mostly_slow([("a job", ["day"]), ("statements", [])]))
def test_partitions_follow_every_change_each_by_its_own_runs(
    lake: Lake, instance: dg.DagsterInstance, by: str, partition_by: list[str]
) -> None:
    seen: list[dict[str, Any]] = []
    write = by_job(lake, seen, ADD_UP) if by == "a job" else statements(ADD_UP)
    definitions = defined(lake, by_day(write, partition_by=partition_by))
    rows = days(0, 1)
    lake.create_playback(rows)
    (made, _) = run(definitions, instance, "by_day", key(0), key(1)).asset_materializations_for_node("by_day")
    assert made.metadata["rows captured"].value == 5
    assert made.metadata["mode"].value == "full"
    assert lake.rows(TABLE) == expected(rows)

    late = [*days(0, first_id=100), *days(2)]
    lake.append(late)
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (1, 11)")
    lake.sql("UPDATE lake.media.playback SET account = 'other' WHERE event_id = 12")
    now = [row if row[0] != 12 else (12, row[1], "other", row[3]) for row in rows + late if row[0] not in (1, 11)]
    first = [row for row in rows if row[1] != FIRST_DAY] + [row for row in now if row[1] == FIRST_DAY]
    run(definitions, instance, "by_day", key(0), **SENSOR)
    assert lake.rows(TABLE) == expected(first), "a run of one partition changed another one, or not its own"
    runs = follow(definitions, instance)
    assert [each for each in runs if each[0] == "by_day"] == [("by_day", key(1), key(2))]
    assert lake.rows(TABLE) == expected(now)
    if seen:
        assert [each["partition_keys"] for each in seen] == [[key(0), key(1)], [key(0)], [key(1), key(2)]]

    lake.sql(f"INSERT INTO lake.{TABLE} VALUES (DATE '{key(1)}', 'wrong', 1), (DATE '{key(2)}', 'wrong', 1)")
    run(definitions, instance, "by_day", key(1), **{"dagster_ips/mode": "full"})
    assert lake.rows(TABLE) == expected(now) + Counter([(days(2)[0][1], "wrong", 1)])


def refused(lake: Lake, instance: dg.DagsterInstance, write: Write, first: int, last: int | None = None) -> IpsError:
    definitions = defined(lake, by_day(write, partition_by=()))
    with pytest.raises(IpsError) as raised:
        run(definitions, instance, "by_day", key(first), key(first if last is None else last), **SENSOR)
    return raised.value


def test_rows_of_other_partitions_are_neither_written_nor_removed(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = defined(lake, by_day(statements(ADD_UP), partition_by=()))
    rows = days(0, 1)
    lake.create_playback(rows)
    run(definitions, instance, "by_day", key(0), key(1))
    lake.append(events([50]))
    rows += events([50])
    before = lake.rows(TABLE)
    for wrong in (
        f"INSERT INTO {{target}} VALUES (DATE '{key(1)}', 'strange', 1)",
        "INSERT INTO {target} VALUES (NULL, 'strange', 1)",
        f"DELETE FROM {{target}} WHERE day = DATE '{key(1)}' AND account = 'a1'",
        "UPDATE {target} SET plays = plays + 1 WHERE account = 'a1'",
    ):
        error = refused(lake, instance, statements(ADD_UP, wrong, SETTLED), 0)
        assert isinstance(error, OutsidePartitionsError), wrong
        assert lake.rows(TABLE) == before
        assert lake.branches(TABLE) == {"main"}
    run(definitions, instance, "by_day", key(0), **SENSOR)
    assert lake.rows(TABLE) == expected(rows)


@pytest.mark.slow
def test_what_is_there_of_a_new_partition_is_replaced_in_a_run_that_continues_others(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = defined(lake, by_day(statements(ADD_UP)))
    rows = days(0)
    lake.create_playback(rows)
    run(definitions, instance, "by_day", key(0))
    lake.sql(f"INSERT INTO lake.{TABLE} VALUES (DATE '{key(1)}', 'stray', 1)")
    lake.append([*days(1), *days(0, first_id=100)])
    rows += [*days(1), *days(0, first_id=100)]
    head = str(lake.catalog.load(TABLE, asset="test").head_snapshot_id())
    run(definitions, instance, "by_day", key(0), key(1), **SENSOR, **{"dagster_ips/accept": head})
    assert lake.rows(TABLE) == expected(rows)


@pytest.mark.slow
def test_a_week_of_own_statements_is_made_of_the_days_that_its_mapping_names(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        name="days",
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.replace()
        | ips.table("media.days", partition_by=["event_date"])
        | {"partition_expr": "event_date"},
    )
    def copied(playback: ips.IcdcView):  # noqa: ANN202  # a frame
        return playback.source

    @dg.asset(
        partitions_def=WEEKS,
        deps=[ips.incremental_dep("days", partition_mapping=FROM_DAYS)],
        metadata=ips.table("media.week", partition_by=["week"]) | {"partition_expr": "week"},
    )
    def week(context: dg.AssetExecutionContext) -> None:
        with ips.capture(context, columns="week DATE, plays BIGINT") as icdc:
            sunday = "date_sub(event_date, dayofweek(event_date) - 1)"
            changed = f"(SELECT {sunday} FROM {{added}} UNION SELECT {sunday} FROM {{removed}})"
            icdc.sql(f"DELETE FROM {{target}} WHERE week IN {changed}")
            icdc.sql(
                f"INSERT INTO {{target}} SELECT {sunday} AS week, count(*) FROM {{source}} "
                f"WHERE {sunday} IN {changed} GROUP BY 1"
            )

    definitions = defined(lake, copied, week)
    rows = days(0, 1, 9)
    lake.create_playback(rows)
    follow(definitions, instance)
    assert lake.rows("media.week") == expected_week(rows)
    lake.append(days(2))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 91")
    rows = [row for row in rows + days(2) if row[0] != 91]
    follow(definitions, instance)
    assert lake.rows("media.week") == expected_week(rows)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"max_files": 3}, "has a limit, but it is partitioned"),
        ({"start": "latest"}, "has a start, but it is partitioned"),
    ],
)
def test_what_partitions_do_not_allow_is_refused_at_load(lake: Lake, declared: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=told):
        defined(lake, by_day(statements(ADD_UP), **declared))


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"partition_mapping": FROM_DAYS}, "has a partition_mapping, but it isn't partitioned"),
        ({"on_unmapped": "ignore"}, "has no effect, because the asset isn't partitioned"),
        ({"partition_column": "event_date"}, "has no effect, because the asset isn't partitioned"),
    ],
)
def test_what_an_unpartitioned_block_has_no_use_for_is_refused_at_load(
    lake: Lake, declared: dict[str, Any], told: str
) -> None:
    @dg.asset(deps=[ips.incremental_dep("playback", **declared)], metadata=ips.table(TABLE))
    def whole(context: dg.AssetExecutionContext) -> None: ...

    with pytest.raises(DeclarationError, match=told):
        defined(lake, whole)
