"""Partitioned consumers: exactly the partitions that changed are computed, and their tables equal a full recompute."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that everyone gives it

import dagster_ips as ips
from dagster_ips.cli.main import main
from dagster_ips.errors import (
    DeclarationError,
    ForeignWriteError,
    FragmentOverwriteError,
    OutsidePartitionsError,
    UnmappedRowsError,
)
from dagster_ips.orchestration.platform.cursor_store import CursorStore
from tests.support.lake import FIRST_DAY, Event, Lake, events
from tests.support.partitioned import (
    DAYS,
    FROM_DAYS,
    SENSOR,
    WEEKS,
    expected_day,
    expected_week,
    follow,
    key,
    partitioned,
    run,
)
from tests.support.pipeline import expected_agg
from tests.support.ticks import tick, told
from tests.support.variants import mostly_slow


def days(*numbers: int, first_id: int = 0) -> list[Event]:
    """Five events of each day."""
    return [e for n in numbers for e in events(range(first_id + n * 10, first_id + n * 10 + 5), day=n)]


def shown(result: dg.ExecuteInProcessResult, name: str) -> object:
    (event, *_) = result.get_asset_materialization_events()
    return event.materialization.metadata[name].value


@pytest.mark.slow
@pytest.mark.everywhere
def test_exactly_the_changed_partitions_run_stage_after_stage(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    rows = days(*range(9))
    lake.create_playback(rows)

    assert follow(definitions, instance) == [("day+day_agg", key(0), key(8)), ("week", "2025-12-28", "2026-01-04")]

    late = days(2, 3, 8, 9, first_id=500)  # the last day is new
    lake.append(late)
    assert follow(definitions, instance) == [
        ("day+day_agg", key(2), key(3)),
        ("day+day_agg", key(8), key(9)),
        ("week", "2025-12-28", "2026-01-04"),
    ]

    assert follow(definitions, instance) == []
    assert lake.rows("media.day") == expected_day(rows + late)
    assert lake.rows("media.day_agg") == expected_agg(rows + late)
    assert lake.rows("media.week") == expected_week(rows + late)


def test_a_new_partition_is_computed_while_changed_ones_continue_incrementally(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    lake.create_playback(days(0, 1))
    run(definitions, instance, "day", key(0), key(1))
    lake.sql(f"INSERT INTO lake.media.day SELECT *, 99 FROM VALUES (7L, DATE '{key(2)}', 'stray', 1L)")
    checks = {check.asset_key.to_user_string(): check for check in told(definitions, instance, "ips_pending")[0]}
    assert "The next run is refused: Someone other than day" in checks["day"].description
    late = days(1, 2, first_id=500)
    lake.append(late)
    with pytest.raises(ForeignWriteError) as raised:
        run(definitions, instance, "day", key(1), key(2), **SENSOR)

    accepting = {"dagster_ips/accept": str(raised.value.newest)}
    result = run(definitions, instance, "day", key(1), key(2), **SENSOR, **accepting)

    assert shown(result, "mode") == "incremental"
    assert shown(result, "whole run: rows captured") == len(late)
    assert lake.rows("media.day") == expected_day(days(0, 1) + late)


def test_each_partition_of_a_run_shows_its_own_numbers_and_those_of_the_whole_run(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    lake.create_playback([*events(range(2)), *events(range(2, 7), day=1)])
    made = run(definitions, instance, "day", key(0), key(2)).asset_materializations_for_node("day")
    assert {each.partition: each.metadata["rows captured"].value for each in made} == {key(0): 2, key(1): 5, key(2): 0}
    assert {each.metadata["whole run: rows captured"].value for each in made} == {7}
    assert "one run of **3 partitions**" in str(made[0].metadata["summary"].value)
    # The file that a week reads has rows of several days. In a run of one partition, the run's numbers are its own.
    run(definitions, instance, "day_agg", key(0), key(1))
    (week,) = run(definitions, instance, "week", "2025-12-28").asset_materializations_for_node("week")
    assert "rows captured" in week.metadata
    assert "whole run: rows captured" not in week.metadata


@pytest.mark.slow
def test_an_untouched_partition_takes_a_late_row_long_after_its_snapshot_expired(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    rows = days(0)
    lake.create_playback(rows)
    follow(definitions, instance)
    for number in (1, 2):
        lake.append(days(number))
        rows += days(number)
        follow(definitions, instance)
    lake.sql("CALL lake.system.expire_snapshots(table => 'media.playback', older_than => now(), retain_last => 1)")
    assert lake.commits("media.playback") == 1
    late = days(0, first_id=500)
    lake.append(late)

    runs = follow(definitions, instance)

    assert runs[0] == ("day+day_agg", key(0), key(0))
    assert lake.rows("media.day") == expected_day(rows + late)
    assert lake.rows("media.day_agg") == expected_agg(rows + late)


def test_rows_removed_upstream_leave_their_partitions_and_no_other(lake: Lake, instance: dg.DagsterInstance) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder, whole_days)
    rows = days(0, 1, 2)
    lake.create_playback(rows)
    run(definitions, instance, "whole_days", key(0), key(2))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (1, 2)")
    lake.sql(f"DELETE FROM lake.media.playback WHERE event_date = DATE '{key(2)}'")

    run(definitions, instance, "whole_days", key(0), key(2), **SENSOR)

    left = [row for row in rows if row[0] not in (1, 2) and row[1] != FIRST_DAY + dt.timedelta(days=2)]
    assert lake.rows("media.whole_days") == Counter((date, 1) for _, date, _, _ in left)


def test_a_new_partition_runs_with_one_that_lost_a_row_by_a_deletion_vector(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.append(remove_on=["event_date", "event_id"])
        | ips.table("media.kept_days")
        | {"partition_expr": "event_date"},
    )
    def kept_days(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    definitions = partitioned(lake.folder, lake.spark_folder, kept_days)
    lake.create_playback(days(0, 1))
    properties = "'format-version'='3', 'write.delete.mode'='merge-on-read'"
    lake.sql(f"ALTER TABLE lake.media.playback SET TBLPROPERTIES ({properties})")
    run(definitions, instance, "kept_days", key(0))
    lake.sql("DELETE FROM lake.media.playback WHERE event_id IN (1, 12)")

    run(definitions, instance, "kept_days", key(0), key(1), **SENSOR)

    assert lake.rows("media.kept_days") == lake.rows("media.playback")


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental()},
    metadata=ips.overwrite_partitions()
    | ips.table("media.whole_days", partition_by=["event_date"])
    | {"partition_expr": "event_date"},
)
def whole_days(playback: ips.IcdcView) -> DataFrame:
    return playback.scope.select("event_date", F.lit(1).alias("one"))


@dg.asset(
    partitions_def=WEEKS,
    ins={"day_agg": ips.incremental(partition_mapping=FROM_DAYS)},
    metadata=ips.overwrite_partitions() | ips.table("media.weeks", partition_by=["week"]) | {"partition_expr": "week"},
)
def weeks(day_agg: ips.IcdcView) -> DataFrame:
    sunday = F.expr("date_sub(event_date, dayofweek(event_date) - 1)").alias("week")
    return day_agg.scope.groupBy(sunday).agg(F.sum("plays").alias("plays"))


def test_weeks_of_days_are_not_whole_in_a_frame_of_days_and_the_error_names_one_in_which_they_are(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder, weeks)
    lake.create_playback(days(0, 1))
    for asset in ("day", "day_agg"):
        run(definitions, instance, asset, key(0), key(1))
    with pytest.raises(FragmentOverwriteError, match=r"declare replace\(\), and build the frame on source"):
        run(definitions, instance, "weeks", "2025-12-28")
    run(definitions, instance, "week", "2025-12-28")
    assert len(lake.rows("media.week")) == 1


def test_partitions_that_a_person_launches_are_recomputed_unless_the_run_says_otherwise(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder)
    lake.create_playback(days(0, 1))
    run(definitions, instance, "day", key(0), key(1))
    lake.sql("DELETE FROM lake.media.day WHERE event_id IN (0, 10)")
    lake.append(days(0, first_id=500))

    by_person = run(definitions, instance, "day", key(0))
    with pytest.raises(ForeignWriteError) as raised:
        run(definitions, instance, "day", key(1), **{"dagster_ips/mode": "incremental"})
    accepting = {"dagster_ips/mode": "incremental", "dagster_ips/accept": str(raised.value.newest)}
    asked = run(definitions, instance, "day", key(1), **accepting)

    assert (shown(by_person, "mode"), shown(asked, "mode")) == ("full", "incremental")
    kept = [row for row in days(0, 1) + days(0, first_id=500) if row[0] != 10]
    assert lake.rows("media.day") == expected_day(kept)


def test_rows_that_belong_to_no_partition_are_reported_and_left_out_only_on_purpose(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    definitions = partitioned(lake.folder, lake.spark_folder, tolerant)
    rows = days(0)
    lake.create_playback(rows)
    run(definitions, instance, "day", key(0))
    follow(definitions, instance)
    early = [(900, FIRST_DAY - dt.timedelta(days=1), "a0", 1)]
    lake.append(early + days(0, first_id=500))

    with pytest.raises(UnmappedRowsError, match="2025-12-31"):
        run(definitions, instance, "day", key(0), **SENSOR)
    result = run(definitions, instance, "tolerant", key(0), **SENSOR)

    assert lake.rows("media.day") == expected_day(rows)
    assert lake.rows("media.tolerant") == Counter(rows + days(0, first_id=500))
    assert "2025-12-31" in str(shown(result, "playback: rows outside all partitions"))


def test_days_before_the_first_week_are_reported(lake: Lake, instance: dg.DagsterInstance) -> None:
    @dg.asset(
        partitions_def=dg.WeeklyPartitionsDefinition(start_date="2026-01-04"),
        ins={"day": ips.incremental()},
        metadata=ips.replace() | ips.table("media.late_week") | {"partition_expr": "week"},
    )
    def late_week(day: ips.IcdcView) -> DataFrame:
        return day.source.selectExpr("date_sub(event_date, dayofweek(event_date) - 1) AS week", "event_id")

    definitions = partitioned(lake.folder, lake.spark_folder, late_week)
    lake.create_playback(days(1, 5))
    run(definitions, instance, "day", key(0), key(6))

    with pytest.raises(UnmappedRowsError, match="2026-01-02"):
        run(definitions, instance, "late_week", "2026-01-04")


@dg.asset(
    partitions_def=DAYS,
    ins={"playback": ips.incremental(on_unmapped="ignore")},
    metadata=ips.append() | ips.table("media.tolerant") | {"partition_expr": "event_date"},
)
def tolerant(playback: ips.IcdcView) -> DataFrame:
    return playback.added


def test_rows_of_another_partition_are_refused_and_nothing_is_consumed(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | ips.table("media.shifted") | {"partition_expr": "event_date"},
    )
    def shifted(playback: ips.IcdcView) -> DataFrame:
        return playback.added.withColumn("event_date", F.date_add("event_date", 1))

    definitions = partitioned(lake.folder, lake.spark_folder, shifted)
    lake.create_playback(days(0))

    with pytest.raises(OutsidePartitionsError, match="event_date = 2026-01-02"):
        run(definitions, instance, "shifted", key(0))

    assert lake.catalog.find("media.shifted") is None
    assert CursorStore(instance).get("shifted").copy is None


def test_a_normal_partitioned_asset_reads_and_replaces_only_its_own_partition(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=DAYS,
        metadata=ips.table("media.copy", partition_by=["event_date"]) | {"partition_expr": "event_date"},
    )
    def copy(day: DataFrame) -> DataFrame:
        return day.select("event_id", "event_date")

    definitions = partitioned(lake.folder, lake.spark_folder, copy)
    lake.create_playback(days(0, 1))
    run(definitions, instance, "day", key(0), key(1))
    run(definitions, instance, "copy", key(0))
    run(definitions, instance, "copy", key(1))
    lake.sql("DELETE FROM lake.media.day WHERE event_id IN (0, 10)")
    run(definitions, instance, "copy", key(0))

    assert lake.rows("media.copy") == Counter((i, date) for i, date, *_ in days(0, 1) if i != 0)


def test_declarations_that_cannot_work_are_refused_when_definitions_load(lake: Lake) -> None:
    @dg.asset(partitions_def=DAYS, ins={"playback": ips.incremental()}, metadata=ips.append())
    def nowhere(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.merge(on=["account"]) | {"partition_expr": "event_date"},
    )
    def moving(playback: ips.IcdcView) -> DataFrame:
        return playback.affected("account")

    @dg.asset(
        partitions_def=DAYS,
        ins={"playback": ips.incremental()},
        metadata=ips.append() | {"partition_expr": "event_date"},
        automation_condition=ips.on_change(min_bytes=1000),
    )
    def patient(playback: ips.IcdcView) -> DataFrame:
        return playback.added

    with pytest.raises(DeclarationError, match="min_bytes"):
        partitioned(lake.folder, lake.spark_folder, patient)
    with pytest.raises(DeclarationError, match="partition_expr"):
        partitioned(lake.folder, lake.spark_folder, nowhere)
    with pytest.raises(DeclarationError, match="event_date"):
        partitioned(lake.folder, lake.spark_folder, moving)


def test_the_command_line_shows_pending_partitions_and_refuses_to_reset_them(
    lake: Lake, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "definitions_of_partitioned.py"
    file.write_text(
        "from pathlib import Path\nfrom tests.support.partitioned import partitioned\n"
        f"defs = partitioned(Path({str(lake.folder)!r}), Path({str(lake.spark_folder)!r}))\n"
    )
    monkeypatch.setenv("DAGSTER_HOME", instance.root_directory)
    lake.create_playback(days(0, 1))
    definitions = partitioned(lake.folder, lake.spark_folder)
    run(definitions, instance, "day", key(0))
    tick(definitions, instance)

    shown = CliRunner().invoke(main, ["status", "day", "-f", str(file)], catch_exceptions=False)
    refused = CliRunner().invoke(main, ["reset", "day", "--why", "x", "-f", str(file)])

    assert "1: 2026-01-02" in shown.output
    assert refused.exit_code != 0
    assert "--partitions" in refused.output + str(refused.exception)


@pytest.mark.slow
def test_a_replaced_or_recreated_upstream_is_computed_in_full_where_the_input_says_so(
    lake: Lake, instance: dg.DagsterInstance
) -> None:
    @dg.asset(
        partitions_def=DAYS,
        ins={"built": ips.incremental(on_expired="full")},
        metadata=ips.append() | ips.table("media.kept", partition_by=["event_date"]) | {"partition_expr": "event_date"},
    )
    def kept(built: ips.IcdcView) -> DataFrame:
        return built.added

    built: Any = ips.iceberg_asset("built", table="media.built")
    definitions = partitioned(lake.folder, lake.spark_folder, built, kept)
    lake.create_playback(days(0, 1, 2))
    create = "TABLE lake.media.built USING iceberg PARTITIONED BY (event_date) AS SELECT * FROM lake.media.playback"
    for statements in (
        [f"CREATE {create}"],
        [f"CREATE OR REPLACE {create} WHERE event_id % 2 = 0 AND day(event_date) < 3"],
        ["INSERT INTO lake.media.built SELECT * FROM lake.media.playback LIMIT 1"],
        ["DROP TABLE lake.media.built", f"CREATE {create} WHERE day(event_date) > 1"],
    ):
        for statement in statements:
            lake.sql(statement)
        follow(definitions, instance)
        assert lake.rows("media.kept") == lake.rows("media.built"), statements


@pytest.mark.parametrize("version", mostly_slow([3, 2]))
def test_a_row_of_no_partition_that_is_deleted_no_longer_stands_in_the_way(
    lake: Lake, instance: dg.DagsterInstance, version: int
) -> None:
    """The data file with the row stays: a deletion vector or a position delete file hides the row."""
    lake.create_playback()
    lake.sql(f"ALTER TABLE lake.media.playback SET TBLPROPERTIES ('format-version' = '{version}')")
    lake.sql("ALTER TABLE lake.media.playback SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    lake.sql("ALTER TABLE lake.media.playback DROP PARTITION FIELD event_date")
    rows = events(range(3))
    strange = "(7, NULL, 'a', 1), (8, NULL, 'a', 1), (9, DATE'2025-12-24', 'a', 1)"
    lake.sql(f"INSERT INTO lake.media.playback SELECT /*+ COALESCE(1) */ * FROM VALUES {strange}, {_values(rows)}")
    definitions = partitioned(lake.folder, lake.spark_folder)

    def refused(shown: str) -> None:
        with pytest.raises(UnmappedRowsError, match=shown):
            run(definitions, instance, "day", key(0))

    refused("2025-12-24.*null")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 7")
    refused("null")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 8")
    refused("2025-12-24")
    lake.sql("DELETE FROM lake.media.playback WHERE event_id = 9")
    run(definitions, instance, "day", key(0))
    assert lake.rows("media.day") == expected_day(rows)

    rows += events(range(10, 12), day=1)
    lake.sql(f"INSERT INTO lake.media.playback VALUES {_values(rows[-2:])}")
    run(definitions, instance, "day", key(1))
    assert lake.rows("media.day") == expected_day(rows)


def _values(rows: list[Event]) -> str:
    return ", ".join(f"({number}, DATE'{date}', '{account}', {seconds})" for number, date, account, seconds in rows)
